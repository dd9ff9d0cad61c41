"""Waiting on conditions, with a deadline and a name for what was waited for."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

#: Where all is run at once, on a machine that may be slow, all may take longer.
_TIMES = 3 if os.environ.get("CI") else 1


def wait_for(
    condition: Callable[[], bool], timeout_s: float, what: str, poll_s: float = 0.01
) -> None:
    """Returns as soon as `condition()` holds; TimeoutError names `what` after `timeout_s`, or
    three times that in CI."""
    timeout_s *= _TIMES
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(poll_s)


def prefer(pid: int, nice: int) -> None:
    """Gives a process just started, and its later threads and children, this niceness.

    And its session, where the kernel shares processors out among sessions first (autogroup).
    """
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
