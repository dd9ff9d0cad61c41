"""Runs of driver calls: the kernel's numbers to records, and those still growing."""

from __future__ import annotations

import os
from collections.abc import Callable

from tracer.errors import RecordError
from tracer.kernel import layouts, wire
from tracer.kernel.maps import Table
from tracer.kernel.wire import RawDevice
from tracer.records import DeviceCall

_QUIET_NS = 1_000_000_000
Named = Callable[[RawDevice], DeviceCall | None]


def growing(key: bytes, value: bytes) -> RawDevice | None:
    """The run as it stands; None for a copy taken during an update, or an odd one."""
    tid, rdev, what, _ = layouts.DEVICE_RUN_KEY.packer.unpack(key)
    begin, tgid, start, end, busy, size, driver, count, failed, number, _, finish = (
        layouts.DEVICE_RUN.packer.unpack(value)
    )
    if begin != finish or not count:
        return None
    try:
        return wire.device(
            start=start, end=end, busy=busy, size=size, tgid=tgid, tid=tid, rdev=rdev,
            driver=driver, count=count, failed=failed, what=what, number=number,
        )  # fmt: skip
    except RecordError:
        return None


class DeviceRuns:
    """Remembers what it told, and tells only what changed since. `named` makes the records."""

    def __init__(self, table: Table, holders: Table, named: Named) -> None:
        self._table = table
        self._holders = holders
        self._named = named
        self._told: dict[bytes, bytes] = {}

    def sweep(self, now_ns: int) -> list[DeviceCall]:
        """Everything that changed since the last sweep; runs of dead threads are taken out."""
        told, found = self._told, []
        self._told = {}
        for key, value in list(self._table.items()):
            raw = growing(key, value)
            if raw is None:
                self._told[key] = b""
                continue
            call = self._named(raw) if told.get(key) != value else None
            if call is not None:
                found.append(call)
            quiet = now_ns - raw.end_ns > _QUIET_NS
            if quiet and not os.path.exists(f"/proc/{raw.tgid}/task/{raw.tid}"):
                self._table.delete(key)
            else:
                self._told[key] = value
        return found

    def end_of(self, tgid: int) -> list[DeviceCall]:
        """A process ended: its runs, taken out."""
        for held, _ in list(self._holders.items()):
            if layouts.DEVICE_HOLDER.packer.unpack(held)[0] == tgid:
                self._holders.delete(held)
        found = []
        for key, value in list(self._table.items()):
            if layouts.DEVICE_RUN.packer.unpack(value)[1] != tgid:
                continue
            self._table.delete(key)
            raw, told = growing(key, value), self._told.pop(key, None)
            call = self._named(raw) if raw is not None and told != value else None
            if call is not None:
                found.append(call)
        return found


def record(raw: RawDevice, device: str, driver: str) -> DeviceCall:
    """The record of a run, its device and driver named."""
    return DeviceCall(
        ts_ns=raw.ts_ns, end_ns=raw.end_ns, tgid=raw.tgid, tid=raw.tid, device=device,
        driver=driver, what=raw.what, count=raw.count, busy_ns=raw.busy_ns,
        bytes=raw.bytes or None, failed=raw.failed, number=raw.number or None, first=raw.first,
    )  # fmt: skip
