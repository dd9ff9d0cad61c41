"""Drains the rings, in a thread of its own: what is explained slowly must not fill them.

The callback only copies: nothing may be raised into C.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
from contextlib import AbstractContextManager, suppress

from tracer.kernel import libbpf

#: Bytes taken from the rings that may wait to be decoded; what comes then is lost, and counted.
WAITING_MAX = 24 << 20
_NICE = -10


class Rings:
    """Records come out in the order of each ring."""

    def __init__(self, fds: list[int]) -> None:
        self.overrun = 0
        self._taken: list[bytes] = []
        self._waiting = 0
        self._callback = libbpf.SAMPLE(self._take)  # kept: C holds its address
        self._handle: int | None = libbpf.new_ring(fds[0], self._callback)
        for fd in fds[1:]:
            libbpf.add_ring(self._handle, fd, self._callback)
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._pace_ms = 100
        self._nudge = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._pump, name="ttft-rings", daemon=True)
        self._thread.start()

    def wait(self, timeout_ms: int, pace_ms: int) -> None:
        """Until there are records, at most `timeout_ms`; what need not hurry waits `pace_ms`."""
        hurry, self._pace_ms = pace_ms < self._pace_ms, pace_ms
        if hurry:
            os.eventfd_write(self._nudge, 1)
        self._some.wait(timeout_ms / 1000)

    def kick(self) -> None:
        """End a wait; from any thread."""
        self._some.set()

    def drain(self) -> list[bytes]:
        """All records there are, those still in the rings too."""
        self._some.clear()
        with self._lock:
            if self._handle is not None:
                libbpf.consume_ring(self._handle)
            taken, self._taken = self._taken, []
            self._waiting = 0
        return taken

    def held(self) -> AbstractContextManager[object]:
        """While held, records stay in the rings: to see what happens when they fill up."""
        return self._lock

    def close(self) -> None:
        """Stop draining and free the rings."""
        with self._lock:
            if self._handle is not None:
                libbpf.free_ring(self._handle)
            self._handle = None
        os.eventfd_write(self._nudge, 1)
        self._thread.join()
        os.close(self._nudge)

    def _take(self, _context: int | None, data: int, size: int) -> int:
        if self._waiting > WAITING_MAX:
            self.overrun += 1
            return 0
        self._waiting += size
        self._taken.append(ctypes.string_at(data, size))
        return 0

    def _consume(self) -> bool:
        """False when the rings are closed."""
        with self._lock:
            if self._handle is None:
                return False
            libbpf.consume_ring(self._handle)
            return True

    def _pump(self) -> None:
        # A burst fills a ring in a millisecond; copying it out takes little and must not wait.
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        poller = select.poll()
        with self._lock:
            if self._handle is None:
                return
            poller.register(libbpf.ring_epoll_fd(self._handle), select.POLLIN)
        poller.register(self._nudge, select.POLLIN)
        while True:
            for fd, _ in poller.poll(self._pace_ms):
                if fd == self._nudge:
                    os.eventfd_read(fd)
            if not self._consume():
                return
            if self._taken:
                self._some.set()
