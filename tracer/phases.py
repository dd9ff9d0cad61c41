"""From overlapping claims to a disjoint tiling of the window that sums exactly."""

from __future__ import annotations

from heapq import heappop, heappush

from tracer import codes
from tracer.derived import PHASES, Interval, Phases, Timeline

_STAGES = codes.by_rank()
_OTHER = "other.rest"


class _Active:
    """Claims open at the sweep's instant, by rank of their stage."""

    def __init__(self) -> None:
        self.count = [0] * len(_STAGES)
        self.ranks = 0  # bit per rank with an open claim
        self._heaps: list[list[tuple[int, Interval]]] = [[] for _ in _STAGES]

    def open(self, rank: int, nth: int, claim: Interval) -> None:
        self.count[rank] += 1
        self.ranks |= 1 << rank
        heappush(self._heaps[rank], (nth, claim))

    def close(self, rank: int) -> None:
        self.count[rank] -= 1
        if not self.count[rank]:
            self.ranks &= ~(1 << rank)

    def winner(self, now: int) -> tuple[str, Interval] | None:
        """The first rank's first claim, in order of the input."""
        if not self.ranks:
            return None
        rank = (self.ranks & -self.ranks).bit_length() - 1
        heap = self._heaps[rank]
        while heap[0][1].end_ns <= now:
            heappop(heap)
        return _STAGES[rank], heap[0][1]

    def phases(self) -> list[str]:
        """Phases with an open claim, the winner first."""
        found: dict[str, None] = {}
        left = self.ranks
        while left:
            rank = (left & -left).bit_length() - 1
            found[_STAGES[rank].partition(".")[0]] = None
            left &= left - 1
        return list(found)


def _clipped(t: Timeline) -> list[tuple[int, int, int, Interval]]:
    """(start, end, rank, claim) of claims that hold an instant of the window."""
    found = []
    for claim in t.claims:
        start, end = max(claim.start_ns, t.start_ns), min(claim.end_ns, t.end_ns)
        if end > start:
            found.append((start, end, codes.rank(codes.stage_of(claim.stage)), claim))
    return found


def split(t: Timeline) -> Phases:
    """Give each instant of the window to the first claimant in `codes.PRIORITY`.

    Instants nobody claims are `other`. What a winner hides is summed under `hidden+winner`.
    """
    claims = _clipped(t)
    events = sorted(
        [(start, 1, nth) for nth, (start, _, _, _) in enumerate(claims)]
        + [(end, 0, nth) for nth, (_, end, _, _) in enumerate(claims)]
    )
    active = _Active()
    intervals: list[Interval] = []
    overlaps: dict[str, int] = {}
    at = t.start_ns
    for now, opens, nth in events:
        if now > at:
            _emit(active, at, now, intervals, overlaps)
            at = now
        rank, claim = claims[nth][2], claims[nth][3]
        if opens:
            active.open(rank, nth, claim)
        else:
            active.close(rank)
    if t.end_ns > at:
        _emit(active, at, t.end_ns, intervals, overlaps)
    return _summed(intervals, overlaps)


def _emit(
    active: _Active, start: int, end: int, intervals: list[Interval], overlaps: dict[str, int]
) -> None:
    won = active.winner(start)
    stage, claim = won if won else (_OTHER, None)
    new = Interval(
        stage=stage,
        start_ns=start,
        end_ns=end,
        estimate=claim.estimate if claim else False,
        tgid=claim.tgid if claim else None,
        tid=claim.tid if claim else None,
    )
    last = intervals[-1] if intervals else None
    if last and (last.stage, last.estimate, last.tgid, last.tid) == (
        new.stage, new.estimate, new.tgid, new.tid,
    ):  # fmt: skip
        intervals[-1] = Interval(
            stage=stage, start_ns=last.start_ns, end_ns=end, estimate=new.estimate,
            tgid=new.tgid, tid=new.tid,
        )  # fmt: skip
    else:
        intervals.append(new)
    first, *hidden = active.phases() or ["other"]
    for phase in hidden:
        key = f"{phase}+{first}"
        overlaps[key] = overlaps.get(key, 0) + end - start


def _summed(intervals: list[Interval], overlaps: dict[str, int]) -> Phases:
    phases: dict[str, int] = dict.fromkeys(PHASES, 0)
    stages: dict[str, int] = {}
    for x in intervals:
        took = x.end_ns - x.start_ns
        phases[x.stage.partition(".")[0]] += took
        stages[x.stage] = stages.get(x.stage, 0) + took
    return Phases(
        intervals=tuple(intervals),
        phases_ns=phases,
        stages_ns={name: stages[name] for name in codes.STAGES if name in stages},
        overlaps_ns=dict(sorted(overlaps.items())),
    )
