"""The requests of one server, indexed by when they came and when they ended. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from tracer.exchanges import Talk

Order = tuple[int, int, Talk]


def _arrival(talk: Talk) -> Order:
    return talk.arrival_ns, talk.xid, talk


def _end(talk: Talk) -> Order:
    return talk.end_ns or talk.arrival_ns, talk.xid, talk


def _drop(kept: list[Order], order: Order) -> None:
    i = bisect_left(kept, order[:2], key=_rank)
    if i < len(kept) and kept[i][2] is order[2]:
        del kept[i]


def _rank(order: Order) -> tuple[int, int]:
    return order[:2]


class Site:
    """All numbered requests that are kept: `open` until they are reported for good.

    `polls`: health exchanges; `loose`: hops on behalf of no request.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.open: dict[int, Talk] = {}
        self.polls: list[Talk] = []
        self.loose: list[Talk] = []
        self.last_model: str | None = None
        self.last_arrival_ns = 0
        self._requests: dict[int, Talk] = {}
        self._arrivals: list[Order] = []
        self._ends: list[Order] = []
        self._by_runner: dict[int | None, list[Order]] = {}
        self._failed: dict[int, Talk] = {}

    def __iter__(self) -> Iterator[Talk]:
        return iter(self._requests.values())

    def get(self, xid: int) -> Talk | None:
        return self._requests.get(xid)

    def add(self, talk: Talk) -> None:
        self._requests[talk.xid] = talk
        insort(self._arrivals, _arrival(talk), key=_rank)
        if talk.done:
            self.close(talk)
        else:
            self.open[talk.xid] = talk
            waiting = [r.arrival_ns for r in self.alive(talk.arrival_ns) if _waits(r, talk)]
            talk.since_ns = min(waiting, default=talk.arrival_ns)

    def close(self, talk: Talk) -> None:
        """The request was reported for good: its end and runner are settled."""
        self.open.pop(talk.xid, None)
        talk.done = True
        insort(self._ends, _end(talk), key=_rank)
        insort(self._by_runner.setdefault(talk.runner, []), _end(talk), key=_rank)
        if talk.failed:
            self._failed[talk.xid] = talk

    def forget(self, talk: Talk) -> None:
        self.open.pop(talk.xid, None)
        self._requests.pop(talk.xid, None)
        self._failed.pop(talk.xid, None)
        _drop(self._arrivals, _arrival(talk))
        _drop(self._ends, _end(talk))
        mine = self._by_runner.get(talk.runner, [])
        _drop(mine, _end(talk))
        if not mine:
            self._by_runner.pop(talk.runner, None)

    def alive(self, ts_ns: int) -> Iterator[Talk]:
        """Requests that are open, or were at `ts_ns` or began later."""
        yield from self.open.values()
        for _, _, talk in self._ends[bisect_left(self._ends, (ts_ns, 0), key=_rank) :]:
            yield talk

    def ended(self, runner: int | None, before_ns: int) -> Iterator[Talk]:
        """Requests a runner served that ended before a time, the last first."""
        ends = self._by_runner.get(runner, [])
        for i in range(bisect_left(ends, (before_ns, 0), key=_rank) - 1, -1, -1):
            yield ends[i][2]

    def failures(self) -> Iterator[Talk]:
        return iter(self._failed.values())

    def before(self, talk: Talk) -> Iterator[Talk]:
        """Requests that arrived before this one, the last first."""
        for i in range(bisect_left(self._arrivals, _arrival(talk)[:2], key=_rank) - 1, -1, -1):
            yield self._arrivals[i][2]

    def closed(self) -> list[Talk]:
        """Requests reported for good, by their end."""
        return [talk for _, _, talk in self._ends]

    def is_last(self, talk: Talk) -> bool:
        """Whether no later request of the same runner is reported for good."""
        ends = self._by_runner.get(talk.runner)
        return bool(ends) and ends is not None and ends[-1][2] is talk


def _waits(one: Talk, newcomer: Talk) -> bool:
    """Whether a request was not served yet when another one arrived."""
    served = one.served_ns
    return one.arrival_ns < newcomer.arrival_ns and (served is None or served > newcomer.arrival_ns)
