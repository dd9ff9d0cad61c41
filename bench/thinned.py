"""What a recording made with all probes on would hold, had they come and gone. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from tracer.arming import GROUP, PAGING, Arming, Change, Policy, is_untimed
from tracer.records import (
    AnyRecord,
    Armed,
    Exec,
    Exit,
    Fork,
    Host,
    HttpEnd,
    HttpRequest,
    HttpToken,
    Io,
    Open,
    Process,
    Span,
    Tick,
)
from tracer.weights import share

#: Told in any case, though not how long it took.
_COUNTED = "fault_major"
_READS = ("read", "read_direct")
Range = tuple[int, int]


def what_arming_keeps(
    records: Iterable[AnyRecord], policy: Policy, latency_ns: int = 1_000_000
) -> list[AnyRecord]:
    """The records that a daemon with this policy would have made of the same events.

    `latency_ns`: from what turns the probes on until they are in effect.
    """
    told = list(records)
    turned = _turns(told, policy, latency_ns)
    on = _ranges([armed for _, armed in turned])
    counts = _Counts(told)
    after: dict[int, list[Armed]] = defaultdict(list)
    for place, armed in turned:
        after[place].append(armed)
    kept: list[AnyRecord] = []
    for place, record in enumerate(told):
        kept += _seen(record, on)
        for armed in after[place]:
            beside = msgspec.structs.replace(armed, group=PAGING)
            kept += [armed, beside, *counts.at(armed.ts_ns)]
    return kept


def _turns(told: list[AnyRecord], policy: Policy, latency_ns: int) -> list[tuple[int, Armed]]:
    """What is turned on or off, each with the place in the list where it is told."""
    began_ns = next((r.began_ns for r in told if isinstance(r, Host)), 0)
    first_ns = min((r.ts_ns for r in told if isinstance(r, Tick | HttpRequest)), default=began_ns)
    arming = Arming(policy, first_ns)
    found: list[tuple[int, Armed]] = []

    def turn(place: int, change: Change, ts_ns: int) -> None:
        arming.changed(change, ts_ns)
        found.append((place, Armed(ts_ns=ts_ns, group=GROUP, on=change.on, why=change.why)))

    now_ns = first_ns
    for place, whole in enumerate(told):
        record = whole if arming.on else _untimed(whole)
        # A quiet daemon wakes by itself when it is time; nothing is told of that.
        due_ns = arming.next_ns
        wakes = isinstance(record, Tick | HttpRequest | Fork | Exec) or (
            isinstance(record, Span) and is_untimed(record)
        )
        if wakes and due_ns is not None and due_ns <= record.ts_ns:
            due_ns = max(due_ns, now_ns)
            change = arming.due(due_ns)
            if change is not None:
                turn(place, change, due_ns)
        if isinstance(record, Tick | HttpRequest | HttpToken | HttpEnd | Fork | Exec):
            now_ns = max(now_ns, record.ts_ns)
        arming.feed(record)
        if not arming.on and wakes:
            change = arming.due(record.ts_ns)
            if change is not None:
                turn(place, change, record.ts_ns + latency_ns)
    return found


def _ranges(turned: list[Armed]) -> list[Range]:
    """When the group was on; it was at first."""
    found, since = [], 0
    for armed in turned:
        if armed.on:
            since = armed.ts_ns
        else:
            found.append((since, armed.ts_ns))
    if not turned or turned[-1].on:
        found.append((since, 1 << 63))
    return found


def _seen(record: AnyRecord, on: list[Range]) -> Iterator[AnyRecord]:
    """What of a record would have been seen."""
    if isinstance(record, Open):
        if any(a <= record.ts_ns < b for a, b in on):
            yield record
    elif isinstance(record, Span):
        yield from _parts(record, on)
        if record.op == _COUNTED:
            yield from _untimed_parts(record, on)
    else:
        yield record


def _parts(span: Span, on: list[Range]) -> Iterator[Span]:
    """A single call counts if it was seen to begin and to end, of many those that were."""
    for a, b in on:
        start, end = max(a, span.ts_ns), min(b, span.end_ns)
        if (start, end) == (span.ts_ns, span.end_ns):
            yield span
        elif start < end and span.count > 1:
            whole = (span.ts_ns, span.end_ns)
            count = share(span.count, *whole, start, end)
            if count:
                yield msgspec.structs.replace(
                    span, ts_ns=start, end_ns=end, count=count,
                    bytes=share(span.bytes, *whole, start, end),
                    busy_ns=min(share(span.busy_ns, *whole, start, end), end - start),
                )  # fmt: skip


def _untimed(record: AnyRecord) -> AnyRecord:
    """As it is told while the group is off."""
    if isinstance(record, Span) and record.op == _COUNTED:
        return msgspec.structs.replace(record, busy_ns=0)
    return record


def _untimed_parts(span: Span, on: list[Range]) -> Iterator[AnyRecord]:
    """The rest of the faults, counted."""
    ends = [0, *(end for _, end in on)]
    begins = [*(begin for begin, _ in on), 1 << 63]
    for part in _parts(span, list(zip(ends, begins, strict=True))):
        yield _untimed(part)


class _Counts:
    """What each process had read by then, as far as all probes together tell."""

    def __init__(self, told: list[AnyRecord]) -> None:
        self._spans = [r for r in told if isinstance(r, Span) and r.op in _READS]
        self._lives: dict[int, list[int]] = {}
        for r in told:
            if isinstance(r, Process | Exec):
                self._lives.setdefault(r.tgid, [0 if isinstance(r, Process) else r.ts_ns, 1 << 63])
            elif isinstance(r, Fork):
                self._lives[r.child] = [r.ts_ns, 1 << 63]
            elif isinstance(r, Exit) and r.tgid in self._lives:
                self._lives[r.tgid][1] = r.ts_ns

    def at(self, ts_ns: int) -> Iterator[Io]:
        """The counts that would have been taken then."""
        for tgid, (begin, end) in self._lives.items():
            if begin <= ts_ns < end:
                # A span told again while it grows replaces the one before.
                last = {(s.tid, s.dev, s.ino, s.op, s.ts_ns): s for s in self._spans}
                mine = [s for s in last.values() if s.tgid == tgid and s.end_ns <= ts_ns]
                yield Io(
                    ts_ns=ts_ns,
                    tgid=tgid,
                    read_chars=sum(s.bytes for s in mine),
                    read_bytes=sum(s.bytes for s in mine if s.op == "read_direct"),
                )
