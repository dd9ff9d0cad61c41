"""Drains the rings. The callback only copies: nothing may be raised into C."""

from __future__ import annotations

import ctypes

from tracer.kernel import libbpf


class Rings:
    """Records come out in the order of each ring."""

    def __init__(self, fds: list[int]) -> None:
        self._taken: list[bytes] = []
        taken, copy = self._taken, ctypes.string_at

        def take(_context: int | None, data: int, size: int) -> int:
            taken.append(copy(data, size))
            return 0

        self._callback = libbpf.SAMPLE(take)  # kept: C holds its address
        self._handle: int | None = libbpf.new_ring(fds[0], self._callback)
        for fd in fds[1:]:
            libbpf.add_ring(self._handle, fd, self._callback)

    def fileno(self) -> int:
        """Readable when the kernel wants the rings drained."""
        return libbpf.ring_epoll_fd(self._open())

    def wait(self, timeout_ms: int) -> None:
        """Until an urgent record or the time is over."""
        libbpf.poll_ring(self._open(), timeout_ms)

    def drain(self) -> list[bytes]:
        """All records there are."""
        libbpf.consume_ring(self._open())
        taken = self._taken[:]
        del self._taken[: len(taken)]
        return taken

    def close(self) -> None:
        if self._handle is not None:
            libbpf.free_ring(self._handle)
            self._handle = None

    def _open(self) -> int:
        if self._handle is None:
            raise ValueError("the rings are closed")
        return self._handle
