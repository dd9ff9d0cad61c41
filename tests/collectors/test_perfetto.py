"""Traces as a real Perfetto reads them: nothing dropped, nothing complained of, times to the
nanosecond, and its own tables filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.collectors.perfetto import Perfetto, browser
from tests.unit.trace_rules import load
from tracer.derived import Derived
from tracer.export.chrome import dump
from tracer.recording import replay

pytestmark = pytest.mark.collectors
DEMO = Path(__file__).parents[2] / "demo" / "recording.ndjson.gz"
#: What the page shows in red, and what it lost without saying so.
TROUBLE = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"


@pytest.fixture(scope="module")
def requests() -> list[Derived]:
    """The demo's."""
    return replay(DEMO)


@pytest.fixture(scope="module")
def trace(requests: list[Derived]) -> bytes:
    return dump(requests)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def perfetto(
    trace: bytes, chromium: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Perfetto]:
    path = tmp_path_factory.mktemp("perfetto") / "trace.json"
    path.write_bytes(trace)
    with Perfetto(chromium, path) as opened:
        yield opened


def test_all_of_it_is_taken(perfetto: Perfetto, trace: bytes) -> None:
    events = load(trace)
    counted = Counter(event["ph"] for event in events)
    assert perfetto.query(TROUBLE) == []
    assert perfetto.errors == []
    (found,) = perfetto.query("select count() as n from slice where dur >= 0")
    assert found["n"] == counted["X"] + counted["b"] + counted["i"]
    (found,) = perfetto.query("select count() as n from slice where dur < 0")
    assert found["n"] == 0
    (found,) = perfetto.query("select count() as n from flow")
    assert found["n"] == counted["f"] + counted["t"]
    (found,) = perfetto.query("select count() as n from counter")
    assert found["n"] == sum(len(event["args"]) for event in events if event["ph"] == "C")


def test_requests_and_phases_are_slices(perfetto: Perfetto, requests: list[Derived]) -> None:
    rows = perfetto.query(
        "select p.name as request, c.name as phase, c.dur as dur "
        "from slice c join slice p on c.parent_id = p.id where p.name glob '#*'"
    )
    found: dict[str, Counter[str]] = {}
    for row in rows:
        phases = found.setdefault(row["request"], Counter())
        phases[row["phase"]] += row["dur"] if row["phase"] != "generate" else 0
    expected = {f"#{one.evidence.id} {one.model}": one for one in requests}
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert found[name].total() == one.ttft_ns
        phases_ns = {phase: ns for phase, ns in one.phases.phases_ns.items() if ns}
        assert +found[name] == Counter(phases_ns)


def test_processes_and_threads_have_names(perfetto: Perfetto, trace: bytes) -> None:
    named = {
        (event["name"], event["args"]["name"])
        for event in load(trace)
        if event["name"] in ("process_name", "thread_name")
    }
    processes = {row["name"] for row in perfetto.query("select name from process")}
    threads = {row["name"] for row in perfetto.query("select name from thread")}
    assert {name for kind, name in named if kind == "process_name"} <= processes
    assert {name for kind, name in named if kind == "thread_name"} <= threads


def test_what_is_wrong_is_seen(chromium: Browser, tmp_path: Path) -> None:
    """The check above can fail."""
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 5}]}')
    with Perfetto(chromium, path) as opened:
        assert opened.query(TROUBLE) != []
