"""HTTP/1.1 on one connection: both sides' bytes, in order, to facts about exchanges."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.http.exchanges import Exchanges
from tracer.http.inbound import Requests
from tracer.http.outbound import Responses
from tracer.records import AnyRecord, Conn


class Dialogue:
    """`client` and `server` raise `Unparsable` where the bytes are not HTTP/1.1.

    A hole is bytes that were never seen; False when the framing is lost with them.
    """

    __slots__ = ("_requests", "_responses", "exchanges")

    def __init__(self, conn: Conn, xids: Iterator[int], out: list[AnyRecord]) -> None:
        self.exchanges = Exchanges(conn, xids, out)
        self._requests = Requests(self.exchanges)
        self._responses = Responses(self.exchanges)

    def client(self, ts_ns: int, data: bytes) -> None:
        """Bytes from the client, complete at `ts_ns`."""
        self._requests.feed(ts_ns, data)

    def server(self, ts_ns: int, data: bytes) -> None:
        """Bytes from the server, sent at `ts_ns`."""
        self._responses.feed(ts_ns, data)

    def client_hole(self, ts_ns: int, length: int) -> bool:
        return self._requests.fill(ts_ns, length)

    def server_hole(self, ts_ns: int, length: int) -> bool:
        return self._responses.fill(ts_ns, length)

    def server_done(self) -> None:
        """The server sends nothing more: ends a reply whose end is the connection's."""
        self._responses.close()

    def close(self) -> None:
        """Break the parsers' reference cycles."""
        self._requests.parser = self._responses.parser = None
