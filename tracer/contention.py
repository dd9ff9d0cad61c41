"""Whether the processor was the reason why a prompt was slow: others used it, or a quota held it.

From samples some times a second, so what is between two is taken to be even.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec

from tracer.derived import Timeline
from tracer.evidence import Evidence
from tracer.records import Ran
from tracer.scene import Scene
from tracer.weights import share

#: What is to explain an excess has to be at least this part of it.
_PART = 2
#: The kernel counts a group as held back later than its threads wait: two thirds of it, seen.
_HELD_PART = 4


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """In the prompt: ns that the runner's threads, all together, waited for a processor; ns of
    processor time that programs outside of the server used; ns that a CPU quota held it back, of
    each processor, 0 where it has none."""

    waited_ns: int
    others_ns: int
    throttled_ns: int


def of(s: Scene, t: Timeline) -> Processor | None:
    """What was seen of it from the prompt's start to the first token; None: nothing was."""
    start = t.start_ns if t.prompt_start_ns is None else t.prompt_start_ns
    mine = [r for r in s.e.ran if r.tgid in s.tree]
    if not any(r.ts_ns > start for r in mine) or start >= t.end_ns:
        return None
    idle = _idle_since(s.e)

    def spent(samples: Iterable[Ran], what: Callable[[Ran], int], quiet: bool = True) -> int:
        return _spent(samples, what, start, t.end_ns, idle if quiet else None)

    ran = spent(s.e.ran, lambda r: r.ran_ns)
    host = spent(_of_one(mine, s.runner), lambda r: r.host_ns, quiet=False)
    quotas = [r for r in _of_one(mine, s.runner) if r.throttled_ns is not None]
    return Processor(
        waited_ns=spent(mine, lambda r: r.waited_ns),
        others_ns=max(0, host - ran),
        throttled_ns=spent(quotas, lambda r: r.throttled_ns or 0),
    )


def cause(found: Processor | None, excess_ns: int) -> str | None:
    """The code for a prompt that took so much longer than its size lets expect."""
    if found is None or excess_ns <= 0:
        return None
    if found.waited_ns * _PART < excess_ns:
        return None
    if found.throttled_ns * _HELD_PART >= excess_ns:
        return "prefill.throttled"
    # The server's own threads may be more than there are processors: then nobody else ran.
    return "prefill.contention" if found.others_ns * _PART >= excess_ns else None


def _of_one(samples: Iterable[Ran], runner: int | None) -> list[Ran]:
    return [r for r in samples if r.tgid == runner]


def _idle_since(e: Evidence) -> int | None:
    """Since when the server had nothing to do when this request came; None: it had."""
    arrival = e.request.arrival_ns
    ends = [o.end_ns for o in e.others if o.arrival_ns < arrival]
    if any(end is None or end > arrival for end in ends):
        return None
    return arrival


def _spent(
    samples: Iterable[Ran], what: Callable[[Ran], int], start: int, end: int, idle: int | None
) -> int:
    """The growth of a count in [start, end), of all processes. Who was idle until `idle` spent
    nothing before."""
    of_each: dict[int, list[Ran]] = {}
    for r in sorted(samples, key=lambda r: r.ts_ns):
        of_each.setdefault(r.tgid, []).append(r)
    total = 0
    for mine in of_each.values():
        for a, b in pairwise(mine):
            since = a.ts_ns if idle is None else max(a.ts_ns, min(idle, b.ts_ns))
            total += share(max(0, what(b) - what(a)), since, b.ts_ns, start, end)
    return total
