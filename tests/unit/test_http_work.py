"""What a peer sends costs what its size is worth: no shape of it costs the square."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.unit.http_wire import HEAD, Wire, chunk, json_reply, post, read
from tracer.http import endpoints, outbound
from tracer.http.inbound import MAX_URL
from tracer.http.reader import HttpReader
from tracer.records import HttpEnd, HttpRequest

CHAT = "/v1/chat/completions"
SMALL = 40_000
TIMES = 8


def stream(body: bytes) -> Wire:
    wire = Wire().open().send(post(CHAT, b'{"stream":true}'))
    return wire.reply(HEAD).reply(*pieces(chunk(body)))


def sent(data: bytes) -> Wire:
    return Wire().open().send(*pieces(data))


def request(body: bytes) -> Wire:
    return sent(post(CHAT, body))


def pieces(data: bytes, size: int = 1448) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def beside_head(body: bytes) -> Wire:
    both = post(CHAT, b"{}") + b"HEAD /health HTTP/1.1\r\n\r\n"
    return Wire().open().send(both).reply(*pieces(json_reply(body)))


SHAPES: dict[str, Callable[[int], Wire]] = {
    "slashes": lambda n: sent(b"GET /upstream/" + b"/" * n + b"x HTTP/1.1\r\n\r\n"),
    "header": lambda n: sent(b"GET / HTTP/1.1\r\na: " + b"b" * n),
    "headers": lambda n: sent(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (n // 6)),
    "long line": lambda n: stream(b"data: " + b"x" * n),
    "data lines": lambda n: stream(b"data:\n" * (n // 6)),
    "short events": lambda n: stream(b"data:{}\n\n" * (n // 9)),
    "errors": lambda n: stream(b"error:\n" * (n // 7)),
    "empty lines": lambda n: stream(b"\n" * n),
    "one byte chunks": lambda n: Wire().open().send(post(CHAT, b"{}")).reply(HEAD).reply(
        *pieces(chunk(b"x") * (n // 6))
    ),
    "nest": lambda n: request(b'{"a":' + b"[" * n),
    "quotes": lambda n: request(b'{"a":["' + b'\\"' * (n // 2)),
    "backslashes": lambda n: request(b'{"a":"' + b"\\" * n),
    "keys": lambda n: request(b"{" + b'"":1,' * (n // 5)),
    "beside HEAD": lambda n: beside_head(b"[" * n),
    "beside HEAD, lines": lambda n: beside_head(b"\n" * n),
    "beside HEAD, replies": lambda n: beside_head(b"HTTP/" * (n // 5)),
}  # fmt: skip


def seconds(wire: Wire) -> float:
    """The shortest of three runs."""
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        read(wire.packets)
        took.append(time.perf_counter() - begin)
    return min(took)


@pytest.mark.parametrize("shape", SHAPES)
def test_eight_times_the_bytes_are_no_square_of_the_work(shape: str) -> None:
    make = SHAPES[shape]
    small, large = seconds(make(SMALL)), seconds(make(SMALL * TIMES))
    # Of a square it is 64 times; of what a machine does beside it, some more than eight.
    assert large < 4 * TIMES * max(small, 0.002)


@pytest.mark.parametrize("size", [20, MAX_URL, 60_000])
def test_a_long_url_is_cut(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    asked: list[str] = []

    def find(url: str) -> endpoints.Endpoint | None:
        asked.append(url)
        return endpoints.find(url)

    monkeypatch.setattr("tracer.http.exchanges.find", find)
    wire = Wire().open().send(b"GET /upstream/" + b"/" * size + b"x HTTP/1.1\r\n\r\n")
    (request,) = (f for f in read(wire.packets) if isinstance(f, HttpRequest))
    assert request.endpoint is None
    assert [len(url) for url in asked] == [min(MAX_URL, size + len("/upstream/x"))]


def test_the_known_path_behind_a_prefix_is_sought_without_the_slashes_of_the_url() -> None:
    """Each slash tried is a copy of the rest."""
    counted = CountedStr("/upstream/" + "/" * 8000 + "x")
    assert endpoints._behind_prefix(counted) is None
    assert counted.cuts == 0


class CountedStr(str):
    """Counts what is cut out of it."""

    cuts = 0

    def __getitem__(self, key: object) -> str:
        self.cuts += 1
        return super().__getitem__(key)  # type: ignore[index]


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_head_that_waits_costs_the_reply_before_it_nothing(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    fed: list[int] = []
    original = outbound.Responses._feed

    def feed(self: outbound.Responses, data: bytes) -> None:
        fed.append(len(data))
        original(self, data)

    monkeypatch.setattr(outbound.Responses, "_feed", feed)
    body = b'{"a":"' + b"\n" * size + b'"}'
    wire = Wire().open()
    wire.send(post(CHAT, b"{}") + b"HEAD /health HTTP/1.1\r\n\r\nGET /props HTTP/1.1\r\n\r\n")
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"
    wire.reply(*pieces(json_reply(body) + head + json_reply(b"[1]")))
    ends = [f.bytes for f in read(wire.packets) if isinstance(f, HttpEnd)]
    assert ends == [len(body), 0, 3]
    assert len(fed) < 20 + size / 1000


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_head_reply_ends_at_its_header_wherever_segments_are_cut(cut: int) -> None:
    wire = Wire().open()
    wire.send(post(CHAT, b"{}") + b"HEAD /health HTTP/1.1\r\n\r\nGET /props HTTP/1.1\r\n\r\n")
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"
    wire.reply(*pieces(json_reply(b"HTTP/HTTP/1.") + head + json_reply(b"[1]"), cut))
    ends = [(f.bytes, f.why) for f in read(wire.packets, HttpReader()) if isinstance(f, HttpEnd)]
    assert ends == [(12, "complete"), (0, "complete"), (3, "complete")]
