"""Calls and look-ups while they may be needed: what is kept, for whom, how much at most."""

from __future__ import annotations

from tracer.callevents import FEW_HITS, MAX_CACHED, MAX_CALLS, CallEvents
from tracer.records import Cached, Call, Library


def call(ts_ns: int, *, tgid: int = 1, count: int = 1, last_ns: int | None = None) -> Call:
    return Call(
        ts_ns=ts_ns, end_ns=ts_ns + 10, tgid=tgid, tid=tgid, library="llama", layer="engine",
        symbol="llama_decode", what="decode", count=count, tokens=count, last_ns=last_ns,
    )  # fmt: skip


def opened(ts_ns: int, stem: int, *, write: bool = False, tgid: int = 1) -> Cached:
    return Cached(ts_ns=ts_ns, tgid=tgid, tid=tgid, folder="/c", stem=stem, write=write)


def fed(*records: Library | Call | Cached) -> CallEvents:
    events = CallEvents()
    for record in records:
        events.feed(record)
    return events


def test_a_later_record_of_a_run_replaces_an_earlier_one() -> None:
    events = fed(call(100), call(100, count=7), call(200))
    assert events.calls([1], 0, 1000) == [call(100, count=7), call(200)]


def test_runs_that_touch_the_window() -> None:
    """One that the thread came back from inside the window does."""
    events = fed(call(100), call(200, last_ns=500), call(900), call(901, tgid=2))
    assert events.calls([1], 500, 900) == [call(200, last_ns=500), call(900)]


def test_another_program_has_other_libraries() -> None:
    old, new = (
        Library(ts_ns=t, tgid=1, name="cuda", path="/l/libcuda.so.1", functions=9)
        for t in (100, 300)
    )
    events = fed(old)
    events.restart(1, 200)
    assert events.libraries([1], 1000) == []
    events.feed(new)
    events.restart(1, 200)
    assert events.libraries([1], 1000) == [new]
    assert events.libraries([1], 299) == []


def test_look_ups_before_the_window() -> None:
    """A few that were found, and those whose result is written in it."""
    found = [opened(t, 1000 + t) for t in range(10)]
    begun, written = opened(20, 7), opened(120, 7, write=True)
    over = (opened(30, 8), opened(40, 8, write=True))
    events = fed(*found, begun, *over, written)
    assert events.cached([1], 100, 200) == [*found[:FEW_HITS], begun, written]
    assert events.cached([1], 130, 200) == []


def test_what_is_kept() -> None:
    """Runs up to the horizon, the last look-ups, nothing of processes that are gone."""
    events = fed(call(100), call(500), call(500, tgid=2), opened(1, 1), opened(2, 2, tgid=2))
    events.prune(200, [2])
    assert list(events.records()) == [call(500), opened(1, 1)]
    for t in range(MAX_CALLS + 5):
        events.feed(call(1000 + t))
        if t < MAX_CACHED + 5:
            events.feed(opened(t, t))
    events.prune(0, [])
    assert len(events.calls([1], 0, 1 << 60)) == MAX_CALLS
    assert events.dropped == 6
    assert len([r for r in events.records() if isinstance(r, Cached)]) == MAX_CACHED
