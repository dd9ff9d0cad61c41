"""A disk that had been asleep: the first read of weights took seconds, the next ones none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tracer.derived import Interval
from tracer.records import Span
from tracer.scene import Key, Scene, length, subtract
from tracer.weights import far_stage

#: No disk at work takes as long for one read; one that spins up takes 3 to 12 s.
ASLEEP_NS = 1_000_000_000
#: A later wait of this part of the first one says that the disk is slow, not that it slept.
_LATER_PART = 4
#: At least this part of the file has to come from the disk after it.
_REST_PART = 4
#: What waits for the disk is one call, or the few that were coalesced with it.
_FEW = 4


@dataclass(frozen=True, slots=True)
class Spinup:
    """The first read of weights from a disk, or what of it was waiting."""

    key: Key
    start_ns: int
    end_ns: int
    tgid: int
    tid: int


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Pages, or a direct read, of weights: from when they were asked for until they came, as far
    as that is known."""

    key: Key
    start_ns: int
    end_ns: int
    bytes: int


def of(s: Scene) -> Spinup | None:
    """The wait for the disk that held the weights, if it had been asleep."""
    spans = [x for x in s.spans_of(s.tree) if x.op != "munmap"]
    came = _arrivals(s, spans)
    if not came:
        return None
    first = came[0]
    waiting = _waiting(spans, first, came[1:])
    if waiting is None or waiting.end_ns - waiting.start_ns < ASLEEP_NS:
        return None
    later = [x for x in came[1:] if x.end_ns > waiting.end_ns]
    rest = sum(x.bytes for x in later)
    if rest * _REST_PART < s.weights[first.key].size:
        return None
    longest = max(_waits(spans, later), default=0)
    asleep = longest * _LATER_PART <= waiting.end_ns - waiting.start_ns
    return waiting if asleep else None


def claims(s: Scene) -> Iterator[Interval]:
    """The wait is the disk's, also where only the header was to be read, or what fits found out."""
    found = of(s)
    if found is not None:
        stage = far_stage(s, found.key)
        yield from s.claim(stage, found.start_ns, found.end_ns, tgid=found.tgid, tid=found.tid)


def _arrivals(s: Scene, spans: list[Span]) -> list[_Arrival]:
    """In order; of the device of the first one alone."""
    found = [
        _Arrival((i.dev, i.ino), i.ts_ns, i.end_ns, i.pages * 4096)
        for i in s.e.inserts
        if (i.dev, i.ino) in s.weights and s.start_ns <= i.ts_ns < s.end_ns
    ]
    found += [
        _Arrival((x.dev, x.ino), x.ts_ns, x.end_ns, x.bytes)
        for x in spans
        if x.op == "read_direct" and s.start_ns <= x.ts_ns < s.end_ns
    ]
    found.sort(key=lambda x: (x.start_ns, x.end_ns))
    return [x for x in found if x.key[0] == found[0].key[0]]


def _waiting(spans: list[Span], first: _Arrival, later: list[_Arrival]) -> Spinup | None:
    """The call that asked for the first pages, until more came or it returned."""
    around = [
        x for x in spans
        if (x.dev, x.ino) == first.key and x.ts_ns <= first.start_ns <= x.end_ns
        and (x.count <= _FEW or x.op == "mmap")
    ]  # fmt: skip
    call = max(around, key=lambda x: x.end_ns, default=None)
    if call is None:
        return None
    begin = first.start_ns
    direct = call.op == "read_direct"
    more = [x.start_ns for x in later if not direct and x.start_ns > first.end_ns]
    return Spinup(first.key, begin, min([call.end_ns, *more]), call.tgid, call.tid)


def _waits(spans: list[Span], came: list[_Arrival]) -> Iterator[int]:
    """How long calls on weights waited between what came and what came next."""
    calls = [(x.ts_ns, x.end_ns) for x in spans]
    for a, b in pairwise(came):
        gap = [(a.end_ns, b.start_ns)]
        yield length(gap) - length(subtract(gap, calls)) if b.start_ns > a.end_ns else 0
