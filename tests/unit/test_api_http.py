"""The small HTTP server by itself: what it takes for a request, and when a connection ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workloads.waiting import wait_for
from tracer import api_http
from tracer.api_http import BadRequest, Request, Response, Server, parse


@pytest.mark.parametrize(
    ("head", "request_"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Request("GET", "/")),
        (
            b"GET /v1/requests?last=3&model=a%20b&since= HTTP/1.1\r\nHost: x\r\n\r\n",
            Request("GET", "/v1/requests", (("last", "3"), ("model", "a b"), ("since", ""))),
        ),
        (b"HEAD /%C3%A4 HTTP/1.1\r\n\r\n", Request("HEAD", "/ä")),
        (b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", Request("GET", "/", keep_alive=False)),
        (b"GET / HTTP/1.0\r\n\r\n", Request("GET", "/", keep_alive=False, chunks=False)),
        (b"POST /a HTTP/1.1\r\ncontent-LENGTH:12\r\n\r\n", Request("POST", "/a", body_bytes=12)),
        (b"GET /?q=%ff HTTP/1.1\r\n\r\n", Request("GET", "/", (("q", "\ufffd"),))),
    ],
)  # fmt: skip
def test_a_request(head: bytes, request_: Request) -> None:
    assert parse(head) == request_


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET v1 HTTP/1.1\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"GET /\xc3\xa4 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n",
    ],
)
def test_no_request(head: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(head)


@given(st.binary(max_size=200))
def test_any_head_is_a_request_or_none(data: bytes) -> None:
    with suppress(BadRequest):
        assert parse(data + b"\r\n\r\n").path.startswith("/")


# --- connections --------------------------------------------------------------------------


class Endless:
    """A stream that never ends by itself; `closed` once its generator was."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.closed = threading.Event()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            self.closed.set()


@contextmanager
def serving(folder: Path, response: Response) -> Iterator[Path]:
    """A server that always answers the same (refusals: their text)."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    path = folder / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    async def answer(_: Request) -> Response:
        return response

    async def serve() -> None:
        server = Server(answer, lambda status, text: Response(text.encode(), status))
        await server.start(listener)
        await stop.wait()
        await server.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield path
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(str(path))
    return connection


def told(path: Path, sent: bytes) -> bytes:
    """All that comes for these bytes, until the server closes."""
    with connected(path) as connection:
        connection.sendall(sent)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


GET = b"GET / HTTP/1.1\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"


def test_requests_in_one_go_are_answered_in_order(tmp_path: Path) -> None:
    with serving(tmp_path, Response(b"{}")) as path:
        assert told(path, GET + b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" + LAST) == (
            2 * (PLAIN + b"\r\n{}") + PLAIN + b"connection: close\r\n\r\n{}"
        )


def test_head_gets_no_body(tmp_path: Path) -> None:
    with serving(tmp_path, Response(b"{}")) as path:
        sent = LAST.replace(b"GET", b"HEAD")
        assert told(path, sent) == PLAIN + b"connection: close\r\n\r\n"


def test_pieces_are_chunks_but_for_old_clients(tmp_path: Path) -> None:
    def pieces() -> Response:
        return Response(iter([b"ab", b"c" * 17]), media_type="text/plain")

    start = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
    with serving(tmp_path, pieces()) as path:
        body = b"2\r\nab\r\n11\r\n" + b"c" * 17 + b"\r\n0\r\n\r\n"
        chunked = b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        assert told(path, GET) == start + chunked + body
    (tmp_path / "s").unlink()
    with serving(tmp_path, pieces()) as path:
        old = GET.replace(b"1.1", b"1.0")
        assert told(path, old) == start + b"connection: close\r\n\r\nab" + b"c" * 17


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"rubbish\r\n\r\n", b"400 Bad Request"),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999\r\n\r\n", b"400 Bad Request"),
    ],
)
def test_what_is_no_request_is_refused(tmp_path: Path, sent: bytes, status: bytes) -> None:
    with serving(tmp_path, Response(b"{}")) as path:
        assert told(path, sent).startswith(b"HTTP/1.1 " + status)


def test_a_stream_ends_with_its_client(tmp_path: Path) -> None:
    endless = Endless()
    with serving(tmp_path, Response(endless.pieces())) as path:
        with connected(path) as connection:
            connection.sendall(GET)
            assert endless.begun.wait(10)
            assert not endless.closed.is_set()
        assert endless.closed.wait(10)


def test_a_stream_ends_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_http, "_STOP_S", 0.05)
    endless = Endless()
    with serving(tmp_path, Response(endless.pieces())) as path:
        connection = connected(path)
        connection.sendall(GET)
        assert endless.begun.wait(10)
    assert endless.closed.is_set()
    connection.close()


def test_a_silent_connection_holds_up_no_end(tmp_path: Path) -> None:
    with serving(tmp_path, Response(b"{}")) as path:
        silent = connected(path)
        wait_for(lambda: told(path, LAST).endswith(b"{}"), 10, "an answer")
    assert silent.recv(1) == b""
    silent.close()
