"""Streams of the interface: as they come, bounded, and cut off rather than holed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.fake_daemon import HEADER, FakeBackend, FakeDaemon, serving
from tracer import api
from tracer.api_http import Request
from tracer.api_streams import Fanout, SlowReader, with_heartbeat
from tracer.client import Client
from tracer.errors import TtftError
from tracer.store import Store


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    with serving(tmp_path_factory.mktemp("streams")) as running:
        yield running


def test_events(daemon: FakeDaemon) -> None:
    stream = Client(str(daemon.socket)).stream("/v1/events")
    assert next(stream) == b": ttft events\n\n"
    daemon.do(_when_read, daemon.backend.fanout, b'{"id":5}')
    assert next(stream) == b'event: request\ndata: {"id":5}\n\n'
    stream.close()


def _when_read(fanout: Fanout, item: bytes) -> None:
    """Publish as soon as somebody reads."""
    if fanout.readers:
        fanout.publish(item)
    else:
        asyncio.get_running_loop().call_later(0.005, _when_read, fanout, item)


def test_records(daemon: FakeDaemon) -> None:
    stream = Client(str(daemon.socket)).stream("/v1/records")
    assert next(stream) == HEADER
    daemon.do(_when_read, daemon.backend.recording, b'{"t":"tick","ts_ns":1}\n')
    assert next(stream) == b'{"t":"tick","ts_ns":1}\n'
    stream.close()


def _burst(fanout: Fanout) -> None:
    if not fanout.readers:
        asyncio.get_running_loop().call_later(0.005, _burst, fanout)
        return
    for _ in range(10):
        fanout.publish(b"x" * 8)


def test_a_slow_reader_loses_the_oldest_and_is_told() -> None:
    async def check() -> list[bytes]:
        fanout = Fanout(gap=lambda lost: b"lost %d" % lost, max_bytes=4)
        items = fanout.subscribe()
        first = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        for number in range(6):
            fanout.publish(b"%d%d" % (number, number))
        fanout.close()
        return [await first, *[item async for item in items]]

    assert asyncio.run(check()) == [b"lost 4", b"44", b"55"]


def test_a_slow_reader_of_what_must_be_whole_is_cut_off() -> None:
    async def check() -> None:
        fanout = Fanout(max_bytes=4)
        items = fanout.subscribe()
        first = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        for _ in range(6):
            fanout.publish(b"xx")
        with pytest.raises(SlowReader):
            await first
        assert fanout.readers == 0

    asyncio.run(check())


def test_heartbeat() -> None:
    async def check() -> list[bytes]:
        fanout = Fanout()
        beats = with_heartbeat(fanout.subscribe(), 0.01, b"beat")
        found = [await anext(beats)]
        fanout.publish(b"item")
        while found[-1] != b"item":
            found.append(await anext(beats))
        fanout.close()
        assert [item async for item in beats if item != b"beat"] == []
        return found

    found = asyncio.run(check())
    assert (found[0], found[-1]) == (b"beat", b"item")


def test_a_stream_cut_off_is_an_error(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.backend.recording = Fanout(max_bytes=10)
        stream = Client(str(running.socket)).stream("/v1/records")
        next(stream)
        running.do(_burst, running.backend.recording)
        with pytest.raises(TtftError, match="ended its answer early"):
            list(stream)


def test_records_for_a_time_end_well(daemon: FakeDaemon) -> None:
    pieces = Client(str(daemon.socket)).stream("/v1/records", {"for": "50ms"})
    assert list(pieces) == [HEADER]


@pytest.mark.parametrize("kind", ["events", "records"])
def test_streams_are_bounded_by_kind_and_user(daemon: FakeDaemon, kind: str) -> None:
    """What each may hold back for a slow reader adds up; one kind must not shut out the other."""
    client = Client(str(daemon.socket))
    held = [client.stream(f"/v1/{kind}") for _ in range(api.STREAMS_PER_USER[kind])]
    for stream in held:
        next(stream)
    with pytest.raises(TtftError, match=f"already {len(held)} of this user's streams of {kind}"):
        next(client.stream(f"/v1/{kind}"))
    other = client.stream("/v1/records" if kind == "events" else "/v1/events")
    assert next(other)
    for stream in (*held, other):
        stream.close()


@pytest.mark.parametrize("kind", ["events", "records"])
def test_one_user_leaves_streams_to_the_others(tmp_path: Path, kind: str) -> None:
    async def check(backend: FakeBackend) -> None:
        routes = api._Routes(backend)
        ask = getattr(routes, kind)

        async def open_as(uid: int, times: int) -> list[AsyncGenerator[bytes, None]]:
            bodies = [ask(Request("GET", f"/v1/{kind}", uid=uid)).body for _ in range(times)]
            for body in bodies:
                await anext(body)
            return bodies

        most, own = api.STREAMS_MAX[kind], api.STREAMS_PER_USER[kind]
        first = await open_as(1000, own)
        with pytest.raises(TtftError, match="this user's streams"):
            await open_as(1000, 1)
        second = await open_as(1001, most - own)
        with pytest.raises(TtftError, match=f"already {most} streams of {kind} open"):
            await open_as(1002, 1)
        await first.pop().aclose()
        third = await open_as(1002, 1)
        for body in (*first, *second, *third):
            await body.aclose()
        assert (+routes._streams, routes._users) == ({}, {})

    with closing(Store(tmp_path / "history.db")) as store:
        asyncio.run(check(FakeBackend(store)))


def test_who_asks_at_once_gets_no_more_streams(tmp_path: Path) -> None:
    """Each is counted when it begins, which is after it was let in."""

    async def check(backend: FakeBackend) -> None:
        routes = api._Routes(backend)
        own = api.STREAMS_PER_USER["events"]
        bodies = [routes.events(Request("GET", "/", uid=1)).body for _ in range(own + 1)]
        for body in bodies[:-1]:
            assert isinstance(body, AsyncGenerator)
            await anext(body)
        last = bodies[-1]
        assert isinstance(last, AsyncGenerator)
        with pytest.raises(TtftError, match="this user's streams"):
            await anext(last)
        for body in bodies:
            assert isinstance(body, AsyncGenerator)
            await body.aclose()

    with closing(Store(tmp_path / "history.db")) as store:
        asyncio.run(check(FakeBackend(store)))


def test_readers_are_counted_and_bounded() -> None:
    async def check() -> None:
        fanout = Fanout(max_readers=1)
        items = fanout.subscribe()
        waiting = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        with pytest.raises(TtftError, match="already 1 readers"):
            fanout.subscribe()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert fanout.readers == 0

    asyncio.run(check())
