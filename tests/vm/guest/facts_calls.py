"""What the watched workers do with every system call that the file probes know."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import threading
from pathlib import Path

from tests.vm.guest.facts_files import MADV_RANDOM, MADV_WILLNEED, MAP_POPULATE, MIB, PAGE

_NUMBERS = {
    "x86_64": {"open": 2, "preadv2": 327, "openat2": 437},
    "aarch64": {"preadv2": 286, "openat2": 437},
}[platform.machine()]
_AT_FDCWD = -100
#: What one fault of a cached file maps.
AROUND = 16 * PAGE
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = _libc.syscall(_NUMBERS[name], *plain)
    return result


def opens(path: Path) -> dict[str, int]:
    """Three ways to open, each with flags of its own; one of a file that is not there."""
    name = os.fsencode(path)
    how = struct.pack("<QQQ", os.O_RDONLY | os.O_NOATIME, 0, 0)
    found = [os.open(path, os.O_RDONLY | os.O_CLOEXEC)]
    found.append(_call("openat2", _AT_FDCWD, name, how, len(how)))
    if "open" in _NUMBERS:
        found.append(_call("open", name, os.O_RDWR))
    failed = _call("openat2", _AT_FDCWD, name + b".not", how, len(how))
    for fd in found:
        os.close(fd)
    return {"opens": len(found), "failed": failed, "all": int(min(found) >= 0)}


def short_reads(path: Path) -> dict[str, int]:
    """Around the end, of nothing, of a descriptor that is none, at the file's own position."""
    fd, size = os.open(path, os.O_RDONLY), path.stat().st_size
    buffer = ctypes.create_string_buffer(PAGE)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), PAGE)
    total = len(os.pread(fd, PAGE, size - 7)) + len(os.pread(fd, PAGE, size)) + len(os.read(fd, 0))
    at_position = [_call("preadv2", fd, vector, 1, -1, -1, 0) for _ in range(3)]
    os.close(fd)
    bad = _libc.read(fd, buffer, PAGE)
    return {"bytes": total + sum(at_position), "bad": bad}


def private(path: Path) -> dict[str, int]:
    """Mapped whole and in part, privately, from the middle; advice of two kinds; unmapped."""
    fd, length = os.open(path, os.O_RDONLY), path.stat().st_size
    for size, offset, flags in ((length, 0, MAP_POPULATE), (MIB, MIB, 0)):
        mapped = mmap.mmap(fd, size, mmap.MAP_PRIVATE | flags, mmap.PROT_READ, offset=offset)
        mapped.madvise(MADV_WILLNEED)
        mapped.madvise(MADV_RANDOM, 0, 2 * PAGE)
        mapped.close()
    os.close(fd)
    return {}


def touch_cached(path: Path) -> dict[str, int]:
    """A page in each window that one fault of a cached file maps."""
    fd, length = os.open(path, os.O_RDONLY), path.stat().st_size
    mapped = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ)
    os.close(fd)
    total = sum(mapped[at] for at in range(0, length, AROUND))
    mapped.close()
    return {"sum": total}


def threads(path: Path) -> dict[str, int]:
    """Four threads read through one descriptor, 25 pages each."""
    fd = os.open(path, os.O_RDONLY)

    def work() -> None:
        for i in range(25):
            os.pread(fd, PAGE, i * PAGE)

    started = [threading.Thread(target=work) for _ in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    os.close(fd)
    return {"bytes": 100 * PAGE}


def child(path: Path) -> dict[str, int]:
    """A child reads and maps through the parent's descriptor."""
    fd = os.open(path, os.O_RDONLY)
    pid = os.fork()
    if not pid:
        os.pread(fd, PAGE, 0)
        mapped = mmap.mmap(fd, MIB, mmap.MAP_SHARED, mmap.PROT_READ)
        _ = sum(mapped[at] for at in range(0, MIB, AROUND))
        mapped.close()
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(fd)
    return {"child": pid}
