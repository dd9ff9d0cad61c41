"""What the daemon itself takes."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

_M_ARENA_MAX = -8


def one_arena() -> None:
    """Let all threads share one heap, where the C library is glibc.

    By default each gets its own, and what one frees the others cannot use: answering slow readers
    for long grows without need. To call before the first thread starts.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Return what a burst left unused in the heap to the system, where the C library is glibc.

    Otherwise one small object above it keeps all of it: a few milliseconds for 100 MB.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def cpu_ns() -> int:
    """CPU time of all our threads."""
    return time.process_time_ns()


def pss_bytes() -> int | None:
    """Proportional memory: shared pages counted by their share; None where it is not told."""
    try:
        text = Path("/proc/self/smaps_rollup").read_text("ascii")
    except OSError:
        return None
    for entry in text.splitlines():
        if entry.startswith("Pss:"):
            return int(entry.split()[1]) << 10
    return None
