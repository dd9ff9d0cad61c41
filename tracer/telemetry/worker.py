"""The thread that reads devices: while it is told that a request waits, and once just after."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tracer.records import Telemetry

S = 1_000_000_000
#: A request that waits less is no slow one (`[spike] min_ms` is 250), and is not looked into.
PATIENCE_NS = 200_000_000
#: How often it reads in a wait's first seconds, and how seldom at most in a long one.
EVERY_NS, SELDOM_NS = 250_000_000, S
_FIRST_NS = 10 * S
#: How long a device is kept after the last reading: the next request may come at once.
LINGER_NS = S
_MOST_KEPT = 256
_NICE = 10


class Reads(Protocol):
    """What is asked of tracer/telemetry/reader.py."""

    def read(self, tgids: tuple[int, ...]) -> list[Telemetry]: ...
    def release(self) -> None: ...


class Worker:
    """`want()` and `take()` from one other thread. All of `Reads` happens in the thread's own.

    `make` gets a function to call before anything that may hang, with its name; with none before
    what may only be slow.
    """

    def __init__(self, make: Callable[[Callable[[str], None]], Reads]) -> None:
        self._cond = threading.Condition()
        self._tgids: tuple[int, ...] = ()
        self._waits = False
        self._since_ns = 0
        self._after = False
        self._look = False
        self._gone = False
        self._last_ns = 0
        self._open = False
        self._step: tuple[str, int] | None = None
        self._found: deque[Telemetry] = deque(maxlen=_MOST_KEPT)
        self.held: frozenset[int] = frozenset()
        self.readings = 0
        self._thread = threading.Thread(
            target=self._run, args=(make(self._begin),), name="ttft-devices", daemon=True
        )
        self._thread.start()

    # --- from another thread ------------------------------------------------------------

    def want(self, tgids: tuple[int, ...], now_ns: int) -> None:
        """A request waits, and these processes are watched."""
        with self._cond:
            if not self._waits:
                self._since_ns = now_ns
            self._waits, self._tgids = True, tgids
            self._cond.notify()

    def enough(self) -> None:
        """No request waits any more."""
        with self._cond:
            self._after = self._waits and self._last_ns >= self._since_ns
            self._waits = False
            self._cond.notify()

    def look(self) -> None:
        """A process that held a device has ended."""
        with self._cond:
            self._look = True
            self._cond.notify()

    def take(self) -> list[Telemetry]:
        """Readings since the last call."""
        found = []
        while self._found:
            found.append(self._found.popleft())
        return found

    @property
    def step(self) -> tuple[str, int] | None:
        """What it is in that may hang, and since when (ns)."""
        return self._step

    def leave(self) -> None:
        """End, letting go of all devices, as soon as it comes back from what it is in."""
        with self._cond:
            self._gone = True
            self._cond.notify()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- the thread's own -----------------------------------------------------------------

    def _begin(self, what: str) -> None:
        self._step = (what, time.monotonic_ns()) if what else None

    def _run(self, reads: Reads) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            while not self._gone:
                self._do(reads, self._next())
        finally:
            reads.release()
            self._step = None

    def _do(self, reads: Reads, tgids: tuple[int, ...] | None) -> None:
        if tgids is None:
            reads.release()
            self.held = frozenset()
        else:
            found = reads.read(tgids)
            self.held = frozenset(h.tgid for r in found for h in r.holders if not h.gone)
            self.readings += len(found)
            self._found.extend(found)
            self._last_ns = time.monotonic_ns()
        self._open = tgids is not None
        self._step = None

    def _next(self) -> tuple[int, ...] | None:
        """Wait for something to do: to read of these processes, or (None) to release."""
        with self._cond:
            while not self._gone:
                now_ns = time.monotonic_ns()
                due_ns = self._due_ns()
                if due_ns is not None and due_ns <= now_ns:
                    reading = self._waits or self._after
                    self._after = self._look = False
                    return self._tgids if reading else None
                self._cond.wait(None if due_ns is None else (due_ns - now_ns) / 1e9)
        return None

    def _due_ns(self) -> int | None:
        """When there is something to do; None: not before somebody asks."""
        if self._waits:
            if self._look and self._open:
                return 0
            past_ns = self._last_ns - self._since_ns
            every_ns = EVERY_NS if past_ns < _FIRST_NS else SELDOM_NS
            return max(self._since_ns + PATIENCE_NS, self._last_ns + every_ns)
        if self._after:
            return 0
        if self._open:
            return 0 if self._look else self._last_ns + LINGER_NS
        return None
