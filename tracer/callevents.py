"""Calls of watched processes into user libraries, as records tell of them. Pure and bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from tracer.records import AnyRecord, Cached, Call, DeviceCall, Library

MAX_CALLS = 20_000
#: Opens in compile caches, of each process: the last ones.
MAX_CACHED = 1000
FEW_HITS = 4

CallKey = tuple[int, str, str, int]
_Call = TypeVar("_Call", Call, DeviceCall)


class CallEvents:
    """Runs of calls by process, and the libraries of which calls are seen."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[CallKey, Call]] = {}
        self._libraries: dict[int, dict[tuple[str, str], Library]] = {}
        self._cached: dict[int, list[Cached]] = {}
        self._devices: dict[int, dict[CallKey, DeviceCall]] = {}
        self.dropped = 0

    def feed(self, record: Library | Call | Cached | DeviceCall) -> None:
        match record:
            case Library():
                self._libraries.setdefault(record.tgid, {})[record.name, record.path] = record
            case Call():
                key = (record.tid, record.library, record.symbol, record.ts_ns)
                self._calls.setdefault(record.tgid, {})[key] = record
            case Cached():
                self._cached.setdefault(record.tgid, []).append(record)
            case DeviceCall():
                key = (record.tid, record.device, record.what, record.ts_ns)
                self._devices.setdefault(record.tgid, {})[key] = record

    def calls(self, tgids: Iterable[int], start_ns: int, end_ns: int) -> list[Call]:
        """Runs that touch the window, in order of time."""
        found = [
            c
            for tgid in tgids
            for c in self._calls.get(tgid, {}).values()
            if c.end_ns + (c.last_ns or 0) >= start_ns and c.ts_ns <= end_ns
        ]
        return sorted(found, key=lambda c: (c.ts_ns, c.tid, c.library, c.symbol))

    def devices(self, tgids: Iterable[int], start_ns: int, end_ns: int) -> list[DeviceCall]:
        """Runs of driver calls that touch the window, in order of time."""
        found = [
            c
            for tgid in tgids
            for c in self._devices.get(tgid, {}).values()
            if c.end_ns >= start_ns and c.ts_ns <= end_ns
        ]
        return sorted(found, key=lambda c: (c.ts_ns, c.tid, c.device, c.what))

    def cached(self, tgids: Iterable[int], start_ns: int, end_ns: int) -> list[Cached]:
        """Opens in compile caches in the window, in order of time, after a few earlier ones: of
        what was found, and of what is only written now."""
        every = [c for tgid in tgids for c in self._cached.get(tgid, []) if c.ts_ns <= end_ns]
        within = [c for c in every if c.ts_ns >= start_ns]
        if not within:
            return []
        now = {(c.tgid, c.stem) for c in within}
        written = {(c.tgid, c.stem) for c in every if c.write}
        earlier = [c for c in every if c.ts_ns < start_ns and not c.write]
        hits = [c for c in earlier if (c.tgid, c.stem) not in written][:FEW_HITS]
        begun = [c for c in earlier if (c.tgid, c.stem) in now & written]
        return sorted([*hits, *begun, *within], key=lambda c: (c.ts_ns, c.tid, c.stem, c.write))

    def libraries(self, tgids: Iterable[int], until_ns: int) -> list[Library]:
        """Those seen by `until_ns`, by process."""
        return [
            library
            for tgid in tgids
            for library in self._libraries.get(tgid, {}).values()
            if library.ts_ns <= until_ns
        ]

    def restart(self, tgid: int, ts_ns: int) -> None:
        """Another program: its libraries are not mapped any more."""
        known = self._libraries.get(tgid, {})
        for key in [k for k, library in known.items() if library.ts_ns < ts_ns]:
            del known[key]

    def prune(self, horizon_ns: int, gone: Iterable[int]) -> None:
        """Forget runs that ended before `horizon_ns`, and all of processes that are `gone`."""
        for tgid in gone:
            self._calls.pop(tgid, None)
            self._libraries.pop(tgid, None)
            self._cached.pop(tgid, None)
            self._devices.pop(tgid, None)
        for opens in self._cached.values():
            del opens[:-MAX_CACHED]
        self.dropped += _prune(self._calls, horizon_ns) + _prune(self._devices, horizon_ns)

    def records(self) -> Iterator[AnyRecord]:
        for known in self._libraries.values():
            yield from known.values()
        for runs in self._calls.values():
            yield from runs.values()
        for opens in self._cached.values():
            yield from opens
        for driven in self._devices.values():
            yield from driven.values()


def _prune(every: dict[int, dict[CallKey, _Call]], horizon_ns: int) -> int:
    """Drop runs that ended before, and the first where there are too many; how many of these."""
    for runs in every.values():
        for key in [k for k, c in runs.items() if c.end_ns < horizon_ns]:
            del runs[key]
    over = dropped = max(0, sum(map(len, every.values())) - MAX_CALLS)
    for runs in every.values():
        cut = min(max(0, over), len(runs))
        for key in list(runs)[:cut]:
            del runs[key]
        over -= cut
    return dropped


def thinned(calls: list[DeviceCall], most: int) -> list[DeviceCall]:
    """No more than `most` runs of driver calls, if it can be: like ones joined, sums kept.

    First those near to each other, then also those of different threads.
    """
    if len(calls) <= most:
        return calls
    begin = min(c.ts_ns for c in calls)
    whole = max(c.end_ns for c in calls) - begin + 1
    found = calls
    for parts, threads in ((64, True), (64, False), (4, False)):
        groups: dict[tuple[object, ...], list[DeviceCall]] = {}
        for c in calls:
            part = (c.ts_ns - begin) * parts // whole
            key = (c.tgid, c.tid if threads else 0, c.device, c.driver, c.what, part)
            groups.setdefault(key, []).append(c)
        found = [_joined(mine) for mine in groups.values()]
        if len(found) <= most:
            break
    return sorted(found, key=lambda c: (c.ts_ns, c.tid, c.device, c.what))


def _joined(calls: list[DeviceCall]) -> DeviceCall:
    """One run of all; threads at once may have been in calls for longer than it lasted."""
    first, last = calls[0], max(calls, key=lambda c: c.end_ns)
    sizes = [c.bytes for c in calls if c.bytes is not None]
    busy = sum(c.busy_ns for c in calls)
    return msgspec.structs.replace(
        first,
        end_ns=last.end_ns,
        count=sum(c.count for c in calls),
        busy_ns=min(busy, last.end_ns - first.ts_ns),
        bytes=sum(sizes) if sizes else None,
        failed=sum(c.failed for c in calls),
        number=last.number,
        first=any(c.first for c in calls),
    )
