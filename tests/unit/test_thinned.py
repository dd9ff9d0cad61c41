"""Probes that come and go give the answers of probes that stay: the demo's own recording."""

from __future__ import annotations

import msgspec
import pytest

from bench.arming import explained, facts_agree, phases_agree, verdict
from bench.thinned import what_arming_keeps
from demo.__main__ import RECORDING
from tests.unit.build import Story, ms
from tracer.arming import Policy
from tracer.recording import Recording
from tracer.records import AnyRecord, Armed, Io, Open, Span

S = 1_000_000_000


@pytest.fixture(scope="module")
def told() -> list[AnyRecord]:
    return list(Recording(RECORDING))


@pytest.mark.parametrize(
    ("quiet_s", "latency_ms"), [(3, 1), (0.3, 1), (0.05, 1), (0.05, 0), (0.3, 4)]
)
def test_the_same_verdicts_phases_and_figures(
    told: list[AnyRecord], quiet_s: float, latency_ms: float
) -> None:
    quiet_ns = round(quiet_s * S)
    policy = Policy(quiet_ns=quiet_ns, start_ns=quiet_ns)
    kept = what_arming_keeps(told, policy, ms(latency_ms))
    whole, thin = explained(told), explained(kept)
    assert whole.keys() == thin.keys()
    for number, one in whole.items():
        other = thin[number]
        assert verdict(one) == verdict(other), number
        assert phases_agree(one, other), number
        assert facts_agree(one, other), number
        assert other.complete, other.incomplete_because
    if quiet_s < 1:
        assert sum(isinstance(r, Armed) for r in kept) > 20, "they came and went"


def test_turned_on_much_too_late_it_says_so(told: list[AnyRecord]) -> None:
    policy = Policy(quiet_ns=S // 20, start_ns=S // 20)
    whole, thin = explained(told), explained(what_arming_keeps(told, policy, 2 * S))
    late = [number for number, one in thin.items() if not one.complete]
    assert late
    for number, one in whole.items():
        other = thin[number]
        if verdict(one) != verdict(other) or not phases_agree(one, other):
            assert number in late
            assert "armed.late" in (other.incomplete_because or "")
            assert any(x.estimate for x in other.phases.intervals)


def test_what_is_dropped() -> None:
    story = Story()
    story.file(10)
    story.runner(10_000, 200, 9000, "m")
    story.load(10_050, 11_000, 200, 10)
    story.load(10_000.5, 10_002, 200, 10, token=2)
    policy = Policy(quiet_ns=S, start_ns=S)
    kept = what_arming_keeps(story.records(until=14_000), policy, ms(5))
    armed = [r for r in kept if isinstance(r, Armed)]
    turns = [(r.ts_ns, r.on, r.why) for r in armed if r.group == "files"]
    assert turns == [
        (ms(1050), False, "quiet"),
        (ms(10_005), True, "process"),
        (ms(12_000), False, "quiet"),
    ]
    assert [(r.ts_ns, r.on, r.why) for r in armed if r.group == "paging"] == turns
    assert [r.ts_ns for r in kept if isinstance(r, Open)] == [ms(10_050)]
    assert [r.ts_ns for r in kept if isinstance(r, Span)] == [ms(10_051)]
    assert {r.tgid for r in kept if isinstance(r, Io)} == {100, 200}


def test_faults_meanwhile_are_counted_untimed_and_turn_them_on() -> None:
    """The first of a run that nobody times turns them on; the rest of it is timed."""
    story = Story()
    story.file(10)
    first = Span(
        ts_ns=ms(5000), end_ns=ms(5100), tgid=100, tid=100, dev=1, ino=10, token=0,
        op="fault_major", count=100, bytes=100 * 4096, busy_ns=ms(100),
    )  # fmt: skip
    minor = msgspec.structs.replace(first, op="fault_minor", ts_ns=ms(4000), end_ns=ms(4001))
    told = sorted([*story.records(until=9000), first, minor], key=lambda r: r.ts_ns)
    kept = what_arming_keeps(told, Policy(quiet_ns=S, start_ns=S), ms(5))
    spans = [r for r in kept if isinstance(r, Span) and r.op.startswith("fault")]
    assert sorted((r.ts_ns, r.op, r.count, r.busy_ns) for r in spans) == [
        (ms(5000), "fault_major", 5, 0),
        (ms(5005), "fault_major", 95, ms(95)),
    ]
    assert (ms(5005), "weights") in [(r.ts_ns, r.why) for r in kept if isinstance(r, Armed)]
