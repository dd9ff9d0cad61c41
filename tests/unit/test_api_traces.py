"""Traces, the largest answers: one at a time, in bounded memory, for who reads them."""

from __future__ import annotations

import asyncio
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.unit.answer_cases import spike
from tests.unit.fake_daemon import FakeDaemon, serving
from tests.unit.test_api_http import GET, LAST, connected, told
from tests.unit.test_api_http import serving as answering
from tests.unit.trace_cases import MS, switch
from tests.workloads.waiting import wait_for
from tracer import api
from tracer.api_http import CONNECTIONS_MAX, Response
from tracer.api_peers import Turns
from tracer.client import Client
from tracer.derived import Derived
from tracer.errors import TtftError
from tracer.export import gathered as module
from tracer.export.chrome import PIECE, dump, pieces
from tracer.export.gathered import gathered

ASK = b"GET /v1/trace HTTP/1.1\r\nConnection: close\r\n\r\n"


class Held:
    """Exports that go on until they may end; `most` were made at once."""

    def __init__(self, size: int = 1) -> None:
        self.go_on = threading.Event()
        self.begun = 0
        self.now = self.most = 0
        self._size = size

    def export(self, _: list[int]) -> Iterator[bytes]:
        self.begun += 1
        self.now += 1
        self.most = max(self.most, self.now)
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        try:
            yield b"x" * self._size
            self.go_on.wait(10)
            yield b"end"
        finally:
            self.now -= 1


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    with serving(tmp_path) as running:
        yield running


def ask(daemon: FakeDaemon) -> socket.socket:
    connection = connected(daemon.socket)
    connection.sendall(ASK)
    return connection


def rest(connection: socket.socket) -> bytes:
    parts = []
    with connection:
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def test_one_is_made_at_a_time_and_a_user_has_but_some_in_line(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    monkeypatch.setattr(daemon.backend, "export", held.export)
    first = ask(daemon)
    wait_for(lambda: held.begun == 1, 10, "the first is made")
    second = ask(daemon)
    wait_for(lambda: b" 503 " in told(daemon.socket, ASK), 10, "the line is full")
    refused = told(daemon.socket, ASK)
    assert b"\r\nretry-after: 5\r\n" in refused and b"other traces are being made" in refused
    assert Client(str(daemon.socket)).get("/v1/status")
    assert held.begun == 1
    held.go_on.set()
    for one in (first, second):
        answer = rest(one)
        assert answer.startswith(b"HTTP/1.1 200 ") and b"end" in answer
    assert (held.begun, held.most) == (2, 1)


def test_who_waits_too_long_is_sent_away() -> None:
    async def scene() -> None:
        turns = Turns(wait_s=0.05, per_user=2)
        assert await turns.come(1)
        assert not await turns.come(2)
        assert not await turns.come(1)
        waiting = asyncio.ensure_future(turns.come(3))
        await asyncio.sleep(0)
        turns.gone(1)
        assert await waiting
        turns.gone(3)
        waiting = asyncio.ensure_future(turns.come(4))
        waiting.cancel()
        await asyncio.wait({waiting})
        assert await turns.come(5)
        turns.gone(5)
        assert not turns._line

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["failed", "left", "did not read", "HEAD"])
def test_the_next_has_its_turn_whatever_became_of_the_one_before(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(api, "EXPORT_SEND_S", 0.2)
    held = Held(16 << 20)
    held.go_on.set()

    def fails(_: list[int]) -> Iterator[bytes]:
        raise TtftError("no", None)

    monkeypatch.setattr(daemon.backend, "export", fails if how == "failed" else held.export)
    head = ASK.replace(b"GET", b"HEAD") if how == "HEAD" else ASK
    before = connected(daemon.socket)
    before.sendall(head)
    if how != "did not read":
        before.recv(100)
        before.close()
    monkeypatch.setattr(daemon.backend, "export", lambda _: iter([b"mine"]))
    assert Client(str(daemon.socket)).get("/v1/trace") == b"mine\n"
    before.close()


def distinct(number: int) -> Derived:
    return switch(number * 1000 * MS)


def test_it_is_the_same_in_pieces_and_with_shared_facts_kept_once() -> None:
    items = [distinct(n // 3 + 1) for n in range(90)]
    whole = dump(items)
    parts = list(pieces(gathered(items)))
    assert b"".join(parts) == whole
    assert len(parts) > 1 and max(map(len, parts)) < PIECE + 4096
    assert dump(gathered([spike(17)])) == dump([spike(17)])


def test_requests_that_saw_the_same_do_not_weigh_it_each() -> None:
    def weight(items: Iterator[Derived]) -> int:
        tracemalloc.start()
        try:
            kept = gathered(items)
            assert kept
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    packed = msgspec.json.encode(distinct(1).evidence)
    item = distinct(1)

    def copies(count: int) -> Iterator[Derived]:
        for _ in range(count):
            evidence = msgspec.json.decode(packed, type=type(item.evidence))
            yield msgspec.structs.replace(item, evidence=evidence)

    assert weight(copies(100)) < 50 * weight(copies(1))


def test_more_than_may_be_held_is_refused_but_a_single_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FACTS_MAX", 20)
    assert len(gathered([distinct(1)])) == 1
    assert len(gathered([distinct(1)] * 5)) == 5
    with pytest.raises(TtftError, match="too large"):
        gathered(distinct(n) for n in range(1, 50))


def test_a_connection_counts_until_its_last_answer_is_taken(tmp_path: Path) -> None:
    """Who does not read would have as many as it likes."""
    with answering(tmp_path, Response(b"x" * 400_000)) as path:
        unread = []
        for _ in range(CONNECTIONS_MAX):
            connection = connected(path)
            connection.sendall(LAST)
            unread.append(connection)
        wait_for(lambda: told(path, LAST) == b"" or b" 503 " in told(path, LAST), 10, "a refusal")
        for connection in unread:
            connection.close()
        wait_for(lambda: told(path, GET + LAST).count(b" 200 ") == 2, 10, "an answer")
