"""What the daemon tells systemd (sd_notify(3)): few lines, no library."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable


def notify(*state: str) -> None:
    """Send these assignments (`READY=1`), if systemd started us; nobody else is told."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + path[1:] if path.startswith("@") else path)
        sock.send("\n".join(state).encode())


def reloading() -> None:
    """The configuration is being read again; `READY=1` ends it."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def watchdog_s() -> float | None:
    """How long systemd waits for a sign of life, seconds; None where it does not wait for ours."""
    text, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not text.isdigit() or int(text) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(text) / 1e6


async def keep_alive(period_s: float, answer: Callable[[], Awaitable[object]]) -> None:
    """Each third of `period_s`: `WATCHDOG=1` once `answer` has come; none while it hangs."""
    while True:
        await answer()
        notify("WATCHDOG=1")
        await asyncio.sleep(period_s / 3)
