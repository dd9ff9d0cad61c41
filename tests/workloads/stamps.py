"""When bytes reached this machine's socket, whenever their reader came round to them."""

from __future__ import annotations

import io
import socket
import struct
import time

#: Asks for, and is the type of, a stamp as struct timespec (asm-generic/socket.h); CPython
#: has no name for it.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")


class Stamped(io.RawIOBase):
    """A stream socket as http.client takes one, which knows when its last bytes came."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._sock = sock
        self._came_ns = time.monotonic_ns()

    def makefile(self, mode: str) -> io.BufferedReader:
        """As socket.makefile, for reading."""
        assert mode == "rb"
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        count, ancillary, _, _ = self._sock.recvmsg_into(
            [buffer],  # type: ignore[list-item]
            socket.CMSG_SPACE(_TIMESPEC.size),
        )
        self._came_ns = time.monotonic_ns()
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                self._came_ns = _monotonic_ns(data)
        return count

    def came_ns(self) -> int:
        """When the bytes read last came, CLOCK_MONOTONIC; when they were read, if unstamped.

        The kernel begins to stamp a moment after it is first asked to.
        """
        return self._came_ns


def _monotonic_ns(timespec: bytes) -> int:
    seconds, nanoseconds = _TIMESPEC.unpack(timespec)
    ago_ns = time.time_ns() - (seconds * 1_000_000_000 + nanoseconds)
    return time.monotonic_ns() - int(ago_ns)
