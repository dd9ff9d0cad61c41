"""Software clocks that carry the sampling program: one on each processor, ticking only when told.

On processors and not on threads: a thread's clock is set up anew each time that the thread gets a
processor, so it costs those who are watched, and each of them needs a descriptor.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from pathlib import Path

from tracer.kernel import libbpf

#: Samples a second on each processor: no divisor or multiple of what timers go by.
HZ = 49
#: And on all of them together, which bounds what sampling costs on a large host.
HZ_ALL = 392

_TYPE_SOFTWARE, _CPU_CLOCK = 1, 0
_ATTR_SIZE = 112
_DISABLED, _EXCLUDE_IDLE = 1 << 0, 1 << 7
_CLOEXEC = 8
_SET_BPF, _ENABLE, _DISABLE = 0x40042408, 0x2400, 0x2401
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_ONLINE = Path("/sys/devices/system/cpu/online")
_libc = ctypes.CDLL(None, use_errno=True)


def processors() -> list[int]:
    """Those that are online."""
    return numbers(_ONLINE.read_text())


def numbers(text: str) -> list[int]:
    """`0-3,7` as numbers."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def hz_of(count: int) -> float:
    """How often each of so many processors is sampled, a second."""
    return min(HZ, HZ_ALL / max(1, count))


def open_clock(cpu: int, hz: float) -> int:
    """A descriptor of a clock that stands still; OSError."""
    period_ns = round(1e9 / hz)
    flags = _DISABLED | _EXCLUDE_IDLE
    attributes = struct.pack(
        "<IIQQQQQ", _TYPE_SOFTWARE, _ATTR_SIZE, _CPU_CLOCK, period_ns, 0, 0, flags
    ).ljust(_ATTR_SIZE, b"\0")
    call = _SYS_PERF_EVENT_OPEN[platform.machine()]
    fd: int = _libc.syscall(call, attributes, -1, cpu, -1, _CLOEXEC)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


class Clocks:
    """One for each processor; KernelError where the kernel refuses them."""

    def __init__(self, program: int, hz: float | None = None) -> None:
        """`program`: descriptor of what runs at each tick. `hz` None: as their number allows."""
        chosen = processors()
        self.hz = hz_of(len(chosen)) if hz is None else hz
        self.ticking = False
        self._fds: list[int] = []
        for cpu in chosen:
            try:
                fd = open_clock(cpu, self.hz)
                self._fds.append(fd)
                fcntl.ioctl(fd, _SET_BPF, program)
            except OSError as error:
                if error.errno == errno.ENODEV:  # taken offline meanwhile
                    continue
                self.close()
                raise libbpf.failure("cannot sample by a clock", error.errno or 0) from None

    def tick(self, on: bool) -> None:
        """Start or stop all of them."""
        if on == self.ticking:
            return
        for fd in self._fds:
            fcntl.ioctl(fd, _ENABLE if on else _DISABLE, 0)
        self.ticking = on

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self.ticking = False
