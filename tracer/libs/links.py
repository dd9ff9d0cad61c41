"""Attaches a program to functions of a file: one link where the kernel has links for many
(89ae89f53d20, 6.6), else a perf event for each.

A link goes by the file, so it holds for every process that maps it, now or later.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

from tracer.kernel import libbpf

_LINK_CREATE = 28
_PERF_EVENT, _UPROBE_MULTI = 41, 48
_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_PMU = Path("/sys/bus/event_source/devices/uprobe/type")
_ATTR_SIZE = 128
_CLOEXEC = 8
_libc = ctypes.CDLL(None, use_errno=True)

#: (offset in the file, cookie) of each function.
Points = Sequence[tuple[int, int]]


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
    return result


def _create(attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return _call(_SYS_BPF[platform.machine()], _LINK_CREATE, buffer, len(attributes))


def _multi(program: int, path: bytes, points: Points, pid: int) -> int:
    count = len(points)
    where = ctypes.create_string_buffer(path)
    offsets = (ctypes.c_uint64 * count)(*(offset for offset, _ in points))
    cookies = (ctypes.c_uint64 * count)(*(cookie for _, cookie in points))
    addresses = (ctypes.addressof(x) for x in (where, offsets))
    return _create(
        struct.pack("<IIII", program, 0, _UPROBE_MULTI, 0)
        + struct.pack("<QQQQIIII", *addresses, 0, ctypes.addressof(cookies), count, 0, pid, 0)
    )


def takes_many(program: int) -> bool:
    """Whether one link can hold many functions here; no link is made."""
    try:
        os.close(_multi(program, b"/proc/self/ttft-no-such-file", [(0, 0)], 0))
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def _single(program: int, path: bytes, offset: int, cookie: int) -> list[int]:
    """The event and its link."""
    where = ctypes.create_string_buffer(path)
    attributes = struct.pack("<II", int(_PMU.read_text()), _ATTR_SIZE).ljust(56, b"\0")
    attributes += struct.pack("<QQ", ctypes.addressof(where), offset)  # config1, config2
    number = _SYS_PERF_EVENT_OPEN[platform.machine()]
    event = _call(number, attributes.ljust(_ATTR_SIZE, b"\0"), -1, 0, -1, _CLOEXEC)
    try:
        link = _create(struct.pack("<IIIIQ", program, event, _PERF_EVENT, 0, cookie))
    except OSError:
        os.close(event)
        raise
    return [link, event]


class Link:
    """Probes on one file; they go with `close`, or with this process."""

    def __init__(
        self, program: int, fd: int, points: Points, *, many: bool = True, pid: int = 0
    ) -> None:
        """`fd`: the file that was read, so no other can take its place meanwhile. `many` False:
        an event for each point.

        `pid`: in this process alone, and others do not pay; needs `many`. OSError where the
        kernel refuses.
        """
        self._fds: list[int] = []
        name = b"/proc/self/fd/%d" % fd
        if many or pid:
            self._fds = [_multi(program, name, points, pid)]
            return
        try:
            for offset, cookie in points:
                self._fds += _single(program, name, offset, cookie)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def reason(error: OSError) -> str:
    """Why a file cannot be probed, in words."""
    if error.errno == errno.ENOENT:
        return "it is gone"
    if error.errno == errno.EREMOTE:
        return "a process or another machine serves its file system"
    found = libbpf.failure("", error.errno or 0)
    return found.message.removeprefix(": ")
