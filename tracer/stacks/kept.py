"""Samples of running code, while they may be needed. Pure and bounded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from tracer.records import Samples

#: Stacks kept for all processes, and those that one request's evidence holds.
MAX_KEPT = 8000
MAX_STACKS = 2000


class Stacks:
    """Samples as they came; of too many each so-manieth."""

    def __init__(self) -> None:
        self._kept: list[Samples] = []
        self._count = 0

    def feed(self, record: Samples) -> None:
        self._kept.append(record)
        self._count += len(record.stacks)
        if self._count > MAX_KEPT:
            self._kept = list(thinned(self._kept, MAX_KEPT // 2))
            self._count = sum(len(s.stacks) for s in self._kept)

    def of(self, tgids: Collection[int], start_ns: int, end_ns: int) -> tuple[Samples, ...]:
        """Those of these processes that touch the window; of too many each so-manieth."""
        found = [
            s
            for s in self._kept
            if s.tgid in tgids and s.end_ns > start_ns and s.ts_ns < end_ns and s.stacks
        ]
        return thinned(sorted(found, key=_order), MAX_STACKS)

    def prune(self, horizon_ns: int) -> None:
        """Forget what is older than `horizon_ns`."""
        self._kept = [s for s in self._kept if s.end_ns >= horizon_ns]
        self._count = sum(len(s.stacks) for s in self._kept)

    def records(self) -> Iterator[Samples]:
        yield from self._kept


def _order(samples: Samples) -> tuple[int, int, tuple[str, ...], tuple[tuple[int, ...], ...]]:
    return samples.ts_ns, samples.tgid, samples.modules, samples.stacks


def thinned(records: Iterable[Samples], most: int) -> tuple[Samples, ...]:
    """At most so many stacks: each so-manieth of them, standing for those left out as well."""
    every = list(records)
    total = sum(len(s.stacks) for s in every)
    step = -(-total // most)
    if step <= 1:
        return tuple(every)
    found, place = [], 0
    for samples in every:
        first = -place % step
        place += len(samples.stacks)
        stacks = tuple((step * count, *frames) for count, *frames in samples.stacks[first::step])
        if stacks:
            found.append(msgspec.structs.replace(samples, stacks=stacks))
    return tuple(found)
