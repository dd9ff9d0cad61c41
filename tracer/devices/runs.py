"""Runs of driver calls: the kernel's numbers to records, and those still growing."""

from __future__ import annotations

from collections.abc import Callable

from tracer.errors import RecordError
from tracer.kernel import layouts, wire
from tracer.kernel.growing import Growing
from tracer.kernel.maps import Table
from tracer.kernel.wire import RawDevice
from tracer.records import DeviceCall

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
    """Runs in the kernel, and who holds which device there. `named` makes the records."""

    def __init__(self, table: Table, holders: Table, named: Named) -> None:
        self._holders = holders
        self._growing = Growing(table, layouts.DEVICE_RUN, growing, named)

    def sweep(self, now_ns: int) -> list[DeviceCall]:
        """Everything that changed since the last sweep."""
        return self._growing.sweep(now_ns)

    def end_of(self, tgid: int) -> list[DeviceCall]:
        """A process ended: its runs, taken out."""
        for held, _ in list(self._holders.items()):
            if layouts.DEVICE_HOLDER.packer.unpack(held)[0] == tgid:
                self._holders.delete(held)
        return self._growing.end_of(tgid)


def record(raw: RawDevice, device: str, driver: str) -> DeviceCall:
    """The record of a run, its device and driver named."""
    return DeviceCall(
        ts_ns=raw.ts_ns, end_ns=raw.end_ns, tgid=raw.tgid, tid=raw.tid, device=device,
        driver=driver, what=raw.what, count=raw.count, busy_ns=raw.busy_ns,
        bytes=raw.bytes or None, failed=raw.failed, number=raw.number or None, first=raw.first,
    )  # fmt: skip
