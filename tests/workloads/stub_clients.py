"""Many streaming clients at once, with what each of them saw itself."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

_LISTENING = "0A"


@dataclass(frozen=True)
class Seen:
    """One stream as its client saw it; times are CLOCK_MONOTONIC in ns."""

    port: int
    sent_ns: int
    first_ns: int
    end_ns: int
    tokens: int


def call(model: str, chunks: int | None = None, stream: bool = True) -> bytes:
    """A chat request as bytes."""
    asked: dict[str, object] = {"model": model, "stream": stream, "messages": []}
    if chunks is not None:
        asked["max_tokens"] = chunks
    body = json.dumps(asked).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: stub\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


async def stream(host: str, port: int, request: bytes) -> Seen:
    """One stream on a connection of its own."""
    reader, writer = await asyncio.open_connection(host, port)
    own = writer.get_extra_info("sockname")[1]
    sent = time.monotonic_ns()
    writer.write(request)
    first, tokens = 0, 0
    while True:
        line = await reader.readline()
        if b'"content":" ' in line:
            first = first or time.monotonic_ns()
            tokens += 1
        elif line == b"0\r\n":
            break
        elif not line:
            raise ConnectionError("the stream ended early")
    end = time.monotonic_ns()
    writer.close()
    return Seen(own, sent, first, end, tokens)


async def streams(host: str, port: int, clients: int, request: bytes) -> list[Seen]:
    """`clients` streams at once."""
    return await asyncio.gather(*(stream(host, port, request) for _ in range(clients)))


def all_closed(port: int) -> bool:
    """Whether the server has no connection there any more, not even one that is closing."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return not any(row[1].endswith(f":{port:04X}") and row[3] != _LISTENING for row in rows)
