"""The program that sees a server take a request's bytes comes with requests, and goes.

It is run whenever anybody on the host receives something. What it tells is when a request was
read: on once a request's first bytes woke us, it misses only what is read in the first fraction of
a millisecond, which is as good as at once. A server that starts has it from the begin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tracer.errors import KernelError

#: So long after the last bytes of a request it stays.
QUIET_NS = 5_000_000_000


class Takes:
    """Attached until `come_and_go()`. From any thread."""

    def __init__(self, attach: Callable[[], None], detach: Callable[[], None]) -> None:
        """KernelError of `attach` is nothing: it is tried again with the next request."""
        self._attach = attach
        self._detach = detach
        self._lock = threading.Lock()
        self._goes = False
        self._on = True
        self._stirred_ns = 0

    @property
    def on(self) -> bool:
        """Whether it is attached now."""
        return self._on

    def come_and_go(self) -> None:
        """From now on it is off while nothing is asked."""
        self._goes = True
        self.rest(time.monotonic_ns())

    def stir(self) -> None:
        """Something is asked of a server, or will be."""
        self._stirred_ns = time.monotonic_ns()
        if self._on:
            return
        with self._lock, suppress(KernelError):
            if self._goes and not self._on:
                self._attach()
                self._on = True

    def rest(self, now_ns: int) -> None:
        """Let it go where nothing was asked for a while."""
        with self._lock:
            if self._goes and self._on and now_ns - self._stirred_ns > QUIET_NS:
                self._detach()
                self._on = False

    def close(self) -> None:
        """It comes no more."""
        with self._lock:
            self._goes = False
