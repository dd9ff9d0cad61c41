"""A watched program that calls devices, and what is recorded of each of its calls."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.workloads.device_calls import DeviceCaller
from tests.workloads.waiting import wait_for
from tracer.devices.table import table
from tracer.devices.watch import GROUP, DeviceWatch
from tracer.kernel.loader import Kernel
from tracer.kernel.wire import RawDevice
from tracer.records import DeviceCall, Exit, Process

Key = tuple[str, str]
_WAIT_S = 60.0


@dataclass
class Sums:
    """Of all calls of one kind to one device. `bytes` None: no argument told any."""

    count: int = 0
    failed: int = 0
    bytes: int | None = None
    busy_ns: int = 0

    def add(self, call: DeviceCall) -> None:
        self.count += call.count
        self.failed += call.failed
        self.busy_ns += call.busy_ns
        if call.bytes is not None:
            self.bytes = (self.bytes or 0) + call.bytes


@dataclass
class Scene:
    """`calls`: runs, the latest of each."""

    kernel: Kernel
    watch: DeviceWatch
    calls: dict[object, DeviceCall] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def adopt(self, pid: int) -> None:
        """From here on all its calls are seen."""
        self.kernel.watch(pid)
        now_ns = time.monotonic_ns()
        self.watch.note([Process(ts_ns=now_ns, tgid=pid, ppid=0, start_ns=0, comm="calls")])

    def take(self) -> None:
        """What there is now."""
        found = []
        for raw in self.kernel.drain():
            if isinstance(raw, RawDevice):
                found += self.watch.raw(raw)
            elif isinstance(raw, Exit):
                self.ended.add(raw.tgid)
                found += self.watch.note([raw])
        for call in [*found, *self.watch.sweep(time.monotonic_ns())]:
            if isinstance(call, DeviceCall):
                self.calls[call.tid, call.device, call.what, call.ts_ns] = call

    def sums(self, pid: int) -> dict[Key, Sums]:
        """All that a process did, by device and kind."""
        self.take()
        sums: dict[Key, Sums] = {}
        for call in self.calls.values():
            if call.tgid == pid:
                sums.setdefault((call.device, call.what), Sums()).add(call)
        return sums

    def since(self, pid: int, before: dict[Key, Sums]) -> dict[Key, Sums]:
        """What came to `before`."""
        return {
            key: Sums(
                now.count - old.count,
                now.failed - old.failed,
                None if now.bytes == old.bytes else (now.bytes or 0) - (old.bytes or 0),
                now.busy_ns - old.busy_ns,
            )
            for key, now in self.sums(pid).items()
            if now != (old := before.get(key, Sums()))
        }

    def finish(self, caller: DeviceCaller) -> None:
        """Let it end, and wait until that is told."""
        caller.end()

        def gone() -> bool:
            self.take()
            return caller.pid in self.ended

        wait_for(gone, _WAIT_S, "the end of the program")

    def lost(self) -> Counter[str]:
        """Records that did not come; runs of programs that the kernel left out are strangers'."""
        lost = self.kernel.lost()
        return Counter({kind: n for kind, n in lost.items() if not kind.startswith("ttft_")})


@contextmanager
def scene() -> Iterator[Scene]:
    """Driver calls alone, of processes that are adopted."""
    with Kernel.open(off=("sockets", "faults", "libs")) as kernel:
        watch = DeviceWatch(kernel, table())
        assert watch.refresh(), "no device is known here"
        kernel.attach(GROUP)
        yield Scene(kernel, watch)
