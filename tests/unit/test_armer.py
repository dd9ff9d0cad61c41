"""Who turns the dear probes on and off, in which thread, and that each turn is told once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.unit.test_wire import V4, pack
from tracer.armer import Armer
from tracer.arming import Arming, Policy
from tracer.errors import KernelError
from tracer.kernel import layouts
from tracer.records import (
    AnyRecord,
    Armed,
    Conn,
    File,
    Fork,
    HttpEnd,
    HttpRequest,
    HttpToken,
    Insert,
    Listen,
    Process,
)

NETNS, PORT = 4026531840, 8080
QUIET_NS = 1000
CHAT = "/v1/chat/completions"


class Kernel:
    """Stands in for groups and rings, and notes what is done to them."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.look: Callable[[list[bytes]], bool] | None = None
        self.naps = 0
        self.full = False
        self.doze = self._doze

    def _doze(self) -> None:
        self.naps += 1

    def attach(self, group: str) -> int:
        if self.full:
            raise KernelError("Too many open files")
        self.did.append(f"+{group}")
        return 7

    def time_faults(self, tgid: int) -> None:
        self.did.append(f"faults of {tgid}")

    def detach(self, group: str) -> int:
        self.did.append(f"-{group}")
        return 5


class Made:
    def __init__(self, quiet_ns: int = QUIET_NS, beside: tuple[str, ...] = ()) -> None:
        self.began_ns = time.monotonic_ns()
        self.kernel = Kernel()
        arming = Arming(Policy(quiet_ns=quiet_ns), self.began_ns)
        self.armer = Armer(self.kernel, self.kernel, arming, beside)

    def step(self, *records: AnyRecord) -> list[tuple[bool, str | None]]:
        return [(a.on, a.why) for a in self.armer.follow(records, time.monotonic_ns())]

    def off(self) -> None:
        """Past the quiet time, with a port that was asked just now."""
        now_ns = time.monotonic_ns()
        asked = Conn(NETNS, "127.0.0.1", PORT, "10.0.0.2", 1)
        told = (
            Listen(ts_ns=now_ns, tgid=1, netns=NETNS, port=PORT),
            HttpRequest(ts_ns=now_ns, xid=1, conn=asked, method="POST", endpoint=CHAT),
            HttpToken(ts_ns=now_ns, xid=1, nth=1, what="text"),
            HttpEnd(ts_ns=now_ns, xid=1, why="complete"),
        )
        turned = self.armer.follow(told, now_ns)
        while not turned:
            turned = self.armer.step(time.monotonic_ns())
        assert {armed.on for armed in turned} == {False}

    def look(self, *records: bytes) -> bool:
        assert self.kernel.look is not None
        return self.kernel.look(list(records))


def fork() -> bytes:
    return pack(layouts.FORK, 1, 77, 0, b"llama-server")


def packet(
    payload: bytes, *, egress: bool = False, ts_ns: int | None = None, port: int = PORT
) -> bytes:
    at_ns = time.monotonic_ns() if ts_ns is None else ts_ns
    ends = (*V4, NETNS, port, 50123, 4)
    rest = (*ends, 100, 200, len(payload), len(payload), 24)
    return layouts.PACKET.packer.pack(at_ns, 11, 12, 13, 0, int(egress), *rest) + payload


def test_on_from_the_start_and_nobody_looks_at_the_rings() -> None:
    made = Made(quiet_ns=10**12)
    (told,) = made.armer.begin()
    assert told == Armed(ts_ns=made.began_ns, group="files", on=True, why="start")
    assert made.step() == []
    assert made.kernel.look is None
    assert made.kernel.did == []


def test_off_when_quiet_then_on_at_the_rings() -> None:
    made = Made()
    made.off()
    assert made.kernel.did == ["-files"]
    assert not made.armer.state.on
    before_ns = time.monotonic_ns()
    assert made.look(packet(b"x", egress=True), fork()) is False
    assert made.kernel.did == ["-files", "+files"]
    assert made.kernel.look is None, "once is enough"
    state = made.armer.state
    assert (state.on, state.why, state.took_ns) == (True, "process", 7)
    assert state.ts_ns >= before_ns
    assert made.armer.step(state.ts_ns) == [state], "told once"
    assert made.armer.step(state.ts_ns) == []


def test_a_fault_that_nothing_timed_turns_them_on_at_the_rings() -> None:
    made = Made()
    made.off()
    file = (55, 8 << 20 | 1, 0)
    for op, busy in ((6, 0), (7, 1_500), (7, 0)):  # minor; timed; neither
        assert made.kernel.did == ["-files"]
        made.look(pack(layouts.SPAN, 8, *file, 9_000, busy, 4096, 1, op))
    assert made.kernel.did == ["-files", "+files"]
    assert made.armer.state.why == "weights"


def test_groups_beside_come_and_go_with_it() -> None:
    made = Made(beside=("paging",))
    began = [(armed.group, armed.on) for armed in made.armer.begin() if isinstance(armed, Armed)]
    assert began == [("files", True), ("paging", True)]
    made.kernel.did.clear()
    made.off()
    assert made.kernel.did == ["-files", "-paging"]
    made.look(fork())
    assert made.kernel.did == ["-files", "-paging", "+files", "+paging"]
    turned = made.armer.step(made.armer.state.ts_ns)
    assert [(armed.group, armed.on) for armed in turned] == [("files", True), ("paging", True)]


def test_bytes_after_a_pause_and_the_next_ones_if_these_ask_for_nothing() -> None:
    made = Made()
    made.off()
    assert made.kernel.naps == 1, "in doubt at once: the next bytes are to wake us"
    for harmless in (b"GET /health HTTP/1.1\r\n", b"OPTIONS * HTTP/1.1\r\n", b""):
        assert made.look(packet(harmless)) is True
    assert made.look(packet(b"HTTP/1.1 200 OK", egress=True)) is True
    assert made.look(b"short", packet(b"POST /v1")[:-4]) is True
    assert made.kernel.did == ["-files"]
    assert made.look(packet(b"POST /v1/chat/completions HTTP/1.1\r\n")) is False
    assert made.armer.state.why == "arrival"


def test_bytes_while_the_model_is_surely_there() -> None:
    made = Made()
    made.off()
    early = packet(b"POST / HTTP/1.1\r\n", ts_ns=1)
    assert made.look(early) is True
    assert made.kernel.did == ["-files"]


def test_a_port_that_was_never_asked_is_always_in_doubt() -> None:
    made = Made()
    made.off()
    assert made.step(Listen(ts_ns=1, tgid=2, netns=NETNS, port=PORT + 1)) == []
    elsewhere = packet(b"POST / HTTP/1.1\r\n", ts_ns=1, port=PORT + 1)
    assert made.look() is True
    assert made.look(packet(b"POST / HTTP/1.1\r\n", ts_ns=1)) is True
    assert made.kernel.did == ["-files"]
    assert made.look(elsewhere) is False
    assert made.kernel.did == ["-files", "+files"]


def test_what_cannot_be_attached_now_stays_off_and_is_tried_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = Made()
    made.off()
    made.kernel.full = True
    assert made.look(fork()) is False
    child = Fork(ts_ns=time.monotonic_ns(), parent=1, child=2, comm="x")
    assert [made.step(child), made.step()] == [[], []]
    assert not made.armer.state.on
    assert made.kernel.look is not None
    assert capsys.readouterr().err.count("Too many open files") == 1
    made.kernel.full = False
    assert made.step() == [(True, "process")]
    assert made.kernel.did == ["-files", "+files"]


def test_what_the_engine_sees_first() -> None:
    made = Made()
    made.off()
    assert made.step(Fork(ts_ns=time.monotonic_ns(), parent=1, child=2, comm="x")) == [
        (True, "process")
    ]
    assert made.kernel.look is None


def _after(barrier: threading.Barrier, look: Callable[[list[bytes]], bool]) -> None:
    barrier.wait()
    look([fork()])


def test_who_misses_pages_has_its_faults_timed() -> None:
    made = Made(quiet_ns=10**12)
    now_ns = time.monotonic_ns()
    asked = Conn(NETNS, "127.0.0.1", PORT, "10.0.0.2", 1)
    made.step(
        Process(ts_ns=now_ns, tgid=2, ppid=1, start_ns=0, comm="x"),
        File(ts_ns=now_ns, dev=1, ino=2, size=1, fmt="gguf"),
        HttpRequest(ts_ns=now_ns, xid=1, conn=asked, method="POST", endpoint=CHAT),
        Insert(ts_ns=now_ns, end_ns=now_ns + 1, dev=1, ino=2, pages=1, tgid=2),
    )
    assert made.kernel.did == ["faults of 2"]


def test_both_at_once_attach_once() -> None:
    for _ in range(50):
        made = Made()
        made.off()
        barrier = threading.Barrier(2)
        thread = threading.Thread(target=_after, args=(barrier, made.kernel.look))
        thread.start()
        barrier.wait()
        child = Fork(ts_ns=time.monotonic_ns(), parent=1, child=2, comm="x")
        told = made.step(child)
        thread.join()
        told += made.step()
        assert made.kernel.did[:2] == ["-files", "+files"]
        assert told[0] == (True, "process")
        assert [on for on, _ in told] == [n % 2 == 0 for n in range(len(told))]
