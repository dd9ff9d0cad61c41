"""The server's side of a connection: responses, as httptools calls them out."""

from __future__ import annotations

import httptools

from tracer.http.exchanges import (
    FILLER,
    MAX_FILL,
    MAX_QUIET,
    Exchange,
    Exchanges,
    Unparsable,
    content_length,
)
from tracer.http.replies import Reply, format_of
from tracer.records import HttpHead, HttpUnreadable

_BEGIN = b"HTTP/"


class Responses:
    """The server's side, as httptools calls it."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges
        self.parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._ts = 0
        self._quiet = 0
        self._begin_ts = 0
        self._reset()

    def _reset(self) -> None:
        self._type = b""
        self._encoding = b""
        self._upgrade = b""
        self._length: int | None = None
        self._chunked = False
        self._remaining: int | None = None
        self._interim = False
        self._bodyless = False
        self._until_close = False
        self._exchange: Exchange | None = None

    def feed(self, ts_ns: int, data: bytes) -> None:
        self._ts = ts_ns
        at = 0
        while at < len(data):
            # The parser cannot be told that a reply to HEAD has no body: stop it at the header.
            end = self._header_end(data, at) if self._exchanges.heads else len(data)
            self._feed(data[at:end] if end - at < len(data) else data)
            at = end
            if self._bodyless:
                self.parser = httptools.HttpResponseParser(self)
                self._bodyless = False

    def _header_end(self, data: bytes, at: int) -> int:
        """How far to read on so that no header ends within: up to where the next reply may begin,
        and in its header line by line."""
        if self._exchange is not None:
            found = data.find(_BEGIN, at + 1)
            return len(data) if found == -1 else found
        return data.find(b"\n", at) + 1 or len(data)

    def _feed(self, data: bytes) -> None:
        if self.parser is None:
            return
        self._quiet += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            raise Unparsable("http2" if b"h2c" in self._upgrade else "not_http") from upgrade
        except httptools.HttpParserError as error:
            raise Unparsable("not_http") from error
        if self._quiet > MAX_QUIET:
            raise Unparsable("not_http")

    def fill(self, ts_ns: int, length: int) -> bool:
        left = self._remaining
        if self._exchange is None or left is None or length > min(left, MAX_FILL):
            return False
        self._exchange.reply = None
        while length > 0:
            self.feed(ts_ns, FILLER[: min(length, len(FILLER))])
            length -= len(FILLER)
        return True

    def close(self) -> None:
        if self._until_close and self._exchange is not None:
            self.on_message_complete()

    def on_message_begin(self) -> None:
        self._begin_ts = self._ts
        self._reset()

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type":
            self._type = value
        elif lower == b"content-encoding":
            self._encoding = value.strip().lower()
        elif lower == b"content-length":
            self._length = content_length(value)
        elif lower == b"transfer-encoding":
            self._chunked = b"chunked" in value.lower()
        elif lower == b"upgrade":
            self._upgrade = value.lower()

    def on_headers_complete(self) -> None:
        self._quiet = 0
        status = self.parser.get_status_code() if self.parser is not None else 0
        exchanges = self._exchanges
        if 100 <= status < 200:
            self._interim = True
            return
        if not exchanges.open:
            return
        exchange = self._exchange = exchanges.open[0]
        self._begin(exchange, status)
        if exchange.method == "HEAD":
            self._bodyless = True
            self.on_message_complete()
            return
        if not self._chunked:
            self._remaining = self._length
        self._until_close = not self._chunked and self._length is None and status not in (204, 304)

    def _begin(self, exchange: Exchange, status: int) -> None:
        exchanges, ts_ns, form = self._exchanges, self._begin_ts, format_of(self._type)
        exchange.status = status
        streamed = form is not None
        head = HttpHead(ts_ns=ts_ns, xid=exchange.xid, status=status, event_stream=streamed)
        exchanges.tell(exchange, head)
        if exchange.endpoint is None or not exchange.endpoint.inference:
            return
        if self._encoding in (b"", b"identity"):
            exchange.reply = Reply(exchange.xid, form)
        else:
            hidden = HttpUnreadable(
                ts_ns=ts_ns, conn=exchanges.conn, why="compressed", xid=exchange.xid
            )
            exchanges.tell(exchange, hidden)

    def on_chunk_header(self) -> None:
        self._quiet = 0

    def on_body(self, data: bytes) -> None:
        self._quiet = 0
        exchange = self._exchange
        if exchange is None:
            return
        if self._remaining is not None:
            self._remaining -= len(data)
        self._exchanges.replied(exchange, self._ts, data)

    def on_message_complete(self) -> None:
        self._quiet = 0
        exchange, self._exchange = self._exchange, None
        self._remaining = None
        self._until_close = False
        if not self._interim and exchange is not None:
            self._exchanges.end(exchange, self._ts, "complete")
        self._interim = False
