"""The client's side of a connection: requests, as httptools calls them out."""

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
from tracer.records import HttpBody

MAX_URL = 8 << 10
_MAX_MODEL = 256


class Requests:
    """The client's side, as httptools calls it."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges
        self.parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._ts = 0
        self._quiet = 0
        self._begin_ts = 0
        self._url = b""
        self._length: int | None = None
        self._chunked = False
        self._remaining: int | None = None
        self._exchange: Exchange | None = None
        self._resuming = False

    def feed(self, ts_ns: int, data: bytes) -> None:
        if self.parser is None:
            return
        self._ts = ts_ns
        self._quiet += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(ts_ns, data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            raise cause if isinstance(cause, Unparsable) else Unparsable("not_http") from error
        except httptools.HttpParserError as error:
            raise Unparsable("not_http") from error
        if self._quiet > MAX_QUIET:
            raise Unparsable("not_http")

    def _ignore_upgrade(self, ts_ns: int, rest: bytes) -> None:
        """Servers may ignore an offer to upgrade: read on as HTTP/1.1 until one accepts.

        The parser takes such a request's body for the other protocol, so the body gets a
        parser, and a header, of its own.
        """
        self.parser = httptools.HttpRequestParser(self)
        if self._resuming:
            framing = (
                b"Transfer-Encoding: chunked"
                if self._chunked
                else (b"Content-Length: %d" % (self._length or 0))
            )
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        if rest:
            self._quiet = 0
            self.feed(ts_ns, rest)

    def fill(self, ts_ns: int, length: int) -> bool:
        left = self._remaining
        if self._exchange is None or left is None or length > min(left, MAX_FILL):
            return False
        self._exchange.scan = None
        while length > 0:
            self.feed(ts_ns, FILLER[: min(length, len(FILLER))])
            length -= len(FILLER)
        return True

    def on_message_begin(self) -> None:
        if not self._resuming:
            self._begin_ts = self._ts
            self._url = b""
            self._length = self._remaining = None
            self._chunked = False

    def on_url(self, url: bytes) -> None:
        self._url += url[: MAX_URL - len(self._url)]

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 14 and name.lower() == b"content-length":
            self._length = content_length(value)
        elif len(name) == 17 and name.lower() == b"transfer-encoding":
            self._chunked = b"chunked" in value.lower()

    def on_headers_complete(self) -> None:
        self._quiet = 0
        parser = self.parser
        if self._resuming or parser is None:
            return
        method = parser.get_method().decode("latin-1")
        if method == "CONNECT":
            raise Unparsable("not_http")
        if not self._chunked:
            self._remaining = self._length
        url = self._url.decode("latin-1")
        self._exchange = self._exchanges.begin(self._begin_ts, method, url)
        self._resuming = parser.should_upgrade() and bool(self._chunked or self._length)

    def on_body(self, data: bytes) -> None:
        self._quiet = 0
        exchange = self._exchange
        if exchange is None:
            return
        exchange.received += len(data)
        if self._remaining is not None:
            self._remaining -= len(data)
        if exchange.scan is not None:
            exchange.scan.feed(data)

    def on_message_complete(self) -> None:
        self._quiet = 0
        exchange = self._exchange
        if self._resuming and self.parser is not None and self.parser.should_upgrade():
            return
        self._resuming = False
        self._exchange = self._remaining = None
        if exchange is None:
            return
        exchange.whole_request = True
        self._exchanges.tell(exchange, _body(exchange, self._ts))
        exchange.scan = None


def _body(exchange: Exchange, ts_ns: int) -> HttpBody:
    model: str | None = None
    stream: bool | None = None
    scan, endpoint = exchange.scan, exchange.endpoint
    if scan is not None and endpoint is not None:
        named, streams = scan.get("model"), scan.get("stream")
        model = named[:_MAX_MODEL] if isinstance(named, str) else None
        if isinstance(streams, bool):
            stream = streams
        elif scan.done and not scan.broken:
            stream = endpoint.streams
    return HttpBody(
        ts_ns=ts_ns, xid=exchange.xid, bytes=exchange.received, model=model, stream=stream
    )
