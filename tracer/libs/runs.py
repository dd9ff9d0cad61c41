"""Runs of calls: the kernel's numbers to records by the catalogue, and those still growing."""

from __future__ import annotations

from collections.abc import Sequence

from tracer.kernel import layouts
from tracer.kernel.growing import Growing
from tracer.kernel.maps import Table
from tracer.kernel.wire import RawCall
from tracer.libs.calls import Function
from tracer.records import Call


def growing(key: bytes, value: bytes) -> RawCall | None:
    """The run as it stands; None for a copy taken during an update, or an empty one."""
    tid, call = layouts.RUN_KEY.packer.unpack(key)
    begin, tgid, start, last_entry, follow, last, amount, _, count, end = (
        layouts.RUN_STATE.packer.unpack(value)
    )
    if begin != end or not count:
        return None
    return RawCall(
        ts_ns=start, end_ns=max(start, last_entry), tgid=tgid, tid=tid, call=call, count=count,
        amount=amount, follow_ns=follow, last_ns=last,
    )  # fmt: skip


class Runs:
    """Runs in the kernel; `rows` of the catalogue name them."""

    def __init__(self, table: Table, rows: Sequence[Function]) -> None:
        self._rows = rows
        self._growing = Growing(table, layouts.RUN_STATE, growing, self.record)

    def record(self, raw: RawCall) -> Call | None:
        """None for a row that is in no catalogue."""
        if raw.call >= len(self._rows) or not raw.count:
            return None
        row = self._rows[raw.call]
        return Call(
            ts_ns=raw.ts_ns, end_ns=raw.end_ns, tgid=raw.tgid, tid=raw.tid, library=row.library,
            layer=row.layer, symbol=row.symbol, what=row.what, count=raw.count,
            bytes=raw.amount if row.unit == "bytes" else None,
            tokens=raw.amount if row.unit == "tokens" else None,
            follow_ns=raw.follow_ns, last_ns=raw.last_ns or None,
        )  # fmt: skip

    def sweep(self, now_ns: int) -> list[Call]:
        """Everything that changed since the last sweep."""
        return self._growing.sweep(now_ns)

    def end_of(self, tgid: int) -> list[Call]:
        """A process ended: its runs, taken out."""
        return self._growing.end_of(tgid)
