"""One file's share of the page cache: asked for, and emptied."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from tests.workloads.waiting import wait_for

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_libc.syscall.restype = ctypes.c_long
_PROCESS_MADVISE = 440  # the same on every architecture
_MADV_PAGEOUT = 21
_FAILED = ctypes.c_void_p(-1).value


def cached_bytes(path: Path) -> int:
    """Bytes of the file that are in the page cache (mincore of a mapping nobody touches)."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), f"mmap {path}")
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        try:
            if _libc.mincore(address, size, pages) != 0:
                raise OSError(ctypes.get_errno(), f"mincore {path}")
        finally:
            _libc.munmap(address, size)
    finally:
        os.close(fd)
    return sum(byte & 1 for byte in pages.raw[: len(pages)]) * mmap.PAGESIZE


def drop(path: Path, timeout_s: float = 10.0) -> None:
    """Puts the file out of the page cache, and makes sure that it is out."""

    def gone() -> bool:
        _let_go(path)
        return cached_bytes(path) == 0

    wait_for(gone, timeout_s, f"the page cache to let go of {path}")


def _let_go(path: Path) -> None:
    """Drops the pages that no process has mapped."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)  # only clean pages are dropped
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def fill(path: Path) -> None:
    """Reads the file, so that all of it is in the page cache."""
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass


def refaulted_bytes() -> int:
    """File pages that came back since boot after the system had put them out, of all files.

    Some hosts take memory back all the time (DAMON's `pageout`), so that part of a file may come
    from disk twice within one load: the difference over a load says how much at most.
    """
    for line in Path("/proc/vmstat").read_text().splitlines():
        name, _, pages = line.partition(" ")
        if name in ("workingset_refault_file", "workingset_refault"):
            return int(pages) * mmap.PAGESIZE
    return 0


def page_out(pid: int, path: Path, timeout_s: float = 10.0) -> None:
    """Takes the file's pages from a process that has it mapped, as a lack of memory would.

    The kernel keeps a few that it is busy with: a twentieth of them may stay.
    """
    most = path.stat().st_size // 20
    ranges = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if line.endswith(str(path.resolve()))
    ]
    vector = (ctypes.c_size_t * (2 * len(ranges)))(
        *(number for start, end in ranges for number in (start, end - start))
    )
    pidfd = os.pidfd_open(pid)

    def gone() -> bool:
        done = _libc.syscall(_PROCESS_MADVISE, pidfd, vector, len(ranges), _MADV_PAGEOUT, 0)
        if done < 0:
            raise OSError(ctypes.get_errno(), f"process_madvise of {pid}")
        _let_go(path)  # what was read ahead is cached but not mapped: the call above passes it by
        return cached_bytes(path) <= most

    try:
        wait_for(gone, timeout_s, f"{path} to be paged out")
    finally:
        os.close(pidfd)
