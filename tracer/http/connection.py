"""One TCP connection: which bytes reached whom, how it began and how it ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from tracer.http.dialogue import Dialogue
from tracer.http.exchanges import Unparsable
from tracer.http.reassembly import ACK, FIN, RST, SYN, Egress, Held, Ingress, Packet, unwrap
from tracer.records import AnyRecord, Conn, EndWhy, HttpUnreadable, Unreadable

_REQUEST = re.compile(rb"(?:GET|POST|HEAD|PUT|PATCH|DELETE|OPTIONS) (?:/|https?://)")
_RESPONSE = b"HTTP/1."
_HTTP2 = b"PRI * HTTP/2"
_TLS = b"\x16\x03"

GIVE_UP_NS = 4 * 3600 * 10**9
GONE_NS = 600 * 10**9


class Mode(Enum):
    """`OPENING`: no byte read yet. `ASTRAY`: waiting for a segment that begins a request."""

    OPENING = 0
    READING = 1
    ASTRAY = 2
    DEAF = 3
    CLOSED = 4


class Connection:
    """Feed it its packets; facts gather in `out`, which the owner empties."""

    def __init__(
        self,
        packet: Packet,
        held: Held,
        xids: Iterator[int],
        out: list[AnyRecord],
        stray: Unreadable,
    ) -> None:
        self.conn: Conn = packet.conn
        self.last_ns = packet.ts_ns
        self.unreadable: HttpUnreadable | None = None
        self.isn: int | None = None
        self._held = held
        self._xids = xids
        self._out = out
        self._stray = stray
        self._ingress: Ingress | None = None
        self._egress: Egress | None = None
        self._dialogue = Dialogue(self.conn, xids, out)
        self._mode = Mode.ASTRAY
        self._await_response = False
        self._sniffed: list[tuple[int, bytes]] = []
        self._client_fin_ns: int | None = None
        self._sent_ns = 0
        self._unfinished = self._open = 0
        if packet.flags & SYN and not packet.egress:
            self._mode = Mode.OPENING
            self.isn = packet.seq
            self._ingress = Ingress(packet.seq + 1, held)

    @property
    def closed(self) -> bool:
        return self._mode is Mode.CLOSED

    @property
    def idle(self) -> bool:
        """Nothing open, so forgetting the connection loses nothing."""
        return not self._dialogue.exchanges.open

    @property
    def held(self) -> int:
        """Bytes held back until the server acknowledges them, or more of the reply comes."""
        return self._unfinished + (self._ingress.held if self._ingress is not None else 0)

    def shed(self) -> None:
        """Give up the bytes held back."""
        if self._ingress is not None:
            self._ingress.drop()
        self._dialogue.exchanges.shed()
        self._count()

    @property
    def open(self) -> int:
        """How many exchanges are open."""
        return self._open

    def give_up(self, ts_ns: int) -> None:
        """End what is open, and read no more."""
        self._give_up(ts_ns, "gap")

    def _count(self) -> None:
        """Have what is open and what is held of a reply counted."""
        exchanges = self._dialogue.exchanges
        held, open_ = exchanges.held, len(exchanges.open)
        self._held.bytes += held - self._unfinished
        self._held.exchanges += open_ - self._open
        self._unfinished, self._open = held, open_

    def facts(self) -> list[AnyRecord]:
        """What was told of the open exchanges, and of why it cannot be read."""
        out: list[AnyRecord] = [self.unreadable] if self.unreadable else []
        for exchange in self._dialogue.exchanges.open:
            out.extend(exchange.facts)
        return out

    def packet(self, packet: Packet) -> None:
        self.last_ns = packet.ts_ns
        if packet.egress:
            self._from_server(packet)
        else:
            self._from_client(packet)
        self._count()

    def end(self, ts_ns: int, why: EndWhy) -> None:
        """The connection is over: end what is open."""
        if why == "client_gone" and self._client_fin_ns is not None:
            ts_ns = max(self._client_fin_ns, self._sent_ns)
        self._dialogue.exchanges.end_all(ts_ns, why)
        self._stop(Mode.CLOSED)

    def expire(self, ts_ns: int) -> None:
        """End exchanges nobody can be waiting for any more."""
        quiet = ts_ns - self.last_ns
        if self._client_fin_ns is not None and quiet > GONE_NS:
            self.end(ts_ns, "client_gone")
        elif quiet > GIVE_UP_NS:
            self.end(ts_ns, "gap")

    def _stop(self, mode: Mode) -> None:
        self._mode = mode
        self._dialogue.close()
        self._sniffed.clear()
        self.shed()

    # --- packets ---

    def _from_client(self, packet: Packet) -> None:
        if packet.flags & RST:
            self.end(packet.ts_ns, "client_gone")
            return
        if self._ingress is None:
            self._ingress = Ingress(packet.seq, self._held)
        if self._egress is None and packet.flags & ACK:
            self._egress = Egress(packet.ack)
        if self._mode is not Mode.DEAF and (packet.payload_len or packet.flags & FIN):
            start = unwrap(self._ingress.next, packet.seq)
            self._ingress.add(packet, start + 1 if packet.flags & SYN else start)

    def _from_server(self, packet: Packet) -> None:
        flags = packet.flags
        if flags & SYN:
            self._egress = Egress(packet.seq + 1)
        if flags & ACK:
            if self._ingress is None:
                self._ingress = Ingress(packet.ack, self._held)
            upto = unwrap(self._ingress.next, packet.ack)
            if upto > self._ingress.next:
                self._acknowledged(self._ingress, upto, packet.ts_ns)
        if packet.payload_len or flags & FIN:
            self._sent(packet)
        if flags & RST:
            self._server_done(packet.ts_ns)

    def _sent(self, packet: Packet) -> None:
        egress = self._egress
        if egress is None:
            egress = self._egress = Egress(packet.seq)
        before, data, after = egress.take(packet)
        if before:
            self._server_hole(packet.ts_ns, before)
        if data:
            self._server_data(packet.ts_ns, data)
        if after:
            self._server_hole(packet.ts_ns, after)
        if egress.fin_at is not None and egress.fin_at <= egress.next:
            self._server_done(packet.ts_ns)

    def _acknowledged(self, ingress: Ingress, upto: int, ts_ns: int) -> None:
        if self._mode is Mode.DEAF:
            ingress.next = upto
        for piece_ns, data, length in ingress.acknowledge(upto, ts_ns):
            if data is None:
                self._client_hole(piece_ns, length)
            else:
                self._client_data(piece_ns, data)
        if ingress.fin_at is not None and upto > ingress.fin_at and self._client_fin_ns is None:
            self._client_done(ingress.fin_ts)

    # --- the client's bytes ---

    def _client_data(self, ts_ns: int, data: bytes) -> None:
        if self._mode is Mode.OPENING:
            self._sniff(ts_ns, data)
        elif self._mode is Mode.ASTRAY:
            if _REQUEST.match(data):
                self._await_response = True
                self._restart()
                self._read_client(ts_ns, data)
            else:
                self._mark_stray(ts_ns)
        elif self._mode is Mode.READING:
            self._read_client(ts_ns, data)

    def _sniff(self, ts_ns: int, data: bytes) -> None:
        self._sniffed.append((ts_ns, data))
        head = b"".join(part for _, part in self._sniffed)
        if head[:2] == _TLS:
            self._give_up(ts_ns, "tls")
        elif head[: len(_HTTP2)] == _HTTP2:
            self._give_up(ts_ns, "http2")
        elif not _TLS.startswith(head) and not _HTTP2.startswith(head):
            parts, self._sniffed = self._sniffed, []
            self._mode = Mode.READING
            for part_ns, part in parts:
                if self._mode is Mode.READING:
                    self._read_client(part_ns, part)

    def _read_client(self, ts_ns: int, data: bytes) -> None:
        try:
            self._dialogue.client(ts_ns, data)
        except Unparsable as error:
            self._give_up(ts_ns, error.why)

    def _client_hole(self, ts_ns: int, length: int) -> None:
        if self._mode is Mode.ASTRAY:
            self._mark_stray(ts_ns)
        elif self._mode is Mode.OPENING or (
            self._mode is Mode.READING and not self._dialogue.client_hole(ts_ns, length)
        ):
            self._go_astray(ts_ns)

    def _client_done(self, ts_ns: int) -> None:
        """A client may close its side and still read; only half a request is over for good."""
        self._client_fin_ns = ts_ns
        self._dialogue.exchanges.client_fin_ns = ts_ns
        if self._dialogue.exchanges.open and not self._dialogue.exchanges.open[-1].whole_request:
            self._dialogue.exchanges.end(self._dialogue.exchanges.open[-1], ts_ns, "client_gone")

    # --- the server's bytes ---

    def _server_data(self, ts_ns: int, data: bytes) -> None:
        self._sent_ns = ts_ns
        if self._mode is Mode.ASTRAY:
            self._mark_stray(ts_ns)
            return
        if self._mode in (Mode.DEAF, Mode.CLOSED):
            return
        if self._await_response:
            if data[: len(_RESPONSE)] != _RESPONSE[: len(data)]:
                return
            self._await_response = False
        try:
            self._dialogue.server(ts_ns, data)
        except Unparsable as error:
            self._give_up(ts_ns, error.why)

    def _server_hole(self, ts_ns: int, length: int) -> None:
        if self._mode not in (Mode.OPENING, Mode.READING) or self._await_response:
            return
        if not self._dialogue.server_hole(ts_ns, length):
            self._go_astray(ts_ns)

    def _server_done(self, ts_ns: int) -> None:
        self._dialogue.server_done()
        self.end(ts_ns, "client_gone" if self._client_fin_ns is not None else "server_gone")

    # --- what cannot be read ---

    def _tell_unreadable(self, ts_ns: int, why: Unreadable) -> None:
        self.unreadable = HttpUnreadable(ts_ns=ts_ns, conn=self.conn, why=why)
        self._out.append(self.unreadable)

    def _mark_stray(self, ts_ns: int) -> None:
        if self.unreadable is None:
            self._tell_unreadable(ts_ns, self._stray)

    def _go_astray(self, ts_ns: int) -> None:
        self._tell_unreadable(ts_ns, "gap")
        self._dialogue.exchanges.end_all(ts_ns, "gap")
        self._mode = Mode.ASTRAY
        self._sniffed.clear()

    def _restart(self) -> None:
        self._mode = Mode.READING
        self.unreadable = None
        self._dialogue.close()
        self._dialogue = Dialogue(self.conn, self._xids, self._out)

    def _give_up(self, ts_ns: int, why: Unreadable) -> None:
        self._tell_unreadable(ts_ns, why)
        self._dialogue.exchanges.end_all(ts_ns, "gap")
        self._stop(Mode.DEAF)
