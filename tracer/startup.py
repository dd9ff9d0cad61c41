"""How the runner of a request was made ready: a start (fork) or a waking (same process)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tracer.derived import Interval
from tracer.evidence import Exchange, Life
from tracer.scene import Range, Scene, descendants, may_run_models, role, subtract, token_ns
from tracer.weights import Bulk, Disk, bulk_claims, bulks, inserted_by


@dataclass(frozen=True, slots=True)
class Start:
    """`begin_ns`: fork, or when a sleeper had to wake. `ready_ns`: end of initialisation.

    `noticed_ns`: when it could be seen to be ready, if before the front sent it work.
    """

    tgid: int
    tree: frozenset[int]
    wake: bool
    begin_ns: int
    access_ns: int | None
    bulks: tuple[Bulk, ...]
    ready_ns: int
    noticed_ns: int | None

    @property
    def load_ns(self) -> int | None:
        return self.bulks[0].open_ns if self.bulks else None


def early_head_ns(x: Exchange, program: str | None) -> int | None:
    """When the headers left, if this server sends them as it starts on the prompt.

    Newer llama-servers do. A whole reply's headers leave with the answer; other servers send
    headers at once, which says nothing, or with the first token.
    """
    late = x.first_token_ns if x.first_token_ns is not None else x.end_ns
    if x.head_ns is None or not x.event_stream or (x.status or 0) >= 400:
        return None
    if program not in (None, "llama-server"):
        return None
    if late is not None and late - x.head_ns <= HEAD_GAP_NS:
        return None
    return x.head_ns


#: Headers this much before the first token were not sent together with it.
HEAD_GAP_NS = 1_000_000


def _first_work_ns(scene: Scene, tgid: int, since_ns: int) -> int | None:
    """When the front first sent this runner a request: it knows then that it is ready."""
    times = [
        o.runner_arrival_ns
        for o in scene.others
        if o.runner == tgid and o.runner_arrival_ns is not None
    ]
    if scene.hop_ns is not None and tgid == scene.runner:
        times.append(scene.hop_ns)
    return min((t for t in times if t >= since_ns), default=None)


def _answered_ns(scene: Scene, tree: frozenset[int], since_ns: int) -> int | None:
    """When the runner was first seen ready: a health check said so, or it began to listen."""
    times = [
        p.head_ns if p.head_ns is not None else p.arrival_ns
        for p in scene.e.polls
        if p.server_tgid in tree and p.status == 200
    ]
    times += [x.listen_ns for x in scene.e.lives if x.tgid in tree and x.listen_ns is not None]
    return min((t for t in times if t >= since_ns), default=None)


def _make(
    scene: Scene, tgid: int, begin: int, *, wake: bool = False, died: int | None = None
) -> Start:
    tree = descendants(scene.e.lives, tgid)
    first_work = None if wake else _first_work_ns(scene, tgid, begin)
    head = early_head_ns(scene.serving, program_of(scene)) if tgid == scene.runner else None
    last = scene.end_ns if died is None else min(died, scene.end_ns)
    until = last if head is None else min(head, last)
    brought: tuple[Bulk, ...] = ()
    if first_work is not None:
        brought = tuple(bulks(scene, tree, begin, min(until, first_work)))
    brought = brought or tuple(bulks(scene, tree, begin, until))
    opens = [o.ts_ns for o in scene.e.opens if o.tgid in tree and (o.dev, o.ino) in scene.weights]
    times = [t for t in (*opens, *(s.ts_ns for s in scene.spans_of(tree))) if begin <= t < until]
    access = min(times, default=None)
    loaded = max((b.end_ns for b in brought), default=begin if access is None else access)
    noticed = _answered_ns(scene, tree, loaded) if died is None else None
    known = [t for t in (first_work, head, noticed) if t is not None and t >= loaded]
    unfinished = died is not None or (token_ns(scene.e.request) is None and scene.hop_ns is None)
    ready = known[0] if known else last if unfinished else loaded
    return Start(tgid, tree, wake, begin, access, brought, max(ready, loaded), noticed)


def program_of(scene: Scene) -> str | None:
    command = scene.life.command if scene.life else None
    if command is not None:
        return command.program
    return scene.e.program if scene.front_serves else None


def _was_ready(scene: Scene, life: Life) -> bool:
    """Whether its start was over when the request came."""
    if life.fork_ns is None or scene.e.resident_before is True:
        return True
    if life.fork_ns >= scene.start_ns:
        return False
    work = _first_work_ns(scene, life.tgid, life.fork_ns)
    if work is not None:
        return work < scene.start_ns
    tree = descendants(scene.e.lives, life.tgid)
    brought = bulks(scene, tree, life.fork_ns, scene.end_ns)
    return scene.e.resident_before is None and all(b.end_ns < scene.start_ns for b in brought)


def _started(scene: Scene, life: Life, died: int | None) -> Start | None:
    if life.fork_ns is None or life.fork_ns >= scene.end_ns or _was_ready(scene, life):
        return None
    start = _make(scene, life.tgid, life.fork_ns, died=died)
    return start if start.ready_ns > scene.start_ns else None


def _woken(scene: Scene) -> Start | None:
    """The same process opens its weights again and brings them in."""
    if scene.runner is None:
        return None
    begin = scene.hop_ns if scene.hop_ns is not None else scene.read_end_ns
    head = early_head_ns(scene.serving, program_of(scene))
    until = head if head is not None else scene.end_ns
    opened = {((o.dev, o.ino), o.ts_ns) for o in scene.e.opens if o.tgid in scene.tree}
    brought = [
        b
        for b in bulks(scene, scene.tree, 0, until)
        if b.end_ns > scene.start_ns and (b.key, b.open_ns) in opened
    ]
    if not brought:
        return None
    since = min(begin, *(b.open_ns for b in brought))
    start = _make(scene, scene.runner, since, wake=True)
    return start if start.bulks else None


def of(scene: Scene) -> list[Start]:
    """The starts this request sat through, the one that served it last."""
    found = [_started(scene, x, x.exit_ns) for x in scene.failures]
    if scene.life is not None and scene.runner != scene.e.front:
        gone = scene.life.exit_ns
        died = gone if gone is not None and gone <= scene.end_ns else None
        found.append(_started(scene, scene.life, died))
    if not any(found):
        found.append(_woken(scene))
    return [s for s in found if s is not None]


def claims(
    scene: Scene, start: Start, disk: Disk, held: Iterable[Range] = ()
) -> Iterator[Interval]:
    """`held`: when it is known to have been at something else than finding out what fits."""
    load = start.load_ns
    last = min(start.ready_ns, scene.end_ns)
    access = start.access_ns
    if not start.wake:
        exec_end = next((t for t in (access, load) if t is not None), last)
        yield from scene.claim("spawn.exec", start.begin_ns, exec_end, tgid=start.tgid)
    fit = start.begin_ns if start.wake else access
    if fit is not None:
        for begin, end in subtract([(fit, last if load is None else load)], held):
            yield from scene.claim("spawn.fit", begin, end, tgid=start.tgid)
    for bulk in start.bulks:
        yield from bulk_claims(scene, bulk, disk)
    if load is not None:
        yield from inserted_by(scene, start.tree, load, last)
        loaded = min(b.end_ns for b in start.bulks)
        yield from scene.claim("init.rest", loaded, last, tgid=start.tgid)
        if start.noticed_ns is not None:
            yield from scene.claim("init.poll", start.noticed_ns, last, tgid=start.tgid)


def decoy_claims(scene: Scene, until_ns: int) -> Iterator[Interval]:
    """Processes that look at devices and go, before the runner loads."""
    others = [
        x.fork_ns for x in scene.e.lives
        if x.fork_ns is not None and x.tgid not in scene.tree and x not in scene.failures
        and may_run_models(scene.e, x) and role(x) != "decoy" and x.fork_ns < until_ns
    ]  # fmt: skip
    for life in scene.e.lives:
        if life.fork_ns is not None and life.fork_ns < max(others, default=0):
            continue  # it belongs to the start of another runner
        if role(life) == "decoy" and life.fork_ns is not None:
            end = until_ns if life.exit_ns is None else min(life.exit_ns, until_ns)
            yield from scene.claim("spawn.device", life.fork_ns, end, tgid=life.tgid)
