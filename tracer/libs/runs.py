"""Runs of calls: the kernel's numbers to records by the catalogue, and those still growing."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tracer.kernel import layouts
from tracer.kernel.maps import Table
from tracer.kernel.wire import RawCall
from tracer.libs.calls import Function
from tracer.records import Call

_QUIET_NS = 1_000_000_000


class Runs:
    """Remembers what it told, and tells only what changed since."""

    def __init__(self, table: Table, rows: Sequence[Function]) -> None:
        self._table = table
        self._rows = rows
        self._told: dict[bytes, bytes] = {}

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

    def _growing(self, key: bytes, value: bytes) -> Call | None:
        """The run as it stands; None for a copy taken during an update."""
        tid, call = layouts.RUN_KEY.packer.unpack(key)
        begin, tgid, start, last_entry, follow, last, amount, _, count, end = (
            layouts.RUN_STATE.packer.unpack(value)
        )
        if begin != end:
            return None
        return self.record(
            RawCall(
                ts_ns=start,
                end_ns=max(start, last_entry),
                tgid=tgid,
                tid=tid,
                call=call,
                count=count,
                amount=amount,
                follow_ns=follow,
                last_ns=last,
            )
        )

    def sweep(self, now_ns: int) -> list[Call]:
        """Everything that changed since the last sweep; runs of dead threads are taken out."""
        told, found = self._told, []
        self._told = {}
        for key, value in list(self._table.items()):
            call = self._growing(key, value)
            if call is None:
                self._told[key] = b""
                continue
            if told.get(key) != value:
                found.append(call)
            quiet = now_ns - call.end_ns > _QUIET_NS
            if quiet and not os.path.exists(f"/proc/{call.tgid}/task/{call.tid}"):
                self._table.delete(key)
            else:
                self._told[key] = value
        return found

    def end_of(self, tgid: int) -> list[Call]:
        """A process ended: its runs, taken out."""
        found = []
        for key, value in list(self._table.items()):
            if layouts.RUN_STATE.packer.unpack(value)[1] != tgid:
                continue
            self._table.delete(key)
            call = self._growing(key, value)
            if call is not None and self._told.pop(key, None) != value:
                found.append(call)
        return found
