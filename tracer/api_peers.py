"""Who asks on the Unix socket, and how much of the daemon one user may take.

Who is in the group may ask, and may not keep others from asking.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

CONNECTIONS_PER_USER = 40
"""Of the 64 that there are."""
RATE_PER_S = 100.0
BURST = 400.0
_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True)
class Peer:
    """The process at the other end, as the kernel noted it when it connected."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """SO_PEERCRED of a Unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


class Turns:
    """One at a time, in the order they came; not for who has too many in line already, nor for
    who would wait too long."""

    def __init__(self, wait_s: float, per_user: int) -> None:
        self._wait_s = wait_s
        self._per_user = per_user
        self._turn = asyncio.Lock()
        self._line: Counter[int | None] = Counter()

    async def come(self, uid: int | None) -> bool:
        """Whether it is this user's turn now; if so, `gone` ends it."""
        if self._line[uid] >= self._per_user:
            return False
        self._line[uid] += 1
        mine = False
        try:
            async with asyncio.timeout(self._wait_s):
                mine = await self._turn.acquire()
        except TimeoutError:
            pass
        finally:
            if not mine:
                self._leave(uid)
        return mine

    def gone(self, uid: int | None) -> None:
        """The next one's turn."""
        self._turn.release()
        self._leave(uid)

    def _leave(self, uid: int | None) -> None:
        self._line[uid] -= 1
        if not self._line[uid]:
            del self._line[uid]


class Peers:
    """Connections and requests of each user."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: Counter[int] = Counter()
        self._left: dict[int, tuple[float, float]] = {}

    def come(self, uid: int) -> bool:
        """A connection begins; whether it is one too many. `gone` ends it either way."""
        self._open[uid] += 1
        return self._open[uid] <= CONNECTIONS_PER_USER

    def gone(self, uid: int) -> None:
        """A connection ended."""
        self._open[uid] -= 1
        if not self._open[uid]:
            del self._open[uid]

    def ask(self, uid: int) -> bool:
        """Whether one more request is not too much; a bucket that fills at RATE_PER_S."""
        now = self._clock()
        left, then = self._left.pop(uid, (BURST, now))
        left = min(BURST, left + (now - then) * RATE_PER_S)
        allowed = left >= 1
        self._left[uid] = (left - 1 if allowed else left, now)
        oldest, (_, since) = next(iter(self._left.items()))
        if now - since > BURST / RATE_PER_S:  # full again, as if it had never asked
            del self._left[oldest]
        return allowed
