"""A fast streaming server with the interface of OpenAI's and no model, for tests and bench.

`python -m tests.workloads.stub_server --chunks 20 --delay-ms 1` prints its port and serves until
its standard input is closed. A body's `max_tokens` overrides `--chunks`. Each chunk leaves in a
segment of its own. `GET /count` tells how many streams were served and chunks written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

from tests.workloads.served import Served

ROOT = Path(__file__).parents[2]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


def _event(delta: dict[str, Any] | None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    body = {"id": "chatcmpl-stub", "object": "chat.completion.chunk", "created": 1,
            "model": "stub", "choices": choices, **more}  # fmt: skip
    return _chunk(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ROLE = _event({"role": "assistant", "content": None})
TOKEN = _event({"content": " word"})
DONE = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Counts:
    """What the server itself knows it did."""

    def __init__(self) -> None:
        self.streams = 0
        self.chunks = 0


class Stub(asyncio.Protocol):
    """One connection; requests are answered one after the other."""

    def __init__(self, chunks: int, delay_s: float, counts: Counts) -> None:
        self._chunks = chunks
        self._delay_s = delay_s
        self._counts = counts
        self._buffer = bytearray()
        self._calls: asyncio.Queue[tuple[bytes, bytes] | None] = asyncio.Queue()
        self._wanted = 0
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._task = asyncio.get_running_loop().create_task(self._serve(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._calls.put_nowait(None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= self._wanted:
            end = self._buffer.find(b"\r\n\r\n")
            if end == -1:
                return
            head = bytes(self._buffer[:end])
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            self._wanted = end + 4 + length
            if len(self._buffer) < self._wanted:
                return
            self._calls.put_nowait((head, bytes(self._buffer[end + 4 : self._wanted])))
            del self._buffer[: self._wanted]
            self._wanted = 0

    async def _serve(self, transport: asyncio.Transport) -> None:
        while (call := await self._calls.get()) is not None:
            head, body = call
            if head.startswith(b"GET"):
                self._answer(transport, vars(self._counts))
                continue
            asked = json.loads(body)
            chunks = int(asked.get("max_tokens", self._chunks))
            if asked.get("stream"):
                await self._stream(transport, chunks)
            else:
                await asyncio.sleep(self._delay_s * chunks)
                self._answer(transport, {
                    "model": "stub", "choices": [{"message": {"content": " word" * chunks}}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": chunks},
                })  # fmt: skip

    async def _stream(self, transport: asyncio.Transport, chunks: int) -> None:
        transport.write(HEAD)
        transport.write(ROLE)
        for _ in range(chunks):
            await asyncio.sleep(self._delay_s)
            if transport.is_closing():
                return
            transport.write(TOKEN)
            self._counts.chunks += 1
        usage = {"prompt_tokens": 1, "completion_tokens": chunks}
        transport.write(_event(None, usage=usage))
        transport.write(DONE)
        self._counts.streams += 1

    def _answer(self, transport: asyncio.Transport, value: Any) -> None:
        body = json.dumps(value).encode()
        transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            % len(body) + body
        )  # fmt: skip


async def serve(host: str, port: int, chunks: int, delay_s: float) -> None:
    """Serve until standard input ends; the port goes to standard output."""
    loop = asyncio.get_running_loop()
    counts = Counts()
    server = await loop.create_server(
        lambda: Stub(chunks, delay_s, counts), host, port, backlog=1024
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)


class StubServer(Served):
    """The server as a process of its own: `with StubServer(chunks=20) as stub: stub.port`."""

    def __init__(
        self, *, chunks: int = 20, delay_ms: float = 0.0, host: str = "127.0.0.1", port: int = 0,
        prefix: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__([
            *prefix, sys.executable, "-m", "tests.workloads.stub_server", "--host", host,
            "--port", str(port), "--chunks", str(chunks), "--delay-ms", str(delay_ms),
        ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    given = parser.parse_args()
    asyncio.run(serve(given.host, given.port, given.chunks, given.delay_ms / 1000))


if __name__ == "__main__":
    main()
