"""The open exchanges of one connection, in order, and the facts told of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from tracer.http.bodies import TopLevel
from tracer.http.endpoints import Endpoint, find
from tracer.http.replies import Reply
from tracer.records import (
    AnyRecord,
    Conn,
    EndWhy,
    HttpEnd,
    HttpRequest,
    HttpUnreadable,
    Says,
    Unreadable,
)

MAX_QUIET = 128 << 10  # bytes of headers, trailers or chunk extensions in a row
MAX_OPEN = 64
MAX_FILL = 64 << 20  # a longer hole in a body is not worth following
FILLER = b" " * 65536
_REQUEST_KEYS = frozenset({"model", "stream"})
# What code that reads a payload may stumble over when it has a shape nobody thought of.
_STUMBLES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)


class Unparsable(Exception):
    """These bytes are not HTTP/1.1; `why` says what they are instead."""

    def __init__(self, why: Unreadable) -> None:
        super().__init__(why)
        self.why: Unreadable = why


class Exchange:
    """An open exchange and the facts told of it so far."""

    __slots__ = (
        "bytes",
        "ended",
        "endpoint",
        "facts",
        "method",
        "received",
        "reply",
        "scan",
        "status",
        "whole_request",
        "xid",
    )

    def __init__(self, xid: int, method: str, endpoint: Endpoint | None) -> None:
        self.xid = xid
        self.method = method
        self.endpoint = endpoint
        self.facts: list[AnyRecord] = []
        self.received = 0
        self.scan = TopLevel(_REQUEST_KEYS) if endpoint is not None else None
        self.whole_request = False
        self.status: int | None = None
        self.reply: Reply | None = None
        self.bytes = 0
        self.ended = False


def content_length(value: bytes) -> int | None:
    return int(value) if value.isdigit() and len(value) < 19 else None


class Exchanges:
    """Facts gather in `out`, which its owner empties. `heads`: open ones with method HEAD.

    `client_fin_ns`: when the client closed its side, if it did.
    """

    __slots__ = ("_xids", "client_fin_ns", "conn", "heads", "open", "out")

    def __init__(self, conn: Conn, xids: Iterator[int], out: list[AnyRecord]) -> None:
        self.conn = conn
        self.open: deque[Exchange] = deque()
        self.out = out
        self.heads = 0
        self.client_fin_ns: int | None = None
        self._xids = xids

    @property
    def held(self) -> int:
        """Bytes kept of the reply that is on its way."""
        reply = self.open[0].reply if self.open else None
        return reply.held if reply is not None else 0

    def shed(self) -> None:
        """Give them up."""
        if self.open and self.open[0].reply is not None:
            self.open[0].reply.shed()

    def tell(self, exchange: Exchange, fact: AnyRecord) -> None:
        """Nothing is told of an exchange after its end."""
        if not exchange.ended:
            exchange.facts.append(fact)
            self.out.append(fact)

    def begin(self, ts_ns: int, method: str, url: str) -> Exchange:
        """A request whose first byte arrived at `ts_ns`."""
        if len(self.open) >= MAX_OPEN:
            raise Unparsable("gap")
        exchange = Exchange(next(self._xids), method, find(url))
        self.open.append(exchange)
        self.heads += method == "HEAD"
        path = exchange.endpoint.path if exchange.endpoint else None
        fact = HttpRequest(
            ts_ns=ts_ns, xid=exchange.xid, conn=self.conn, method=method, endpoint=path
        )
        self.tell(exchange, fact)
        return exchange

    def replied(self, exchange: Exchange, ts_ns: int, data: bytes) -> None:
        """Bytes of the reply's body, which left at `ts_ns`."""
        exchange.bytes += len(data)
        if exchange.reply is None:
            return
        try:
            marks = exchange.reply.feed(ts_ns, data)
        except _STUMBLES:
            self._unreadable(exchange, ts_ns)
            return
        for mark in marks:
            self.tell(exchange, mark)

    def _finish(self, exchange: Exchange, ts_ns: int) -> Says | None:
        """Read what the reply's last bytes carried; what it says of itself."""
        if exchange.reply is None:
            return None
        try:
            marks, says = exchange.reply.finish(ts_ns), exchange.reply.says()
        except _STUMBLES:
            self._unreadable(exchange, ts_ns)
            return None
        for mark in marks:
            self.tell(exchange, mark)
        return says

    def _unreadable(self, exchange: Exchange, ts_ns: int) -> None:
        """A reply that cannot be read is no reason to read nothing else of its connection."""
        exchange.reply = None
        self.tell(
            exchange,
            HttpUnreadable(ts_ns=ts_ns, conn=self.conn, why="not_http", xid=exchange.xid),
        )

    def end(self, exchange: Exchange, ts_ns: int, why: EndWhy) -> None:
        """The exchange is over at `ts_ns`, unless it was before."""
        if exchange.ended:
            return
        if why in ("client_gone", "server_gone") and exchange.reply and exchange.reply.over:
            why = "complete"
        elif why == "complete" and self.client_fin_ns is not None and (exchange.status or 0) >= 500:
            # What a proxy writes into the void for a client that gave up is no answer.
            why, ts_ns = "client_gone", self.client_fin_ns
        self.open.remove(exchange)
        self.heads -= exchange.method == "HEAD"
        says = self._finish(exchange, ts_ns)
        reply = exchange.reply
        fact = HttpEnd(
            ts_ns=ts_ns,
            xid=exchange.xid,
            why=why,
            bytes=exchange.bytes,
            tokens=reply.tokens if reply else None,
            says=says,
            model=reply.model if reply else None,
            error=(reply is not None and reply.error) or (exchange.status or 0) >= 400,
        )
        self.tell(exchange, fact)
        exchange.ended = True

    def end_all(self, ts_ns: int, why: EndWhy) -> None:
        while self.open:
            self.end(self.open[0], ts_ns, why)
