"""A TCP conversation by hand, for tests of tracer/http."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.http import ACK, FIN, RST, SYN, HttpReader, Packet
from tracer.records import AnyRecord, Conn

CONN = Conn(
    netns=0, server_ip="127.0.0.1", server_port=8080, client_ip="127.0.0.1", client_port=40000
)


class Wire:
    """Makes packets of one connection; each takes one more nanosecond of `clock`."""

    def __init__(self, conn: Conn = CONN, client_isn: int = 1000, server_isn: int = 9000) -> None:
        self.conn = conn
        self.clock = 0
        self.client = client_isn
        self.server = server_isn
        self.packets: list[Packet] = []

    def _add(self, egress: bool, data: bytes, flags: int, cut: int = 0) -> Packet:
        self.clock += 1
        seq, ack = (self.server, self.client) if egress else (self.client, self.server)
        packet = Packet(
            ts_ns=self.clock,
            conn=self.conn,
            egress=egress,
            seq=seq & 0xFFFFFFFF,
            ack=ack & 0xFFFFFFFF,
            payload_len=len(data),
            payload=data[: len(data) - cut],
            flags=flags,
        )
        size = len(data) + bool(flags & SYN) + bool(flags & FIN)
        if egress:
            self.server += size
        else:
            self.client += size
        self.packets.append(packet)
        return packet

    def open(self) -> Wire:
        self._add(False, b"", SYN)
        self._add(True, b"", SYN | ACK)
        return self

    def send(self, *parts: bytes, ack: bool = True, flags: int = ACK, cut: int = 0) -> Wire:
        """The client's segments, each acknowledged at once."""
        for part in parts:
            self._add(False, part, flags, cut)
            if ack:
                self._add(True, b"", ACK)
        return self

    def reply(self, *parts: bytes, flags: int = ACK, cut: int = 0) -> Wire:
        for part in parts:
            self._add(True, part, flags, cut)
        return self

    def skip(self, client: int = 0, server: int = 0) -> Wire:
        """Bytes that were sent and never seen."""
        self.client += client
        self.server += server
        return self

    def client_fin(self) -> Wire:
        return self.send(b"", flags=FIN | ACK)

    def server_fin(self) -> Wire:
        return self.reply(b"", flags=FIN | ACK)

    def client_reset(self) -> Wire:
        return self.send(b"", ack=False, flags=RST)

    def server_reset(self) -> Wire:
        return self.reply(b"", flags=RST | ACK)


def read(packets: Iterable[Packet], reader: HttpReader | None = None) -> list[AnyRecord]:
    """All facts of `packets`, read by `reader` or a new one."""
    reader = HttpReader() if reader is None else reader
    return [fact for packet in packets for fact in reader.packet(packet)]


def post(path: str, body: bytes, extra: bytes = b"") -> bytes:
    return (
        b"POST "
        + path.encode()
        + b" HTTP/1.1\r\nHost: x\r\n"
        + extra
        + b"Content-Length: %d\r\n\r\n" % len(body)
        + body
    )


def chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


def event(data: bytes) -> bytes:
    """One server-sent event in a chunk of its own."""
    return chunk(b"data: " + data + b"\n\n")


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def json_reply(body: bytes, status: bytes = b"200 OK", extra: bytes = b"") -> bytes:
    return (
        b"HTTP/1.1 "
        + status
        + b"\r\nContent-Type: application/json\r\n"
        + extra
        + b"Content-Length: %d\r\n\r\n" % len(body)
        + body
    )
