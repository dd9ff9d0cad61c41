"""The Chrome trace export against the rules of the format and a request explained by hand."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.trace_cases import MS, arbitrary, derived, exchange, switch
from tests.unit.trace_rules import check, load, nanoseconds
from tracer.derived import Derived, Interval
from tracer.evidence import Evidence
from tracer.export.chrome import dump
from tracer.export.tracks import microseconds
from tracer.records import Memory

Event = dict[str, Any]


def events_of(*items: Derived) -> list[Event]:
    """The exported events, which must obey every rule."""
    events = load(dump(items))
    assert check(events) == []
    return events


def tracks(events: Sequence[Event]) -> dict[tuple[int, int], str]:
    """Process / thread names by (pid, tid)."""
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return {
        (e["pid"], e["tid"]): f"{processes[e['pid']]} / {e['args']['name']}"
        for e in events
        if e["name"] == "thread_name"
    }


def slices(events: Sequence[Event], at: int) -> dict[str, list[tuple[str, float, float]]]:
    """(name, start, end) of the slices of each track, in ms from `at`."""
    named = tracks(events)
    found: dict[str, list[tuple[str, float, float]]] = {name: [] for name in named.values()}
    for e in events:
        if e["ph"] == "X":
            start, length = nanoseconds(e["ts"]), nanoseconds(e["dur"])
            assert start is not None and length is not None
            found[named[e["pid"], e["tid"]]].append(
                (e["name"], (start - at) / MS, (start + length - at) / MS)
            )
    return found


def test_cold_switch_has_these_tracks() -> None:
    at = 1_000 * MS
    assert slices(events_of(switch(at)), at) == {
        "requests of llama-server:8080 / requests 1": [
            ("#17 beta", 0, 120),
            ("queue", 0, 1),
            ("queue.socket", 0, 1),
            ("evict", 1, 10),
            ("evict.stop", 1, 10),
            ("spawn", 10, 30),
            ("spawn.exec", 10, 30),
            ("load", 30, 80),
            ("load.meta", 30, 35),
            ("load.disk", 35, 80),
            ("prefill", 80, 100),
            ("prefill.tokenize", 80, 85),
            ("prefill.prompt", 85, 100),
            ("generate", 100, 120),
        ],
        "llama-server (front) / llama-server": [("process llama-server", 0, 120)],
        "llama-server (runner of alpha) / llama-server": [("process llama-server", 0, 9)],
        "llama-server (runner of beta) / llama-server": [("process llama-server", 10, 120)],
        "llama-server (runner of beta) / thread 301": [("read beta.gguf", 31, 40)],
        "llama-server 300: further tracks / thread 301": [("mmap beta.gguf", 35, 80)],
        "work of 300 (runner of beta) / hops": [
            ("hop of #17", 82, 119),
            ("to first token", 82, 99),
        ],
        "work of 300 (runner of beta) / load": [("load.meta", 30, 35), ("load.disk", 35, 80)],
        "work of 300 (runner of beta) / prefill": [
            ("prefill.tokenize", 80, 85),
            ("prefill.prompt", 85, 100),
        ],
        "work of 300 (runner of beta) / spawn": [("spawn.exec", 10, 30)],
    }


def test_arrows_lead_from_the_request_to_its_hop_and_its_runners_work() -> None:
    events = events_of(switch(0))
    named = tracks(events)
    ends: dict[int, list[tuple[str, str, str, float]]] = {}
    for e in events:
        if e["ph"] in "sf":
            ends.setdefault(e["id"], []).append(
                (e["ph"], e["name"], named[e["pid"], e["tid"]], float(e["ts"]) / 1000)
            )
    requests, work = "requests of llama-server:8080 / requests 1", "work of 300 (runner of beta)"
    assert sorted(ends.values()) == [
        [("s", "hop", requests, 82), ("f", "hop", f"{work} / hops", 82)],
        [("s", "load", requests, 30), ("f", "load", f"{work} / load", 30)],
        [("s", "prefill", requests, 80), ("f", "prefill", f"{work} / prefill", 80)],
    ]


def test_counters_of_weights_and_memory() -> None:
    events = events_of(switch(0))
    found = [
        (e["name"], float(e["ts"]) / 1000, {k: float(v) for k, v in e["args"].items()})
        for e in events
        if e["ph"] == "C"
    ]
    rate = "weight bytes per second"
    read, mapped = 8192 * 10**9 // (9 * MS), 40960 * 10**9 // (45 * MS)
    assert sorted(found, key=lambda one: (one[0], str(one[2].keys()), one[1])) == [
        ("page cache percent", 80, {"beta.gguf": 25.0}),
        ("resident memory", 90, {"bytes": 1 << 20}),
        (rate, 35, {"from disk": 1_024_000}),
        (rate, 75, {"from disk": 0}),
        (rate, 31, {"into the process": read}),
        (rate, 35, {"into the process": read + mapped}),
        (rate, 40, {"into the process": mapped}),
        (rate, 80, {"into the process": 0}),
    ]


def counter(events: Sequence[Event], name: str) -> list[tuple[float, dict[str, float]]]:
    """(ms, values) of one counter, in order of time."""
    found = [e for e in events if e["ph"] == "C" and e["name"] == name]
    return [
        (float(e["ts"]) / 1000, {k: float(v) for k, v in e["args"].items()})
        for e in sorted(found, key=lambda e: Decimal(e["ts"]))
    ]


def test_pages_that_came_in_bursts_are_drawn_as_the_disk_brought_them() -> None:
    """16 MiB are made room for in a moment, every 200 ms; a pause is none of the last piece's."""
    item = switch(0)
    (one,) = item.evidence.inserts
    mib16 = 4096
    inserts = tuple(
        msgspec.structs.replace(one, ts_ns=at * MS, end_ns=at * MS + 50_000, pages=mib16)
        for at in (1000, 1200, 1400, 3000)
    )
    evidence = msgspec.structs.replace(item.evidence, inserts=inserts, spans=())
    rate = float(16 << 20)
    assert counter(
        events_of(msgspec.structs.replace(item, evidence=evidence)), "weight bytes per second"
    ) == [
        (1000, {"from disk": rate * 5}),
        (1400, {"from disk": rate * 2}),
        (1900, {"from disk": 0}),
        (3000, {"from disk": rate * 2}),
        (3500, {"from disk": 0}),
    ]


def test_memory_goes_with_the_process() -> None:
    item = switch(0)
    memory = (
        Memory(ts_ns=5 * MS, tgid=200, rss_bytes=7 << 20),
        Memory(ts_ns=90 * MS, tgid=300, rss_bytes=1 << 20),
    )
    evidence = msgspec.structs.replace(item.evidence, memory=memory)
    events = events_of(msgspec.structs.replace(item, evidence=evidence))
    assert counter([e for e in events if e["pid"] == 200], "resident memory") == [
        (5, {"bytes": 7 << 20}), (9, {"bytes": 0}),
    ]  # fmt: skip
    assert counter([e for e in events if e["pid"] == 300], "resident memory") == [
        (90, {"bytes": 1 << 20})
    ]


def test_moments_of_processes_and_requests() -> None:
    found = [
        (e["name"], float(e["ts"]) / 1000) for e in events_of(switch(1_000 * MS)) if e["ph"] == "i"
    ]
    assert found == [
        ("read", 1001),
        ("SIGTERM", 1002),
        ("exit", 1009),
        ("fork", 1010),
        ("exec", 1011),
        ("open beta.gguf", 1030),
        ("first token", 1100),
    ]


def test_verdict_and_evidence_are_in_the_arguments() -> None:
    item = switch()
    spike = msgspec.structs.replace(
        item.spike, is_spike=True, cause="load.disk", because="read 253 MB", advice="keep it"
    )
    facts = msgspec.structs.replace(item.facts, weights=("beta.gguf",), major_faults=0)
    events = events_of(msgspec.structs.replace(item, spike=spike, facts=facts))
    args = next(e["args"] for e in events if e.get("cat") == "request")
    assert args["verdict"]["because"] == "read 253 MB"
    assert args["verdict"]["advice"] == "keep it"
    assert args["verdict"]["cause"] == "load.disk"
    assert (args["evidence"]["major_faults"], args["evidence"]["minor_faults"]) == (0, None)


def test_two_requests_of_a_server_share_what_they_both_saw() -> None:
    first = switch(0)
    later = msgspec.structs.replace(
        first.evidence, id=18, request=exchange(5 * MS, first_token_ns=100 * MS, end_ns=130 * MS)
    )
    second = derived(later, first.phases.intervals, first.timeline.claims)
    once = slices(events_of(first), 0)
    twice = slices(events_of(first, second), 0)
    assert {name for name in twice if name not in once} == {
        "requests of llama-server:8080 / requests 2"
    }
    same = [name for name in once if not name.startswith(("requests", "llama-server (", "work"))]
    assert {name: twice[name] for name in same} == {name: once[name] for name in same}
    load = "work of 300 (runner of beta) / load"
    assert twice[load] == once[load]


def test_a_process_known_better_later_has_one_life() -> None:
    item = switch(0)
    ended = [
        msgspec.structs.replace(life, exit_ns=200 * MS, exit_signal=9) if life.tgid == 300 else life
        for life in item.evidence.lives
    ]
    later = msgspec.structs.replace(
        item, evidence=msgspec.structs.replace(item.evidence, id=18, lives=tuple(ended))
    )
    name = "llama-server (runner of beta) / llama-server"
    assert slices(events_of(item, later), 0)[name] == [("process llama-server", 10, 200)]


def test_an_open_request_without_anything_known() -> None:
    evidence = Evidence(
        id=1, server="s", program="s", front=9, request=exchange(5), began_ns=0, wall_offset_ns=0
    )
    events = events_of(derived(evidence, window_ns=10, ttft_ns=None, outcome="open", model=None))
    assert [e["name"] for e in events if e["ph"] == "X"] == ["#1 unknown model"]


def test_nothing_to_export() -> None:
    assert orjson.loads(dump([]))["traceEvents"] == []


@pytest.mark.parametrize("ns", [0, 1, 999, 1000, 10**15 + 1, (1 << 63) - 1])
def test_times_keep_every_nanosecond(ns: int) -> None:
    text = orjson.dumps(microseconds(ns)).decode()
    assert Decimal(text) * 1000 == ns
    assert len(text.partition(".")[2]) == 3


@given(st.integers(0, 1 << 63), st.integers(0, 1 << 50))
@settings(max_examples=50, deadline=None)
def test_exported_times_are_exact_for_any_uptime(at: int, length: int) -> None:
    evidence = Evidence(
        id=1,
        server="s",
        program="s",
        front=9,
        began_ns=0,
        wall_offset_ns=0,
        request=exchange(at, first_token_ns=at + length),
    )
    whole = Interval(stage="prefill", start_ns=at, end_ns=at + length)
    events = events_of(derived(evidence, (whole,)))
    request = next(e for e in events if e.get("cat") == "request")
    assert (nanoseconds(request["ts"]), nanoseconds(request["dur"])) == (at, length)


@given(st.lists(arbitrary, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_evidence_gives_a_trace_that_holds_the_rules(items: list[Derived]) -> None:
    events = events_of(*items)
    requests = [e for e in events if e.get("cat") == "request"]
    assert len(requests) == len(items)


def named(pid: int, tid: int) -> list[Event]:
    """Metadata for a thread."""
    return [
        {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": "n"}}
        for name in ("process_name", "thread_name")
    ]


def x(ts: object, dur: object, tid: int = 1) -> Event:
    return {"ph": "X", "name": "x", "pid": 1, "tid": tid, "ts": ts, "dur": dur}


def flow(ph: str, ts: int, **more: object) -> Event:
    return {"ph": ph, "name": "f", "cat": "c", "id": 1, "pid": 1, "tid": 1, "ts": ts, **more}


@pytest.mark.parametrize(
    "bad",
    [
        [x(0, 10), x(5, 10)],
        [x(0, -1)],
        [x(0, None)],
        [x("0.0001", 1)],
        [x("zero", 1)],
        [x(0, 1, tid=1 << 32)],
        [x(0, 1, tid=2)],
        [{**x(0, 1), "name": ""}],
        [{"ph": "C", "name": "c", "pid": 1, "ts": 0, "args": {}}],
        [{"ph": "C", "name": "c", "pid": 1, "ts": 0, "args": {"a": "1"}}],
        [{"ph": "C", "name": "c", "pid": 2, "ts": 0, "args": {"a": 1}}],
        [{"ph": "i", "name": "i", "pid": 1, "tid": 1, "ts": 0, "s": "x"}],
        [{"ph": "M", "name": "thread_color", "pid": 1, "tid": 1, "args": {"name": "n"}}],
        [x(0, 10), flow("s", 1)],
        [x(0, 10), flow("s", 10), flow("f", 11, bp="e")],
        [x(0, 10), flow("s", 5), flow("f", 4, bp="e")],
        [x(0, 10), flow("s", 5), flow("f", 6)],
        [{"ph": "b", "name": "b", "cat": "c", "id": 1, "pid": 1, "tid": 1, "ts": 0}],
        [{"ph": "T", "name": "D", "pid": 1, "tid": 1, "ts": 0, "dur": 1, "args": {"cpu": 0}}],
        [{"ph": "?", "name": "n", "pid": 1, "ts": 0}],
    ],
)
def test_the_checker_sees_violations(bad: list[Event]) -> None:
    good = [*named(1, 1), x(0, 20), x(0, 10), x(10, 5), flow("s", 1), flow("f", 2, bp="e")]
    assert check(good) == []
    assert check([*named(1, 1), *bad]) != []
