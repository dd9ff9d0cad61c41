"""Metrics on a TCP port, for a Prometheus that cannot read a Unix socket. Nothing else is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from ipaddress import ip_address

HEAD_MAX = 8192
HEAD_S = 5.0
CONNECTIONS_MAX = 8

Text = Callable[[], bytes]


class MetricsPort:
    """`start`, then `stop`. `trouble`: why it does not listen, if so."""

    def __init__(self, address: tuple[str, int], text: Text) -> None:
        self.address = address
        self.trouble: str | None = None
        self._text = text
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self) -> None:
        """A port that another program has is no reason not to watch."""
        try:
            self._server = await asyncio.start_server(
                self._answer, *self.address, limit=HEAD_MAX, backlog=CONNECTIONS_MAX
            )
        except OSError as error:
            self.trouble = error.strerror or str(error)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(HEAD_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._reply(head))
                async with asyncio.timeout(HEAD_S):
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asks so gets nothing
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _reply(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if not self._known_host(head):
            return _reply(403, b"this name is not of the metrics' address\n")
        if path != b"/metrics":
            return _reply(404, b"there is: /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _reply(405, b"this interface is read-only: use GET\n")
        text = await asyncio.to_thread(self._text)
        return _reply(200, text, head_only=method == b"HEAD")

    def _known_host(self, head: bytes) -> bool:
        """On loopback only names of loopback: a web page may point a name of its own there."""
        if not ip_address(self.address[0]).is_loopback:
            return True
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"host":
                host = value.strip().decode("latin-1")
                host = host[1:].partition("]")[0] if host[:1] == "[" else host.partition(":")[0]
                return host == "localhost" or _loopback(host)
        return True


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


_REASONS = {200: "OK", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"}


def _reply(status: int, body: bytes, head_only: bool = False) -> bytes:
    kind = "text/plain; version=0.0.4; charset=utf-8"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if head_only else body)
