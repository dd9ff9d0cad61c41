"""What the daemon itself takes."""

from __future__ import annotations

import time
from pathlib import Path


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
