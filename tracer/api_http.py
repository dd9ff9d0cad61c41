"""HTTP/1.1 for a Unix socket: GET only, no bodies in, everything bounded.

Small on purpose: the usual server and framework take 6 MB and 75 ms of the start.
"""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from socket import socket
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

from tracer.api_peers import Peers, peer_of
from tracer.api_streams import SlowReader
from tracer.errors import TtftError
from tracer.log import debug, log

HEAD_MAX = 16 << 10
HEAD_S = 10.0
KEEP_S = 5.0
"""How long a connection may take to ask, and to ask again."""
CONNECTIONS_MAX = 64
THREADS = 2
_BODY_MAX = 64 << 10
_STOP_S = 1.0
_START = re.compile(rb"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*", re.DOTALL)


class BadRequest(Exception):
    """Not HTTP as we speak it; 400."""


@dataclass(frozen=True)
class Request:
    """What is asked, and which user asks.

    `pairs`: the query; `path_params`: filled in by who knows the paths.
    """

    method: str
    path: str
    pairs: tuple[tuple[str, str], ...] = ()
    path_params: dict[str, str] = field(default_factory=dict)
    keep_alive: bool = True
    chunks: bool = True
    body_bytes: int = 0
    uid: int | None = None


@dataclass(frozen=True)
class Response:
    """An answer; an iterator is sent piece by piece, a plain one asked for them in a thread.

    `limit_s`: how long the pieces may take, to whoever reads them. `done` is called when all
    is sent, or never will be.
    """

    body: bytes | Iterator[bytes] | AsyncGenerator[bytes, None]
    status: int = 200
    media_type: str = "application/json"
    retry_after_s: int | None = None
    limit_s: float | None = None
    done: Callable[[], None] | None = None


@dataclass(frozen=True)
class _Caller:
    """Whose connection it is; `crowded`: it is one too many."""

    uid: int
    crowded: bool
    peers: Peers

    def refusal(self) -> tuple[int, str] | None:
        """Why the next request is not answered: status and message."""
        if self.crowded:
            return 503, "too many connections"
        return None if self.peers.ask(self.uid) else (429, "too many requests")


T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


def parse(head: bytes) -> Request:
    """The request of a head, up to and with its empty line."""
    start, *lines = head[:-4].split(b"\r\n")
    found = _START.fullmatch(start)
    fields = [_FIELD.fullmatch(line) for line in lines]
    if found is None or None in fields:
        raise BadRequest("not an HTTP/1.1 request")
    named = {f.group(1).lower(): f.group(2).lower() for f in fields if f is not None}
    length = named.get(b"content-length", b"0")
    if b"transfer-encoding" in named or not re.fullmatch(rb"[0-9]{1,9}", length):
        raise BadRequest("a body of unknown length")
    path, _, query = found.group(2).decode("ascii").partition("?")
    new = found.group(3) == b"1"
    return Request(
        method=found.group(1).decode(),
        path=unquote(path),
        pairs=tuple(parse_qsl(query, keep_blank_values=True)),
        keep_alive=new and b"close" not in named.get(b"connection", b""),
        chunks=new,
        body_bytes=int(length),
    )


class Server:
    """`start()`, then `stop()`, in one event loop. `handler` answers everything, errors too."""

    def __init__(self, handler: Handler, refuse: Callable[[int, str], Response]) -> None:
        """`refuse` makes the answer to what never comes to the handler: (status, message)."""
        self._handler = handler
        self._refuse = refuse
        self._server: asyncio.Server | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ttft-answers")
        self._open: dict[asyncio.Task[None], bool] = {}
        self._peers = Peers()

    async def start(self, listener: socket) -> None:
        """Answer from now on."""
        self._server = await asyncio.start_unix_server(
            self._connected, sock=listener, limit=HEAD_MAX
        )

    async def stop(self) -> None:
        """Answer nothing new; what is being answered has a second to end."""
        if self._server is not None:
            self._server.close()
        for task in [task for task, busy in self._open.items() if not busy]:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=_STOP_S)
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do it in one of the few worker threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = peer_of(writer.get_extra_info("socket"))
        debug(f"connection of process {peer.pid}, user {peer.uid}, group {peer.gid}")
        crowded = not self._peers.come(peer.uid) or len(self._open) >= CONNECTIONS_MAX
        caller = _Caller(peer.uid, crowded, self._peers)
        self._open[task] = False
        try:
            patience_s = HEAD_S
            while await self._one(task, reader, writer, caller, patience_s):
                patience_s = KEEP_S
        except (OSError, asyncio.CancelledError):
            # The client is gone, or we are about to go.
            writer.transport.abort()
        finally:
            # It counts until the client has taken what is left, or is gone.
            self._open[task] = False
            await _closed(writer)
            del self._open[task]
            self._peers.gone(peer.uid)

    async def _one(
        self,
        task: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        caller: _Caller,
        patience_s: float,
    ) -> bool:
        """Read one request and answer it; whether another may follow."""
        try:
            request = await _read(reader, patience_s)
        except BadRequest as error:
            await self._send(reader, writer, None, self._refuse(400, str(error)))
            return False
        if request is None:
            return False
        self._open[task] = True
        if (refused := caller.refusal()) is not None:
            await self._send(reader, writer, None, self._refuse(*refused))
            return False
        response = await self._handler(replace(request, uid=caller.uid))
        try:
            goes_on = await self._send(reader, writer, request, response)
        finally:
            if response.done is not None:
                response.done()
        self._open[task] = False
        return goes_on

    async def _send(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        request: Request | None,
        response: Response,
    ) -> bool:
        """Send it; whether the connection goes on."""
        body = response.body
        plain = isinstance(body, bytes)
        chunks = request is not None and request.chunks and not plain
        keep = request is not None and request.keep_alive and plain
        phrase = HTTPStatus(response.status).phrase
        head = f"HTTP/1.1 {response.status} {phrase}\r\ncontent-type: {response.media_type}\r\n"
        if isinstance(body, bytes):
            head += f"content-length: {len(body)}\r\n"
        elif chunks:
            head += "transfer-encoding: chunked\r\n"
        if response.retry_after_s is not None:
            head += f"retry-after: {response.retry_after_s}\r\n"
        head += "\r\n" if keep else "connection: close\r\n\r\n"
        writer.write(head.encode())
        if request is not None and request.method == "HEAD":
            await writer.drain()
            return keep
        if isinstance(body, bytes):
            writer.write(body)
            await writer.drain()
            return keep
        pieces = self._from_thread(body) if isinstance(body, Iterator) else body
        async with asyncio.timeout(response.limit_s):
            await _until_gone(reader, _pump(pieces, writer, chunks), writer)
        return False

    async def _from_thread(self, pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
        while (piece := await self.in_thread(lambda: next(pieces, None))) is not None:
            yield piece


async def _read(reader: asyncio.StreamReader, patience_s: float) -> Request | None:
    """The next request; None when none comes."""
    try:
        async with asyncio.timeout(patience_s):
            request = parse(await reader.readuntil(b"\r\n\r\n"))
            if request.body_bytes > _BODY_MAX:
                raise BadRequest("a body is not read here")
            # Left unread it would cost the client our answer.
            await reader.readexactly(request.body_bytes)
            return request
    except asyncio.LimitOverrunError:
        raise BadRequest("the head of the request is too long") from None
    except (TimeoutError, asyncio.IncompleteReadError):
        return None


async def _pump(
    pieces: AsyncGenerator[bytes, None], writer: asyncio.StreamWriter, chunks: bool
) -> None:
    async with aclosing(pieces):
        async for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunks else piece)
            await writer.drain()
    if chunks:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except (OSError, asyncio.CancelledError):
        writer.transport.abort()


async def _until_gone(
    reader: asyncio.StreamReader, sending: Awaitable[None], writer: asyncio.StreamWriter
) -> None:
    """Send until all is sent, the client is gone, or the pieces cannot be had: then cut off."""
    sender = asyncio.ensure_future(sending)
    gone = asyncio.ensure_future(_to_end(reader))
    try:
        await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        sender.cancel()
        await asyncio.wait({sender, gone})
    if sender.cancelled():
        return
    error = sender.exception()
    if error is not None:
        writer.transport.abort()
        told(error)


async def _to_end(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(4096):
            pass


def told(error: BaseException) -> None:
    """Say what went wrong in the middle of an answer.

    A reader that was too slow, or is gone, is no fault of ours; a disk that fails is one line.
    """
    if isinstance(error, TtftError):
        log(f"answer cut off: {error.message}")
    elif not isinstance(error, SlowReader | OSError):
        log(f"internal error: {error!r}")
        for line in "".join(traceback.format_exception(error)).splitlines():
            log(line)
