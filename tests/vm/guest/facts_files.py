"""What the watched workers do with files: known bytes, known counts. Plain Python: no compiler."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

PAGE = 4096
MIB = 1 << 20
MAGIC = b"GGUF\3\0\0\0tensors!"
MAP_POPULATE = 0x8000
MADV_RANDOM, MADV_WILLNEED = 1, 3
_libc = ctypes.CDLL(None, use_errno=True)
_libc.preadv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_long)
_libc.preadv.restype = ctypes.c_ssize_t
_libc.mmap.restype = _libc.memchr.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_NOWHERE = 0xFE  # a byte that the files do not hold

Work = Callable[[], dict[str, int]]


class Worker:
    """A child that waits, works, says what it counted itself, and ends with a status."""

    def __init__(self, work: Work, status: int = 0) -> None:
        go, self._go = os.pipe()
        said, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            _run(work, go, tell)
            os._exit(status)
        os.close(go)
        os.close(tell)
        self._said = os.fdopen(said)

    def go(self) -> dict[str, int]:
        """Let it work; what it counted itself."""
        self.start()
        return self.said()

    def start(self) -> None:
        """Let it work, without waiting."""
        os.write(self._go, b"1")

    def said(self) -> dict[str, int]:
        """What it counted itself, when it is done."""
        found = {}
        for word in self._said.readline().split():
            name, _, count = word.partition("=")
            found[name] = int(count)
        return found

    def end(self) -> None:
        """Let it end, and wait for that."""
        os.write(self._go, b"1")
        os.waitpid(self.pid, 0)
        os.close(self._go)
        self._said.close()


def _run(work: Work, go: int, tell: int) -> None:
    os.read(go, 1)
    found = work()
    os.write(tell, (" ".join(f"{k}={v}" for k, v in found.items()) + "\n").encode())
    os.read(go, 1)


def make_file(path: Path, size: int) -> Path:
    """A file on the disk, and out of the page cache."""
    with path.open("wb") as file:
        file.write(MAGIC + b"\x5a" * (size - len(MAGIC)))
        os.fsync(file.fileno())
    drop(path)
    return path


def drop(path: Path) -> None:
    """Take the file's pages out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def reads(path: Path) -> dict[str, int]:
    """3, 5, 7, 11 and 13 reads of a page by each of the system calls that read."""
    fd = os.open(path, os.O_RDONLY)
    parts = [bytearray(1), bytearray(PAGE - 1)]
    buffer = ctypes.create_string_buffer(PAGE)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), PAGE)
    total = sum(len(os.read(fd, PAGE)) for _ in range(3))
    total += sum(len(os.pread(fd, PAGE, i * PAGE)) for i in range(5))
    total += sum(os.readv(fd, parts) for _ in range(7))
    total += sum(_libc.preadv(fd, vector, 1, i * PAGE) for i in range(11))
    total += sum(os.preadv(fd, parts, i * PAGE) for i in range(13))
    os.close(fd)
    return {"bytes": total}


def whole(path: Path) -> dict[str, int]:
    """Every byte, in reads of 64 KiB; none at the end, where some kernels bring a page in."""
    fd, total, size = os.open(path, os.O_RDONLY), 0, path.stat().st_size
    while total < size:
        total += len(os.read(fd, min(1 << 16, size - total)))
    os.close(fd)
    return {"bytes": total}


def direct(path: Path) -> dict[str, int]:
    """11 reads of 64 KiB that bypass the page cache."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    aligned = mmap.mmap(-1, 1 << 16)
    total = sum(os.preadv(fd, [aligned], i << 16) for i in range(11))
    os.close(fd)
    return {"bytes": total}


def _map(fd: int, length: int, flags: int) -> mmap.mmap:
    return mmap.mmap(fd, length, mmap.MAP_SHARED | flags, mmap.PROT_READ)


def populate(path: Path) -> dict[str, int]:
    """All of it mapped at once, three pieces of advice on the first MiB, unmapped."""
    fd, length = os.open(path, os.O_RDONLY), path.stat().st_size
    mapped = _map(fd, length, MAP_POPULATE)
    os.close(fd)
    for _ in range(3):
        mapped.madvise(MADV_WILLNEED, 0, MIB)
    mapped.close()
    return {"bytes": length}


def touch(path: Path) -> dict[str, int]:
    """Every page of a mapping, without readahead: faults by the kernel's own count.

    By one call of C, for the interpreter has faults of its own.
    """
    fd, length = os.open(path, os.O_RDONLY), path.stat().st_size
    mapped = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    _libc.madvise(mapped, length, MADV_RANDOM)
    for size in (0, 0, 0, length):  # first for nothing: its own memory is there then
        before = resource.getrusage(resource.RUSAGE_SELF)
        found = _libc.memchr(mapped, _NOWHERE, size)
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert found is None
    _libc.munmap(mapped, length)
    return {
        "major": after.ru_majflt - before.ru_majflt,
        "minor": after.ru_minflt - before.ru_minflt,
    }


def children() -> dict[str, int]:
    """One ends with 3, one is told to end, one becomes another program."""
    three = os.fork()
    if not three:
        os._exit(3)
    os.waitpid(three, 0)
    killed = os.fork()
    if not killed:
        signal.pause()
    os.kill(killed, signal.SIGTERM)
    os.waitpid(killed, 0)
    program = os.fork()
    if not program:
        os.execv("/bin/true", ["true"])
    os.waitpid(program, 0)
    return {"three": three, "killed": killed, "program": program}
