"""One stream of records, and how long it waits for more."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from tests.unit.http_wire import Wire
from tests.unit.test_discovery import Noted
from tracer.armer import Armer
from tracer.arming import Arming, Policy
from tracer.host.discovery import Discovery
from tracer.host.members import Member
from tracer.http import Packet
from tracer.http.reader import HttpReader
from tracer.kernel.wire import Raw, RawPacket
from tracer.live import Live
from tracer.records import AnyRecord, Armed, Fork, HttpRequest, Insert, Io, Span, Tick


class Source(Noted):
    """A kernel side where what is in `raws` happens, and waits are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.raws: list[Raw] = []
        self.growing: list[Span | Insert] = []
        self.waits: list[tuple[int, int | None]] = []
        self.look: Callable[[list[bytes]], bool] | None = None
        self.doze: Callable[[], None] = lambda: None

    def wait(self, timeout_ms: int, pace_ms: int | None = None) -> None:
        self.waits.append((timeout_ms, pace_ms))

    def kick(self) -> None:
        pass

    def batches(self) -> Iterator[list[Raw]]:
        raws, self.raws = self.raws, []
        yield raws

    def sweep(self, now_ns: int) -> list[Span | Insert]:
        return self.growing

    def lost(self) -> dict[str, int]:
        return {}

    def attach(self, group: str) -> int:
        return 1

    def time_faults(self, tgid: int) -> None:
        pass

    def detach(self, group: str) -> int:
        return 1


class Made:
    """The daemon's own process stands for a watched server's."""

    def __init__(self, quiet_ns: int) -> None:
        self.source = Source()
        self.discovery = Discovery(self.source)
        self.discovery.tree[os.getpid()] = Member(os.getpid())
        arming = Arming(Policy(quiet_ns=quiet_ns, start_ns=quiet_ns), time.monotonic_ns())
        armer = Armer(self.source, self.source, arming)
        self.live = Live(self.source, self.discovery, HttpReader(), armer)

    def drain(self) -> list[AnyRecord]:
        return [record for batch in self.live.drain(busy=False) for record in batch]


def test_what_comes_and_goes_is_told_before_the_tick() -> None:
    made = Made(quiet_ns=1)
    armed, io, tick = made.drain()
    assert isinstance(armed, Armed)
    assert isinstance(io, Io)
    assert isinstance(tick, Tick)
    assert (armed.group, armed.on, armed.why) == ("files", False, "quiet")
    assert (io.tgid, io.ts_ns >= armed.ts_ns, io.read_chars > 0) == (os.getpid(), True, True)
    child = Fork(ts_ns=time.monotonic_ns(), parent=os.getpid(), child=1 << 22, comm="x")
    made.source.raws = [child]
    fork, armed, *_ = made.drain()
    assert fork == child
    assert isinstance(armed, Armed)
    assert (armed.on, armed.why, armed.took_ns) == (True, "process", 1)


@pytest.mark.parametrize(("quiet_s", "least_ms"), [(10, 8_000), (1000, 60_000)])
def test_it_sleeps_until_they_may_go(quiet_s: int, least_ms: int) -> None:
    made = Made(quiet_ns=quiet_s * 1_000_000_000)
    made.live.wait(busy=False)
    ((timeout_ms, pace_ms),) = made.source.waits
    assert least_ms <= timeout_ms <= min(quiet_s * 1000 + 1, 60_000)
    assert pace_ms == 60_000, "what need not hurry may lie as ever"


def test_it_sleeps_long_once_they_are_gone() -> None:
    made = Made(quiet_ns=1)
    made.drain()
    made.live.wait(busy=False)
    assert made.source.waits == [(60_000, 60_000)]
    made.live.wait(busy=True)
    assert made.source.waits[1] == (200, None)


def test_what_still_grows_is_told_with_a_request_that_came_and_went_at_once() -> None:
    """No request was open before, and none is after; its reads are still being counted."""
    made = Made(quiet_ns=1 << 60)
    made.source.raws = [
        Fork(ts_ns=time.monotonic_ns(), parent=os.getpid(), child=1 << 22, comm="x")
    ]
    made.source.growing = [Insert(ts_ns=1, end_ns=2, dev=3, ino=4, pages=5, tgid=6)]
    *_, grown, tick = made.drain()
    assert (grown, type(tick)) == (made.source.growing[0], Tick)
    assert not any(isinstance(record, Insert) for record in made.drain())


def test_an_open_request_is_told_of_some_times_a_second_and_when_it_comes_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that happens meanwhile is told at once; each whole look costs as much as hundreds."""
    made = Made(quiet_ns=1 << 60)
    now_ns = 1_000_000_000
    monkeypatch.setattr("tracer.live.time.monotonic_ns", lambda: now_ns)

    def busy(*raws: Raw) -> tuple[int, bool]:
        made.source.raws = list(raws)
        records = [r for batch in made.live.drain(busy=True) for r in batch]
        told = [r for r in records if isinstance(r, Fork | HttpRequest)]
        return len(told), isinstance(records[-1], Tick) if records else False

    fork = Fork(ts_ns=now_ns, parent=os.getpid(), child=1 << 22, comm="x")
    assert busy() == (0, True)
    now_ns += 99_999_999
    assert busy() == (0, False)
    assert busy(fork) == (1, False)
    now_ns += 1
    assert busy(fork) == (1, True)
    assert busy(fork) == (1, False)
    wire = Wire().open().send(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    assert busy(fork, *map(raw_of, wire.packets)) == (2, True)


def raw_of(p: Packet) -> RawPacket:
    """As the kernel side gives it."""
    return RawPacket(
        ts_ns=p.ts_ns, conn=p.conn, egress=p.egress, seq=p.seq, ack=p.ack, tcp_flags=p.flags,
        payload_len=p.payload_len, payload=p.payload,
    )  # fmt: skip
