"""From one request's evidence to claims: intervals that some evidence assigns to a stage.

Claims may overlap; phases.py decides between them. Nothing here raises, whatever the evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tracer import device, drivers, eviction, scene, spinup, startup, unseen, waiting, weights
from tracer.derived import Interval, Timeline
from tracer.evidence import Evidence
from tracer.scene import Range, Scene, length, subtract, union
from tracer.startup import Start
from tracer.waiting import Prompt, Wait

#: A request is named as waited for if at least this much of the wait was for nothing else.
_WAITED_NS = 100_000


def build(e: Evidence) -> Timeline:
    """Claims over arrival to first token (or to the end, where there was none)."""
    s = scene.of(e)
    starts = startup.of(s)
    at = waiting.prompt(s, starts)
    evictions = eviction.of(s, starts[0] if starts else None)
    waits = [
        *waiting.drain(s, starts, evictions),
        *waiting.switch(s, starts),
        *waiting.busy(s, at),
    ]
    evicted = list(eviction.claims(s, evictions, _first(starts)))
    work = [*_work(s, starts, at, waits), *evicted]
    claims = [*work, *(w.claim for w in waits), *_front(s, starts, evicted)]
    missed = unseen.of(s, starts)
    return Timeline(
        start_ns=s.start_ns,
        end_ns=s.end_ns,
        claims=tuple(sorted(_marked(claims, missed), key=_order)),
        prompt_start_ns=at.start_ns,
        triggered_by=_triggered_by(s, starts),
        waited_for=_waited_for(waits, work),
        retry_of=_retry_of(e),
        engine_seen=waiting.engine_seen(s) or _never_reached(s),
        unseen=missed,
    )


def _marked(claims: Iterable[Interval], missed: tuple[Range, ...]) -> Iterator[Interval]:
    """Claims on a time in which something may have gone unseen are estimates there."""
    for x in claims:
        hidden = [(max(a, x.start_ns), min(b, x.end_ns)) for a, b in missed]
        hidden = union(hidden)
        for estimate, ranges in (
            (True, hidden),
            (x.estimate, subtract([(x.start_ns, x.end_ns)], hidden)),
        ):
            for start, end in ranges:
                yield msgspec.structs.replace(x, start_ns=start, end_ns=end, estimate=estimate)


def _first(starts: list[Start]) -> Start | None:
    return starts[0] if starts else None


def _order(x: Interval) -> tuple[int, int, str, int, int, bool]:
    return (x.start_ns, x.end_ns, x.stage, x.tgid or 0, x.tid or 0, x.estimate)


def _never_reached(s: Scene) -> bool:
    """No engine had it yet: the front kept it until it ended."""
    return scene.token_ns(s.e.request) is None and not s.front_serves


def _work(s: Scene, starts: list[Start], at: Prompt, waits: list[Wait]) -> Iterator[Interval]:
    """Spawn, load, init and prefill of the runner that serves this request."""
    disk = weights.Disk(s.e.inserts)
    for start in starts:
        up = list(drivers.bring_up(s, start))
        held = [(x.start_ns, x.end_ns) for x in up if not x.estimate]
        yield from (*up, *startup.claims(s, start, disk, held))
        yield from device.start_claims(s, start)
        yield from drivers.start_claims(s, start)
    yield from device.transfer_claims(s)
    yield from drivers.transfer_claims(s)
    yield from drivers.late_claims(s, starts)
    yield from device.compile_claims(s)
    yield from device.graph_claims(s)
    if starts:
        last = starts[-1]
        yield from startup.decoy_claims(s, last.begin_ns if last.load_ns is None else last.load_ns)
        since = min((b.end_ns for b in last.bulks), default=last.ready_ns)
    else:
        if _never_reached(s) and s.hop_ns is None:
            yield from startup.decoy_claims(s, s.end_ns)
        since = s.read_end_ns if at.start_ns is None else at.start_ns
        if s.life is not None and s.life.fork_ns is None and s.e.resident_before is None:
            since = s.read_end_ns  # it may have been loading since before it was watched
    taken = frozenset(x for start in starts for b in start.bulks for x in b.spans)
    yield from weights.lazy_claims(s, taken, disk, since, s.end_ns)
    yield from spinup.claims(s)
    yield from waiting.prefill(s, at)
    if at.start_ns is None and not _never_reached(s):
        held = [(w.claim.start_ns, w.claim.end_ns) for w in waits]
        for begin, end in subtract([(s.read_end_ns, s.end_ns)], held):
            yield from s.claim("prefill.prompt", begin, end, estimate=True)


def _front(s: Scene, starts: list[Start], evicted: list[Interval]) -> Iterator[Interval]:
    """Bytes arriving or lying unread; then the front finding out whom to send it to."""
    yield from s.claim("queue.socket", s.start_ns, s.read_end_ns)
    if s.front_serves or (s.hop_ns is None and not _never_reached(s)):
        return
    until = s.end_ns if s.hop_ns is None else s.hop_ns
    ours = [(x.begin_ns, x.ready_ns) for x in starts]
    ours += [(x.start_ns, x.end_ns) for x in evicted]
    for begin, end in subtract([(s.read_end_ns, until)], ours):
        yield from s.claim("queue.front", begin, end, tgid=s.e.front)


def _triggered_by(s: Scene, starts: list[Start]) -> int | None:
    """The request in whose window the start fell: the first that waited for this runner."""
    if not starts:
        return None
    start = starts[0]
    begin = start.begin_ns if not start.wake else min(start.begin_ns, start.access_ns or s.end_ns)
    first = eviction.trigger(s, begin, start.tgid)
    if first is not None and first.arrival_ns < s.start_ns:
        return first.id
    return s.e.id if s.start_ns <= begin else None


def _waited_for(waits: Iterable[Wait], work: Iterable[Interval]) -> tuple[int, ...]:
    """Ids of waits that own work does not hide."""
    hidden: list[Range] = [
        (x.start_ns, x.end_ns) for x in work if not x.stage.startswith("prefill.")
    ]
    ids: set[int] = set()
    for wait in waits:
        if length(subtract([(wait.claim.start_ns, wait.claim.end_ns)], hidden)) >= _WAITED_NS:
            ids.update(wait.ids)
    return tuple(sorted(ids))


def _retry_of(e: Evidence) -> tuple[int, ...]:
    """Earlier failed tries of the same body."""
    return tuple(
        sorted(
            o.id
            for o in e.others
            if o.id is not None
            and o.same_body
            and (o.failed or (o.status or 0) >= 400)
            and o.arrival_ns < e.request.arrival_ns
        )
    )
