"""What memory of devices processes have: what was read, until it may have been given back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracer.holdings import Holdings
from tracer.records import (
    AnyRecord,
    Command,
    Conn,
    Exec,
    Exit,
    File,
    Fork,
    Holder,
    HttpEnd,
    HttpRequest,
    Listen,
    Process,
    Span,
    Telemetry,
    Unlisten,
)

S = 1_000_000_000
FRONT, RUNNER, STRANGER = 100, 300, 900
NETNS = 4026531840
GPU, OTHER = "0000:01:00.0", "0000:02:00.0"
SIZE = 2 << 30


def server(*options: str) -> list[AnyRecord]:
    """A front that has a runner, both of which listen, and a server beside them."""
    command = Command(program="llama-server", role="runner", options=options)
    return [
        Process(ts_ns=0, tgid=FRONT, ppid=1, start_ns=-S, comm="x"),
        Process(ts_ns=0, tgid=STRANGER, ppid=1, start_ns=-S, comm="x"),
        Fork(ts_ns=1, parent=FRONT, child=RUNNER, comm="x"),
        Exec(ts_ns=2, tgid=RUNNER, comm="x", command=command),
        Listen(ts_ns=3, tgid=FRONT, netns=NETNS, port=8080),
        Listen(ts_ns=3, tgid=RUNNER, netns=NETNS, port=9001),
        Listen(ts_ns=3, tgid=STRANGER, netns=NETNS, port=8081),
        File(ts_ns=3, dev=1, ino=10, size=SIZE, fmt="gguf"),
        File(ts_ns=3, dev=1, ino=11, size=SIZE),
    ]


def read(at: float, *, device: str = GPU, **memory: Any) -> Telemetry:
    """A reading of what these processes have: a size, None where it is not told, or gone."""
    pids = {"front": FRONT, "runner": RUNNER, "stranger": STRANGER}
    holders = tuple(
        Holder(tgid=pids[name], memory_bytes=0, gone=True)
        if size == "gone"
        else Holder(tgid=pids[name], memory_bytes=size)
        for name, size in memory.items()
    )
    return Telemetry(ts_ns=round(at * S), device=device, source="nvml", holders=holders)


def request(at: float, path: str, *, xid: int = 1, port: int = 8080, method: str = "POST",
            netns: int = NETNS) -> HttpRequest:  # fmt: skip
    conn = Conn(netns, "::1", port, "::1", 5)
    return HttpRequest(ts_ns=round(at * S), xid=xid, conn=conn, method=method, endpoint=path)


def unmap(at: float, tgid: int = RUNNER, ino: int = 10, size: int = SIZE) -> Span:
    return Span(
        ts_ns=round(at * S), end_ns=round(at * S) + 1, tgid=tgid, tid=tgid, dev=1, ino=ino, token=1,
        op="munmap", count=1, bytes=size, busy_ns=1,
    )  # fmt: skip


def held(*records: AnyRecord, now: float = 100, options: tuple[str, ...] = (),
         tgid: int = RUNNER) -> int | None:  # fmt: skip
    holdings = Holdings()
    for record in (*server(*options), *records):
        holdings.feed(record)
    return holdings.of(tgid, round(now * S))


def test_a_process_that_began_after_the_host_slept() -> None:
    """Its start is told on a clock that went on meanwhile."""
    holdings = Holdings()
    holdings.feed(Process(ts_ns=S, tgid=RUNNER, ppid=1, start_ns=3600 * S, comm="x"))
    holdings.feed(read(2, runner=5))
    assert holdings.of(RUNNER, 3 * S) == 5


def test_what_is_gone_is_not_kept() -> None:
    holdings = Holdings()
    for record in server():
        holdings.feed(record)
    holdings.feed(Unlisten(ts_ns=4, netns=NETNS, port=8081))
    for tgid in (RUNNER, FRONT, STRANGER):
        holdings.feed(Exit(ts_ns=5, tgid=tgid))
    holdings.feed(request(1, "/completion"))
    assert (holdings._owners, holdings._procs, holdings._servers) == ({}, {}, {})


def test_what_was_read_last() -> None:
    assert held() is None
    assert held(read(5, runner=SIZE)) == SIZE
    assert held(read(5, runner=SIZE), read(6, runner=SIZE // 2)) == SIZE // 2
    assert held(read(5, runner=SIZE), read(5, device=OTHER, runner=7)) == SIZE + 7
    assert held(read(5, runner=SIZE, stranger=3), tgid=STRANGER) == 3
    assert held(read(5, runner=SIZE), tgid=FRONT) is None


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([Exit(ts_ns=6 * S, tgid=RUNNER)], None),
        # Its number is another's by now, which has nothing, and nothing of what comes late.
        ([Exit(ts_ns=6 * S, tgid=RUNNER), Fork(ts_ns=7 * S, parent=1, child=RUNNER, comm="y"),
          read(6.5, runner=SIZE)], None),
        ([Exec(ts_ns=6 * S, tgid=RUNNER, comm="y")], None),
        ([read(6, runner=0)], 0),
        ([read(6, runner="gone")], 0),
        ([read(6, runner=None)], None),
        ([read(6, device=OTHER, runner=None)], None),
        ([read(6, device=OTHER, runner="gone")], SIZE),
        ([read(6, front=5)], SIZE),  # what another has says nothing of it
        ([unmap(6)], None),
        ([unmap(6), read(7, runner=5)], 5),
        ([unmap(4)], SIZE),  # told late, by a sweep
        ([unmap(6, ino=11)], SIZE),  # no weights
        ([unmap(6, size=4096)], SIZE),
        ([unmap(6, tgid=FRONT)], SIZE),
        ([request(6, "/models/unload")], None),
        ([request(6, "/sleep", port=9001)], None),
        ([request(6, "/api/what/is/this")], None),
        ([request(6, "/unload"), read(7, runner=5)], 5),
        ([request(6, "/unload", port=8081)], SIZE),  # another server's
        ([request(6, "/unload", port=7777)], SIZE),
        ([request(6, "/tokenize")], SIZE),
        ([request(6, "/models", method="GET")], SIZE),
        ([request(6, "/v1/chat/completions")], SIZE),
        ([Process(ts_ns=6 * S, tgid=RUNNER, ppid=FRONT, start_ns=1, comm="x")], SIZE),
        ([Process(ts_ns=6 * S, tgid=RUNNER, ppid=FRONT, start_ns=6 * S, comm="x")], None),
    ],
)  # fmt: skip
def test_what_may_have_changed_since(records: list[AnyRecord], expected: int | None) -> None:
    assert held(read(5, runner=SIZE), *records) == expected


@pytest.mark.parametrize(
    ("option", "now", "expected"),
    [
        ("sleep-idle-seconds=60", 69, SIZE),
        ("sleep-idle-seconds=60", 70, None),
        ("sleep-idle-seconds=-1", 10_000, SIZE),
        ("ctx-size=60", 10_000, SIZE),
    ],
)
def test_a_server_that_sleeps_when_it_was_idle(
    option: str, now: float, expected: int | None
) -> None:
    asked = request(4, "/v1/chat/completions"), HttpEnd(ts_ns=10 * S, xid=1, why="complete")
    first = read(5, runner=SIZE)
    assert held(asked[0], first, asked[1], now=now, options=(option,)) == expected
    assert held(asked[0], first, now=now, options=(option,)) == SIZE, "it is at work"
    again = request(now - 1, "/completion", xid=2, port=9001)
    assert held(asked[0], first, asked[1], again, now=now, options=(option,)) == SIZE
    beside = request(now - 1, "/completion", xid=2, port=8081)
    assert held(asked[0], first, asked[1], beside, now=now, options=(option,)) == expected


# --- any life ---------------------------------------------------------------------


class Life:
    """A process that takes memory, gives it back, closes the device, ends; then another has its
    number. `has`: the truth."""

    def __init__(self) -> None:
        self.alive, self.has, self.opened = True, 0, False

    def load(self, at: int, size: int) -> list[AnyRecord]:
        """It does so for a request, and while that waits the device is read."""
        if not self.alive:
            return []
        self.has, self.opened = size, True
        return [request(at, "/completion"), *self.read(at)]

    def read(self, at: int) -> list[AnyRecord]:
        return [read(at, runner=self.has)] if self.opened else []

    def unload(self, at: int) -> list[AnyRecord]:
        """Nobody looks at the device meanwhile."""
        self.has = 0
        return [request(at, "/models/unload")]

    def close(self, at: int) -> list[AnyRecord]:
        was, self.opened, self.has = self.opened, False, 0
        return [read(at, runner="gone")] if was else []

    def end(self, at: int) -> list[AnyRecord]:
        self.alive, self.opened, self.has = False, False, 0
        return [Exit(ts_ns=at * S, tgid=RUNNER)]

    def begin(self, at: int) -> list[AnyRecord]:
        gone = self.end(at) if self.alive else []
        self.alive = True
        return [*gone, Fork(ts_ns=at * S, parent=FRONT, child=RUNNER, comm="x")]

    def beside(self, at: int) -> list[AnyRecord]:
        return [read(at, stranger=5), request(at, "/unload", port=8081)]


plain = st.sampled_from(["read", "unload", "close", "end", "begin", "beside"])


@settings(max_examples=300, deadline=None)
@given(st.lists(plain | st.integers(1, 9), max_size=30))
def test_right_or_unknown(does: list[str | int]) -> None:
    holdings, life = Holdings(), Life()
    for record in server():
        holdings.feed(record)
    for at, what in enumerate(does, 5):
        records = life.load(at, what) if isinstance(what, int) else getattr(life, what)(at)
        for record in records:
            holdings.feed(record)
        found = holdings.of(RUNNER, at * S)
        assert found in (None, life.has), what
        if isinstance(what, int) and life.alive:
            assert found == life.has
