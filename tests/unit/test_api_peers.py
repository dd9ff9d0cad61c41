"""One user among several: known, and kept from taking all there is."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tracer.api_http import Request, Response, Server
from tracer.api_peers import BURST, CONNECTIONS_PER_USER, RATE_PER_S, Peer, Peers, peer_of


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_kernel_says_who_asks() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert peer_of(one) == Peer(os.getpid(), os.getuid(), os.getgid())


def test_connections_are_counted_by_user() -> None:
    peers = Peers()
    assert [peers.come(7) for _ in range(CONNECTIONS_PER_USER + 1)][-2:] == [True, False]
    assert peers.come(8)
    for _ in range(2):
        peers.gone(7)
    assert peers.come(7)


def test_who_asks_too_often_waits_and_others_do_not() -> None:
    clock = Clock()
    peers = Peers(clock)
    assert all(peers.ask(7) for _ in range(int(BURST)))
    assert not peers.ask(7)
    assert peers.ask(8)
    clock.now += 3 / RATE_PER_S
    assert [peers.ask(7) for _ in range(4)] == [True, True, True, False]
    clock.now += 1000
    assert all(peers.ask(7) for _ in range(int(BURST)))
    assert not peers.ask(7)


def test_users_who_rest_are_forgotten() -> None:
    clock = Clock()
    peers = Peers(clock)
    for uid in range(1000):
        clock.now += 1.0
        assert peers.ask(uid)
    assert len(peers._left) < 10


@pytest.fixture
def answers(tmp_path: Path) -> Callable[[int], list[bytes]]:
    """`answers(N)`: the status lines of N requests on one connection."""

    async def handler(_: Request) -> Response:
        return Response(b"{}\n")

    def refuse(status: int, message: str) -> Response:
        return Response(message.encode(), status)

    async def ask(times: int) -> list[bytes]:
        path = str(tmp_path / f"s{len(list(tmp_path.iterdir()))}")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            server = Server(handler, refuse)
            await server.start(listener)
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"GET / HTTP/1.1\r\n\r\n" * times)
            lines = []
            while line := await reader.readline():
                if line.startswith(b"HTTP/1.1"):
                    lines.append(line.split()[1])
                if len(lines) == times:
                    break
            writer.close()
            await server.stop()
        return lines

    return lambda times: asyncio.run(ask(times))


def test_the_interface_refuses_the_flood(
    answers: Callable[[int], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracer.api_peers.RATE_PER_S", 1e-9)
    monkeypatch.setattr("tracer.api_peers.BURST", 3.0)
    assert answers(5) == [b"200", b"200", b"200", b"429"]


def test_who_asks_is_told_at_debug_level(
    answers: Callable[[int], list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    assert answers(1) == [b"200"]
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TTFT_DEBUG", "1")
    answers(1)
    line = f"ttftd: connection of process {os.getpid()}, user {os.getuid()}, group {os.getgid()}\n"
    assert capsys.readouterr().err == line
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    answers(1)
    assert capsys.readouterr().err == f"<7>{line}"
