"""Software perf events that carry a program: begin and end of page faults of one thread.

They are inherited by the threads and children the thread makes later. Other processes pay
nothing for them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import struct
from collections.abc import Collection
from pathlib import Path

from tracer.kernel import libbpf

PAGE_FAULTS, PAGE_FAULTS_MIN, PAGE_FAULTS_MAJ = 2, 5, 6
#: The first fires when a fault begins, one of the others at its end.
EVENTS = {
    "ttft_fault_begin": PAGE_FAULTS,
    "ttft_fault_minor": PAGE_FAULTS_MIN,
    "ttft_fault_major": PAGE_FAULTS_MAJ,
}
_TYPE_SOFTWARE = 1
_ATTR_SIZE = 112
_FLAG_INHERIT = 1 << 1
_CLOEXEC = 8
_SET_BPF = 0x40042408
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_libc = ctypes.CDLL(None, use_errno=True)


def open_event(config: int, tid: int) -> int:
    """A counting event of period 1 on a thread and what it begets; OSError where it is gone."""
    attributes = struct.pack(
        "<IIQQQQQ", _TYPE_SOFTWARE, _ATTR_SIZE, config, 1, 0, 0, _FLAG_INHERIT
    ).ljust(_ATTR_SIZE, b"\0")
    number = _SYS_PERF_EVENT_OPEN[platform.machine()]
    fd: int = _libc.syscall(number, attributes, tid, -1, -1, _CLOEXEC)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


def threads(tgid: int) -> set[int]:
    """Thread ids of a process; none where it is gone."""
    try:
        return {int(p.name) for p in Path(f"/proc/{tgid}/task").iterdir()}
    except OSError:
        return set()


def raise_file_limit() -> None:
    """Three descriptors a thread: use what the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class FaultEvents:
    """Events of watched processes, by process."""

    def __init__(self, programs: dict[str, int]) -> None:
        self._programs = programs
        self._fds: dict[int, list[int]] = {}
        self._heirs: dict[int, int] = {}
        self._ended: set[int] = set()

    @property
    def covered(self) -> set[int]:
        """Processes with events of their own, not inherited ones."""
        return set(self._fds)

    def add(self, tgid: int) -> None:
        """Cover all threads of a process; threads that come meanwhile are looked for again."""
        fds = self._fds.setdefault(tgid, [])
        done: set[int] = set()
        while fresh := threads(tgid) - done:
            for tid in fresh:
                fds += self._open_thread(tid)
            done |= fresh

    def forked(self, parent: int, child: int) -> None:
        """A child inherits the events of its parent, or those that one inherited."""
        owner = parent if parent in self._fds else self._heirs.get(parent)
        if owner is not None:
            self._heirs[child] = owner

    def ended(self, tgids: Collection[int]) -> None:
        """Give back the events of processes that are gone, and that nobody has inherited.

        Closing an event ends it in the children that inherited it, so it stays while one runs.
        """
        for tgid in tgids:
            self._heirs.pop(tgid, None)
        self._ended.update(tgid for tgid in tgids if tgid in self._fds)
        for tgid in self._ended - set(self._heirs.values()):
            self.remove(tgid)

    def _open_thread(self, tid: int) -> list[int]:
        fds: list[int] = []
        # Ends first: a begin without an end would be paired with the end of a later fault.
        for program in sorted(self._programs, key=lambda name: name == "ttft_fault_begin"):
            try:
                fd = open_event(EVENTS[program], tid)
            except OSError as error:
                if error.errno == errno.ESRCH:
                    return fds
                raise libbpf.failure("cannot watch page faults", error.errno or 0) from None
            fds.append(fd)
            fcntl.ioctl(fd, _SET_BPF, self._programs[program])
        return fds

    def remove(self, tgid: int) -> None:
        self._ended.discard(tgid)
        for fd in self._fds.pop(tgid, []):
            os.close(fd)

    def close(self) -> None:
        for tgid in list(self._fds):
            self.remove(tgid)
