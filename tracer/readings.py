"""Readings of devices, as records tell of them. Pure and bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tracer.records import Telemetry

MAX_READINGS = 4096
#: Of one request: readings are samples, so a long one keeps every second, or third, ...
MAX_OF_REQUEST = 400


class Readings:
    """In order of time."""

    def __init__(self) -> None:
        self._kept: list[Telemetry] = []

    def feed(self, record: Telemetry) -> None:
        self._kept.append(record)
        if len(self._kept) > 1 and record.ts_ns < self._kept[-2].ts_ns:
            self._kept.sort(key=_order)
        del self._kept[:-MAX_READINGS]

    def of(self, tgids: Iterable[int], start_ns: int, end_ns: int) -> list[Telemetry]:
        """Of devices that one of these processes held, in the window."""
        ours = frozenset(tgids)
        found = [
            r
            for r in self._kept
            if start_ns <= r.ts_ns <= end_ns
            and any(h.tgid in ours and not h.gone for h in r.holders)
        ]
        step = -(-len(found) // MAX_OF_REQUEST)
        if step <= 1:
            return found
        seen: Counter[str] = Counter()
        kept = []
        for reading in found:
            if seen[reading.device] % step == 0:
                kept.append(reading)
            seen[reading.device] += 1
        return kept[:MAX_OF_REQUEST]

    def prune(self, horizon_ns: int) -> None:
        """Forget what is older."""
        self._kept = [r for r in self._kept if r.ts_ns >= horizon_ns]

    def records(self) -> Iterator[Telemetry]:
        yield from self._kept


def _order(record: Telemetry) -> int:
    return record.ts_ns
