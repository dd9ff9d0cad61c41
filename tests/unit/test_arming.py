"""When the dear probes are on: while a cold stage is possible, and no longer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.arming import Arming, Change, Policy, Why
from tracer.records import (
    AnyRecord,
    Conn,
    EndWhy,
    Exec,
    Exit,
    File,
    Fork,
    HttpBody,
    HttpEnd,
    HttpRequest,
    HttpToken,
    Insert,
    Listen,
    Op,
    Open,
    Process,
    Span,
    Unlisten,
)

S = 1_000_000_000
MS = 1_000_000
NETNS, PORT, FRONT, RUNNER = 1, 8080, 100, 200
CHAT = "/v1/chat/completions"
POLICY = Policy(quiet_ns=3 * S, start_ns=20 * S)


def at(seconds: float) -> int:
    return round(seconds * S)


class Told:
    """An `Arming` that is told of things and does at once what it says."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.arming = Arming(policy, 0)
        self.changes: list[tuple[float, bool, Why]] = []
        self._xid = 0
        self.tell(
            Listen(ts_ns=0, tgid=FRONT, netns=NETNS, port=PORT),
            File(ts_ns=0, dev=1, ino=10, size=1 << 30, path="/m/a.gguf", fmt="gguf"),
            File(ts_ns=0, dev=1, ino=11, size=1 << 30, path="/usr/lib/libcuda.so"),
        )

    def tell(self, *records: AnyRecord) -> None:
        for record in records:
            self.arming.feed(record)

    def do(self, seconds: float) -> Change | None:
        """What is due then, done."""
        change = self.arming.due(at(seconds))
        if change is not None:
            self.arming.changed(change, at(seconds))
            self.changes.append((seconds, change.on, change.why))
        return change

    def ask(self, seconds: float, *, port: int = PORT, endpoint: str | None = CHAT) -> int:
        self._xid += 1
        conn = Conn(NETNS, "127.0.0.1", port, "127.0.0.1", 40000)
        self.tell(
            HttpRequest(
                ts_ns=at(seconds), xid=self._xid, conn=conn, method="POST", endpoint=endpoint
            ),
            HttpBody(ts_ns=at(seconds), xid=self._xid, bytes=10, stream=True),
        )
        self.do(seconds)
        return self._xid

    def token(self, seconds: float, xid: int) -> None:
        self.tell(HttpToken(ts_ns=at(seconds), xid=xid, nth=1, what="text"))
        self.do(seconds)

    def end(self, seconds: float, xid: int, why: EndWhy = "complete") -> None:
        self.tell(HttpEnd(ts_ns=at(seconds), xid=xid, why=why))
        self.do(seconds)

    def warm(self, seconds: float, took: float = 0.1, *, port: int = PORT) -> None:
        """A warm request from its arrival on."""
        xid = self.ask(seconds, port=port)
        self.token(seconds + took, xid)
        self.end(seconds + 2 * took, xid)

    def look(self, *seconds: float) -> list[tuple[float, bool, Why]]:
        """What changes at these times."""
        before = len(self.changes)
        for one in seconds:
            self.do(one)
        return self.changes[before:]

    def turns(self, since: int) -> list[tuple[float, bool, Why]]:
        """All changes but the first ones."""
        return [(round(t, 3), on, why) for t, on, why in self.changes[since:]]

    def quiet(self) -> None:
        """Off, at second 3."""
        assert self.look(3) == [(3, False, "quiet")]


def opened(seconds: float, tgid: int = RUNNER, ino: int = 10) -> Open:
    return Open(ts_ns=at(seconds), tgid=tgid, tid=tgid, dev=1, ino=ino, token=1)


def span(seconds: float, op: Op, ino: int = 10) -> Span:
    return Span(
        ts_ns=at(seconds), end_ns=at(seconds), tgid=RUNNER, tid=RUNNER, dev=1, ino=ino, token=1,
        op=op, count=1, bytes=1 << 20, busy_ns=0,
    )  # fmt: skip


def inserted(seconds: float, ino: int = 10) -> Insert:
    return Insert(
        ts_ns=at(seconds), end_ns=at(seconds), dev=1, ino=ino, pages=1, tgid=RUNNER
    )  # fmt: skip


def test_on_at_the_start_until_it_was_quiet() -> None:
    told = Told()
    assert told.arming.next_ns == at(3)
    assert told.look(0.1, 2.999, 3, 4, 60) == [(3, False, "quiet")]
    assert told.arming.next_ns is None, "an idle host is left alone"


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (Fork(ts_ns=at(9), parent=FRONT, child=RUNNER, comm="llama-server"), "process"),
        (Exec(ts_ns=at(9), tgid=RUNNER, comm="llama-server"), "process"),
        (Process(ts_ns=at(9), tgid=FRONT, ppid=1, start_ns=0, comm="python3"), "process"),
        (inserted(9), "weights"),
        (Exit(ts_ns=at(9), tgid=RUNNER, code=0), None),
        (inserted(9, ino=11), None),
        (inserted(2), None),
    ],
)
def test_what_turns_them_on(record: AnyRecord, why: Why | None) -> None:
    told = Told()
    told.quiet()
    told.tell(record)
    assert told.look(9) == ([] if why is None else [(9, True, why)])


def test_the_first_request_of_all_and_none_of_those_that_follow_at_once() -> None:
    told = Told()
    told.quiet()
    for number in range(200):
        told.warm(10 + number / 4)
    assert told.turns(1) == [(10, True, "arrival"), (13.1, False, "quiet")]


def test_a_pause_is_safe_when_a_request_came_through_it_warm() -> None:
    told = Told()
    told.quiet()
    told.warm(10)
    assert told.look(12.9, 13.2) == [(13.2, False, "quiet")]
    told.warm(20)  # ten seconds: not known
    assert told.look(23.3) == [(23.3, False, "quiet")]
    told.warm(29)  # shorter: known
    told.warm(38)
    assert told.changes[3:] == [(20, True, "arrival"), (23.3, False, "quiet")]
    told.ask(50)
    assert told.changes[5:] == [(50, True, "arrival")]


def test_a_pause_after_which_weights_came_in_is_not_safe() -> None:
    told = Told()
    told.quiet()
    told.warm(10)
    told.look(14)
    xid = told.ask(30)
    told.tell(opened(30.1), span(30.2, "mmap"))
    told.token(31, xid)
    told.end(32, xid)
    told.look(36)
    told.ask(56)
    assert told.changes[-1] == (56, True, "arrival"), "24 seconds, as before"


def test_who_reloads_within_a_safe_pause_is_never_trusted_again() -> None:
    told = Told()
    told.quiet()
    told.warm(10)
    told.look(14)
    told.warm(40)
    told.look(44)
    xid = told.ask(50)
    assert told.arming.on is False
    assert told.look(50.3) == [(50.3, True, "slow")]
    told.tell(opened(50.4, tgid=FRONT))
    told.token(52, xid)
    told.end(53, xid)
    assert told.look(57) == [(57, False, "quiet")]
    told.warm(58)
    assert told.changes[-1] == (58, True, "arrival")


def found(tgid: int, ppid: int) -> Process:
    return Process(ts_ns=0, tgid=tgid, ppid=ppid, start_ns=0, comm="x")


def test_another_holder_that_was_idle_longer_keeps_all_in_doubt() -> None:
    told = Told()
    told.tell(found(FRONT, 1), found(RUNNER, FRONT))
    told.tell(Listen(ts_ns=0, tgid=RUNNER, netns=NETNS, port=9000))
    told.warm(1, port=9000)
    told.warm(1.5)
    assert told.look(5) == [(5, False, "quiet")]
    for number in range(12):
        told.warm(6 + number)
    assert told.changes[1:] == [(6, True, "arrival")], "and on while requests keep coming"
    told.tell(Unlisten(ts_ns=at(18), netns=NETNS, port=9000))
    told.warm(18.1)
    assert told.turns(2) == [(18.2, False, "quiet")]


def test_a_server_that_is_idle_keeps_no_other_in_doubt() -> None:
    """Both were started by one shell; only what descends from a server is of it."""
    told = Told()
    other = 300
    told.tell(found(FRONT, 50), found(other, 50), found(RUNNER, other))
    told.tell(Listen(ts_ns=0, tgid=RUNNER, netns=NETNS, port=9000))
    told.warm(1, port=9000)
    told.warm(1.5)
    told.warm(3)
    assert told.look(6.1) == [(6.1, False, "quiet")]
    for number in range(12):
        told.warm(7 + number)
    assert told.turns(1) == [(7, True, "arrival"), (10.1, False, "quiet")], "the pause was safe"
    told.warm(30, port=9000)
    assert told.changes[3] == (30, True, "arrival")


def forked(seconds: float, child: int, parent: int = FRONT) -> Fork:
    return Fork(ts_ns=at(seconds), parent=parent, child=child, comm="x")


def test_a_start_is_over_when_it_answers() -> None:
    told = Told()
    told.quiet()
    told.tell(forked(10, RUNNER), opened(11, ino=11))
    assert told.look(10, 16, 30.9) == [(10, True, "process")], "it opens its libraries for long"
    told.tell(opened(30, ino=11))
    told.tell(Listen(ts_ns=at(40), tgid=RUNNER, netns=NETNS, port=9000))
    told.warm(41, port=9000)
    assert told.turns(2) == [(41.1, False, "quiet")]


def test_a_start_that_answers_nothing_is_over_at_last() -> None:
    told = Told()
    told.quiet()
    told.tell(forked(10, RUNNER), opened(11, ino=11))
    assert told.look(10, 30.9, 31) == [(10, True, "process"), (31, False, "quiet")]


def test_a_start_is_over_when_it_ends() -> None:
    told = Told()
    told.quiet()
    told.tell(forked(10, RUNNER))
    told.look(10)
    told.tell(Exit(ts_ns=at(11), tgid=RUNNER, code=0))
    assert told.look(13.9, 14) == [(14, False, "quiet")]


def test_helpers_are_started_with_whom_they_help_and_other_listeners_are_not() -> None:
    told = Told()
    told.tell(forked(1, 300), forked(1.1, 301, parent=300))
    told.warm(5)
    assert told.turns(0) == [(5.1, False, "quiet")], "the front answers for its helpers"
    told.tell(forked(10, RUNNER), Listen(ts_ns=at(11), tgid=RUNNER, netns=NETNS, port=9000))
    told.look(10)
    told.warm(15)
    assert told.look(29, 30) == [(30, False, "quiet")], "not for a runner of its own port"


def test_control_requests_end_all_trust() -> None:
    told = Told()
    told.quiet()
    told.warm(10)
    told.warm(14)
    told.look(18)
    told.ask(19, endpoint="/models/unload")
    assert told.changes[-1] == (19, True, "control")
    told.look(23)
    told.warm(23.5)
    assert told.changes[-1] == (23.5, True, "arrival")


@pytest.mark.parametrize("endpoint", ["/health", "/tokenize", "/apply-template"])
def test_requests_that_load_nothing_change_nothing(endpoint: str) -> None:
    told = Told()
    told.quiet()
    told.ask(10, endpoint=endpoint)
    conn = Conn(NETNS, "127.0.0.1", PORT, "127.0.0.1", 40000)
    told.tell(HttpRequest(ts_ns=at(11), xid=99, conn=conn, method="GET", endpoint=None))
    assert told.look(10, 11, 12) == []


def test_a_request_that_outlasts_the_warm_ones() -> None:
    told = Told()
    told.quiet()
    for number in range(5):
        told.warm(10 + number / 2, took=0.2)
    told.look(16)
    assert not told.arming.on
    told.warm(17, took=0.3)  # after a pause not known before
    told.look(21)
    xid = told.ask(21.5)
    assert told.look(21.8, 22.1) == [], "three times the 0.2 s that are typical"
    assert told.look(22.11) == [(22.11, True, "slow")]
    told.token(23, xid)
    told.end(24, xid)
    assert told.look(25.1, 25.12) == [(25.12, False, "quiet")]


def test_on_while_a_request_waits_for_its_first_token() -> None:
    told = Told()
    xid = told.ask(1)
    assert told.look(5, 10, 50) == []
    assert told.arming.next_ns is None
    told.token(60, xid)
    assert told.turns(0) == [(60, False, "quiet")], "what is generated is none of ours"


def test_generating_is_no_pause() -> None:
    told = Told()
    told.quiet()
    xid = told.ask(10)
    told.token(10.1, xid)
    assert told.look(14) == [(14, False, "quiet")]
    told.ask(60)
    assert not told.arming.on, "the first is still being answered"
    told.end(61, xid)


def test_pages_that_a_waiting_request_misses() -> None:
    told = Told()
    told.tell(Process(ts_ns=0, tgid=RUNNER, ppid=FRONT, start_ns=0, comm="x"), inserted(1))
    assert told.arming.starved() == set(), "nobody waits"
    xid = told.ask(20)
    told.tell(inserted(19), inserted(20.2, ino=11))
    assert told.arming.starved() == set(), "before, and no weights"
    told.tell(inserted(20.3))
    assert told.arming.starved() == {RUNNER}
    assert told.arming.starved() == set(), "told once"
    told.end(21, xid)
    told.tell(forked(30, 300), opened(30.1, tgid=RUNNER))
    told.ask(30)
    told.tell(inserted(30.5), msgspec.structs.replace(inserted(30.5), tgid=300))
    told.tell(msgspec.structs.replace(inserted(30.5), tgid=999))
    assert told.arming.starved() == set(), "they load, or are strangers"


def test_what_warm_requests_do_with_files_is_not_cold() -> None:
    told = Told()
    told.warm(1)
    told.tell(span(5, "fault_minor"), span(5, "madvise"), span(5, "mmap", ino=11))
    assert told.look(5) == [(5, False, "quiet")]


@pytest.mark.parametrize("op", ["mmap", "read", "read_direct", "munmap"])
def test_weights_in_use_keep_them_on(op: Op) -> None:
    told = Told()
    told.tell(span(2, op))
    assert told.look(3, 4.9, 5) == [(5, False, "quiet")]


# --- whatever happens -------------------------------------------------------------------

times = st.integers(0, 100 * S)
conns = st.builds(
    Conn, st.sampled_from([0, 1]), st.just("::1"), st.sampled_from([1, 2]), st.just("::1"),
    st.just(5),
)  # fmt: skip
records = st.one_of(
    st.builds(Fork, ts_ns=times, parent=st.just(1), child=st.integers(1, 4), comm=st.just("x")),
    st.builds(Exit, ts_ns=times, tgid=st.integers(1, 4)),
    st.builds(Listen, ts_ns=times, tgid=st.integers(1, 4), netns=st.just(1), port=st.just(1)),
    st.builds(Unlisten, ts_ns=times, netns=st.just(1), port=st.just(1)),
    st.builds(
        HttpRequest, ts_ns=times, xid=st.integers(1, 9), conn=conns,
        method=st.sampled_from(["GET", "POST"]), endpoint=st.sampled_from([CHAT, None, "/health"]),
    ),
    st.builds(HttpToken, ts_ns=times, xid=st.integers(1, 9), nth=st.just(1), what=st.just("text")),
    st.builds(HttpEnd, ts_ns=times, xid=st.integers(1, 9), why=st.just("complete")),
    st.builds(File, ts_ns=times, dev=st.just(1), ino=st.just(1), size=st.just(1),
              fmt=st.just("gguf")),
    st.builds(Open, ts_ns=times, tgid=st.integers(1, 4), tid=st.just(1), dev=st.just(1),
              ino=st.just(1), token=st.just(1)),
    st.builds(Insert, ts_ns=times, end_ns=times, dev=st.just(1), ino=st.just(1), pages=st.just(1),
              tgid=st.just(1)),
)  # fmt: skip


def by_time(told: Iterable[AnyRecord]) -> list[AnyRecord]:
    return sorted(told, key=lambda r: r.ts_ns)


@given(st.lists(records, max_size=60))
def test_never_off_sooner_than_allowed_and_always_off_in_the_end(told: list[AnyRecord]) -> None:
    arming = Arming(POLICY, 0)
    changes: list[tuple[int, Change]] = []

    def do(now_ns: int) -> None:
        change = arming.due(now_ns)
        if change is not None:
            arming.changed(change, now_ns)
            changes.append((now_ns, change))

    for record in by_time(told):
        arming.feed(record)
        do(record.ts_ns)
    last_ns = max((r.ts_ns for r in told), default=0)
    for xid in range(1, 10):
        arming.feed(HttpEnd(ts_ns=last_ns, xid=xid, why="complete"))
    do(last_ns)
    assert arming.next_ns is None or arming.next_ns <= max(100 * S, last_ns) + POLICY.start_ns
    do(100 * S + POLICY.start_ns)
    assert not arming.on
    assert [c.on for _, c in changes] == [n % 2 == 1 for n in range(len(changes))], "in turns"
    on_ns = 0
    for ts_ns, change in changes:
        if change.on:
            on_ns = ts_ns
        else:
            assert ts_ns - on_ns >= POLICY.quiet_ns, "no flapping"


@given(st.lists(records, max_size=60), times)
def test_a_start_of_a_process_turns_them_on_whatever_came_before(
    told: list[AnyRecord], at_ns: int
) -> None:
    arming = Arming(POLICY, 0)
    for record in by_time(told):
        arming.feed(record)
        change = arming.due(record.ts_ns)
        if change is not None:
            arming.changed(change, record.ts_ns)
    arming.feed(Fork(ts_ns=at_ns, parent=1, child=5, comm="x"))
    if not arming.on:
        assert arming.due(at_ns) is not None
    assert arming.on or arming.due(at_ns) == Change(True, "process")


def test_a_fault_that_nothing_timed_turns_them_on() -> None:
    arming = Arming(Policy(), 0)
    arming.changed(Change(False, "quiet"), at(2))
    arming.feed(span(2.5, "fault_minor"))
    arming.feed(msgspec.structs.replace(span(2.5, "fault_major"), busy_ns=1))
    assert arming.due(at(2.5)) is None
    arming.feed(span(2.5, "fault_major"))
    assert arming.due(at(2.5)) == Change(True, "weights")
