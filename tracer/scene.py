"""One request's evidence put in order: the window, who is who, which files are weights.

What follows (startup, eviction, waiting) reads a `Scene` only. Any evidence is taken, times that
run backwards included: everything is clipped to the window and empty claims are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tracer.derived import Interval
from tracer.evidence import Evidence, Exchange, Life, Other
from tracer.http.endpoints import ENDPOINTS
from tracer.records import File, Span

Key = tuple[int, int]
Range = tuple[int, int]

#: A file this large that nothing identified may be weights, where no file was identified at all.
LARGE_FILE_BYTES = 16 << 20


def streams(x: Exchange) -> bool:
    """Whether the reply comes in pieces, so that a first token can be told from the last."""
    if x.event_stream:
        return True
    if x.stream is not None:
        return x.stream
    known = ENDPOINTS.get(x.endpoint) if x.endpoint is not None else None
    return bool(known and known.streams)


def failed(x: Exchange) -> bool:
    return x.error or (x.status is not None and x.status >= 400)


def token_ns(x: Exchange) -> int | None:
    """When the first token left; of a whole reply the last byte. Never before arrival."""
    if streams(x):
        at = x.first_token_ns
    else:
        at = x.end_ns if x.why == "complete" and not failed(x) else None
    return None if at is None else max(at, x.arrival_ns)


def _latest_ns(e: Evidence) -> int:
    """Of an exchange still open: the last time anything is known of."""
    times = [e.request.arrival_ns]
    times += [t for t in (e.request.head_ns, e.request.read_ns, e.request.body_ns) if t is not None]
    times += [s.end_ns for s in e.spans]
    times += [i.end_ns for i in e.inserts]
    for life in e.lives:
        times += [t for t in (life.fork_ns, life.exec_ns, life.exit_ns) if t is not None]
    return max(times)


def union(ranges: Iterable[Range]) -> list[Range]:
    """Disjoint sorted ranges that cover the same instants."""
    out: list[Range] = []
    for start, end in sorted(r for r in ranges if r[1] > r[0]):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def subtract(ranges: Iterable[Range], holes: Iterable[Range]) -> list[Range]:
    """What of `ranges` no hole covers."""
    cuts = union(holes)
    out: list[Range] = []
    i = 0
    for start, end in union(ranges):
        at = start
        while i < len(cuts) and cuts[i][1] <= at:
            i += 1
        j = i
        while j < len(cuts) and cuts[j][0] < end:
            if cuts[j][0] > at:
                out.append((at, cuts[j][0]))
            at = max(at, cuts[j][1])
            j += 1
        if at < end:
            out.append((at, end))
    return out


def length(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)


@dataclass(frozen=True, slots=True)
class Scene:
    """`read_end_ns`: when the whole request was in the server's hands. `hop_ns`: hop arrival.

    `runner`: as evidence says, else the process that evidently was to serve it. `tree`: the
    runner and its descendants. `failures`: runners started for this request that died before.
    """

    e: Evidence
    start_ns: int
    end_ns: int
    read_end_ns: int
    hop_ns: int | None
    runner: int | None
    life: Life | None
    tree: frozenset[int]
    failures: tuple[Life, ...]
    weights: dict[Key, File]
    weights_guessed: bool
    others: tuple[Other, ...]

    @property
    def serving(self) -> Exchange:
        """The exchange with the process that holds the model, as near as it was seen."""
        return self.e.hop or self.e.request

    @property
    def front_serves(self) -> bool:
        return self.runner is not None and self.runner == self.e.front

    def claim(
        self, stage: str, start_ns: int, end_ns: int, *, estimate: bool = False,
        tgid: int | None = None, tid: int | None = None,
    ) -> Iterator[Interval]:  # fmt: skip
        """The claim clipped to the window, or nothing where it is empty."""
        start, end = max(start_ns, self.start_ns), min(end_ns, self.end_ns)
        if end > start:
            yield Interval(
                stage=stage, start_ns=start, end_ns=end, estimate=estimate, tgid=tgid, tid=tid
            )

    def spans_of(self, tgids: frozenset[int]) -> list[Span]:
        """Spans of these processes on weights, in order of time."""
        found = [s for s in self.e.spans if s.tgid in tgids and (s.dev, s.ino) in self.weights]
        return sorted(found, key=lambda s: (s.ts_ns, s.end_ns, s.tid, s.op))


def off_for_good(e: Evidence, group: str) -> bool:
    """Whether a probe group was not there at all: left out, or not to be had."""
    mine = [a for a in e.armed if a.group == group]
    return bool(mine) and not any(a.on or a.why for a in mine)


def descendants(lives: Iterable[Life], root: int) -> frozenset[int]:
    """`root` and every process below it."""
    children: dict[int, list[int]] = {}
    for life in lives:
        children.setdefault(life.ppid, []).append(life.tgid)
    seen, todo = {root}, [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in seen:
                seen.add(child)
                todo.append(child)
    return frozenset(seen)


def role(life: Life) -> str | None:
    return life.command.role if life.command else None


def may_run_models(e: Evidence, life: Life) -> bool:
    """Whether a process may have held a model: it says so, or it served a request."""
    if life.tgid == e.front:
        return False
    return role(life) in ("runner", "single") or any(o.runner == life.tgid for o in e.others)


def life_of(e: Evidence, tgid: int | None, by_ns: int) -> Life | None:
    """The life of a process number: the last one that had begun (numbers are reused)."""
    lives = [x for x in e.lives if x.tgid == tgid]
    begun = [x for x in lives if x.fork_ns is None or x.fork_ns <= by_ns]
    return max(begun or lives, key=lambda x: x.fork_ns or 0, default=None)


def _evident_runner(e: Evidence, end_ns: int) -> int | None:
    """Who was to serve a request that reached no runner: the last one started in its window."""
    started = [
        x for x in e.lives
        if may_run_models(e, x) and x.fork_ns is not None
        and e.request.arrival_ns <= x.fork_ns <= end_ns and _same_model(e, x)
    ]  # fmt: skip
    if started:
        return max(started, key=lambda x: (x.fork_ns or 0, x.tgid)).tgid
    front = life_of(e, e.front, end_ns)
    return e.front if front and role(front) == "single" else None


def _same_model(e: Evidence, life: Life) -> bool:
    """Not another request's start: unknown names are taken as the same."""
    served = {o.model for o in e.others if o.runner == life.tgid}
    if e.request.model is None or e.request.model in served:
        return True
    return not served - {None}


def _weights(e: Evidence) -> tuple[dict[Key, File], bool]:
    known = {(f.dev, f.ino): f for f in e.files if f.fmt}
    if known or not e.files:
        return known, False
    large = {
        (f.dev, f.ino): f for f in e.files
        if f.size >= LARGE_FILE_BYTES and ".so" not in (f.path or "").rpartition("/")[2]
    }  # fmt: skip
    return large, bool(large)


def _failures(e: Evidence, life: Life | None, end_ns: int) -> tuple[Life, ...]:
    """Runners of this request's model that started in its window and died before its own began."""
    if life is None or life.fork_ns is None:
        return ()
    model = life.command.model_path or life.command.model if life.command else None
    dead = [
        x for x in e.lives
        if x is not life and may_run_models(e, x) and x.fork_ns is not None
        and x.exit_ns is not None and model is not None and x.command is not None
        and model in (x.command.model_path, x.command.model)
        and e.request.arrival_ns <= x.fork_ns <= x.exit_ns <= life.fork_ns <= end_ns
    ]  # fmt: skip
    return tuple(sorted(dead, key=lambda x: (x.fork_ns or 0, x.tgid)))


def of(e: Evidence) -> Scene:
    req = e.request
    start = req.arrival_ns
    token = token_ns(req)
    end = token if token is not None else req.end_ns
    end = max(start, end if end is not None else _latest_ns(e))
    runner = e.runner if e.runner is not None else _evident_runner(e, end)
    life = life_of(e, runner, end)
    weights, guessed = _weights(e)
    read_end = max(start, req.read_ns or start, req.body_ns or start)
    return Scene(
        e=e, start_ns=start, end_ns=end, read_end_ns=min(read_end, end),
        hop_ns=None if e.hop is None else min(max(e.hop.arrival_ns, start), end),
        runner=runner, life=life,
        tree=frozenset() if runner is None else descendants(e.lives, runner),
        failures=_failures(e, life, end), weights=weights, weights_guessed=guessed,
        others=tuple(sorted(e.others, key=lambda o: (o.arrival_ns, o.xid))),
    )  # fmt: skip
