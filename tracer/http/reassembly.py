"""TCP segments to bytes in order, each with the time it arrived or left.

Offsets are sequence numbers unwrapped to integers that never wrap. A piece is
(ts_ns, data, length); `data` is None where the bytes were never seen.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from tracer.records import Conn

FIN, SYN, RST, ACK = 1, 2, 4, 16

MAX_HELD = 4 << 20
MAX_SEGMENTS = 8192
MAX_AHEAD = 1 << 30

Piece = tuple[int, bytes | None, int]


class Packet(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One TCP segment of a watched port; `egress`: from the server.

    `payload` holds the first bytes of `payload_len`, all of them unless it was cut.
    """

    ts_ns: int
    conn: Conn
    egress: bool
    seq: int
    ack: int
    payload_len: int
    payload: bytes = b""
    flags: int = ACK


class Held:
    """What all connections together hold: bytes held back, open exchanges."""

    __slots__ = ("bytes", "exchanges")

    def __init__(self) -> None:
        self.bytes = 0
        self.exchanges = 0


def unwrap(near: int, seq: int) -> int:
    """The offset nearest to `near` whose low 32 bits are `seq`."""
    return near + ((seq - near + 0x80000000) & 0xFFFFFFFF) - 0x80000000


class Ingress:
    """The client's bytes: held until the server's ACK, the last copy before it wins.

    Segments are seen before the kernel drops those with bad checksums, so a copy is
    only known to be the one the server got when the server acknowledges it.
    """

    __slots__ = ("_clock", "_held", "_own", "_segments", "fin_at", "fin_ts", "next")

    def __init__(self, seq: int, held: Held) -> None:
        self.next = seq
        self.fin_at: int | None = None
        self.fin_ts = 0
        self._segments: list[tuple[int, int, int, bytes | None]] = []  # start, end, ts, data
        self._held = held
        self._own = 0
        self._clock = 0

    def add(self, packet: Packet, start: int) -> None:
        """Hold a segment whose payload begins at offset `start`."""
        end = start + packet.payload_len
        if packet.flags & FIN and end >= self.next:
            self.fin_at, self.fin_ts = end, packet.ts_ns
        if end <= self.next or start - self.next > MAX_AHEAD:
            return
        if len(self._segments) >= MAX_SEGMENTS:
            return
        data = packet.payload
        if start < self.next:
            data = data[self.next - start :]
            start = self.next
        size = len(data)
        if self._own + size > MAX_HELD:
            data, size = b"", 0
        if self._segments and start < self._segments[-1][1]:
            self._clear(start, end)
        if size:
            self._insert(start, start + size, packet.ts_ns, data)
        if start + size < end:
            self._insert(start + size, end, packet.ts_ns, None)

    def _insert(self, start: int, end: int, ts_ns: int, data: bytes | None) -> None:
        if data is not None:
            self._own += len(data)
            self._held.bytes += len(data)
        segment = (start, end, ts_ns, data)
        if not self._segments or self._segments[-1][1] <= start:
            self._segments.append(segment)
        else:
            at = bisect_left(self._segments, start, key=lambda s: s[0])
            self._segments.insert(at, segment)

    def _clear(self, start: int, end: int) -> None:
        """Cut [start, end) out of what is held."""
        at = bisect_left(self._segments, start, key=lambda s: s[0])
        if at and self._segments[at - 1][1] > start:
            at -= 1
        upto = at
        while upto < len(self._segments) and self._segments[upto][0] < end:
            upto += 1
        cut = self._segments[at:upto]
        if not cut:
            return
        del self._segments[at:upto]
        self._release(cut)
        first, last = cut[0], cut[-1]
        if first[0] < start:
            self._insert(first[0], start, first[2], _part(first, first[0], start))
        if last[1] > end:
            self._insert(end, last[1], last[2], _part(last, end, last[1]))

    def _release(self, segments: list[tuple[int, int, int, bytes | None]]) -> None:
        size = sum(len(s[3]) for s in segments if s[3] is not None)
        self._own -= size
        self._held.bytes -= size

    def acknowledge(self, upto: int, ts_ns: int) -> list[Piece]:
        """The pieces up to offset `upto`, in order; times never go back."""
        if self.fin_at is not None and upto > self.fin_at:
            upto = self.fin_at
        out: list[Piece] = []
        segments, used = self._segments, 0
        while self.next < upto:
            if used == len(segments) or segments[used][0] > self.next:
                to = upto if used == len(segments) else min(upto, segments[used][0])
                out.append((ts_ns, None, to - self.next))
                self.next = to
                continue
            segment = segments[used]
            if segment[1] > upto:
                segments[used] = (upto, segment[1], segment[2], _part(segment, upto, segment[1]))
                segment = (segment[0], upto, segment[2], _part(segment, segment[0], upto))
            else:
                used += 1
            self._release([segment])
            self._clock = max(self._clock, segment[2])
            out.append((self._clock, segment[3], segment[1] - segment[0]))
            self.next = segment[1]
        del segments[:used]
        return out

    @property
    def held(self) -> int:
        """Bytes held back."""
        return self._own

    def drop(self) -> None:
        """Give back what is held; it counts as never seen."""
        self._held.bytes -= self._own
        self._own = 0
        self._segments.clear()


def _part(segment: tuple[int, int, int, bytes | None], start: int, end: int) -> bytes | None:
    data = segment[3]
    return None if data is None else data[start - segment[0] : end - segment[0]]


class Egress:
    """The server's bytes: in order at their first transmission, later copies ignored."""

    __slots__ = ("fin_at", "next")

    def __init__(self, seq: int) -> None:
        self.next = seq
        self.fin_at: int | None = None

    def take(self, packet: Packet) -> tuple[int, bytes, int]:
        """(missing bytes before, new bytes, missing bytes after) of a segment."""
        start = unwrap(self.next, packet.seq)
        end = start + packet.payload_len
        if packet.flags & FIN:
            self.fin_at = end
        if end <= self.next or start - self.next > MAX_AHEAD:
            return 0, b"", 0
        before, data = start - self.next, packet.payload
        if before < 0:
            data = data[-before:]
            start, before = self.next, 0
        self.next = end
        return before, data, end - start - len(data)
