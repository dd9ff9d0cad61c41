"""The rules of the verdict, one by one, on phases given by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.evidence_build import MS, evidence, request, warm
from tracer import attribution
from tracer.baseline import Baseline
from tracer.case import Case
from tracer.derived import PHASES, Facts, Interval, Phases, Timeline
from tracer.records import Settings, Warm

FACTS = Facts(
    weights=(), weights_bytes=0, weights_bytes_from_disk=0, major_faults=0, minor_faults=0,
    gpu_calls=None, processes_started=0, processes_exited=0, reclaim_ns=None,
    resident_before=True, switched_from=None,
)  # fmt: skip


def case(
    stages: Mapping[str, float], *, baseline: tuple[Warm, ...] = (), tokens: int | None = None,
    complete: bool = True, facts: Facts = FACTS, estimate: bool = False, **kw: object,
) -> Case:  # fmt: skip
    """A case whose stages (in milliseconds) follow each other."""
    at, intervals = 0, []
    for stage, took in stages.items():
        end = at + round(took * MS)
        intervals.append(Interval(stage=stage, start_ns=at, end_ns=end, estimate=estimate))
        at = end
    phases: dict[str, int] = {
        p: sum(x.end_ns - x.start_ns for x in intervals if x.stage.startswith(p + "."))
        for p in PHASES
    }
    t = Timeline(
        start_ns=0, end_ns=at, claims=tuple(intervals), prompt_start_ns=None, triggered_by=None,
        waited_for=(), retry_of=(), engine_seen=True,
    )  # fmt: skip
    return Case(
        evidence=evidence(request(), baseline=baseline, **kw), timeline=t,
        phases=Phases(
            intervals=tuple(intervals), phases_ns=phases, overlaps_ns={},
            stages_ns={s: round(n * MS) for s, n in stages.items()},
        ),
        facts=facts, model="beta", kind="chat/stream", outcome="ok",
        took_ns=at - round(stages.get("prefill.decode", 0) * MS), uncached_tokens=tokens,
        complete=complete,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ttft", "typical", "spike"),
    [
        (250, 30, False),
        (250.001, 30, True),
        (300, 100, False),
        (300.001, 100, True),
        (249, 1, False),
    ],
)
def test_a_spike_is_above_the_least_and_thrice_the_typical(
    ttft: float, typical: float, spike: bool
) -> None:
    c = case({"prefill.prompt": ttft}, baseline=warm(typical))
    assert attribution.judge(c).is_spike is spike


def test_the_settings_move_both_limits() -> None:
    loose = Settings(ts_ns=0, min_ms=1000, factor=10)
    assert not attribution.judge(
        case({"prefill.prompt": 999}, baseline=warm(30), settings=loose)
    ).is_spike
    assert not attribution.judge(
        case({"prefill.prompt": 1900}, baseline=warm(200), settings=loose)
    ).is_spike
    assert attribution.judge(
        case({"prefill.prompt": 2001}, baseline=warm(200), settings=loose)
    ).is_spike


@pytest.mark.parametrize(
    ("stages", "spike"),
    [
        ({"load.disk": 200, "prefill.prompt": 190}, True),
        ({"load.disk": 200, "prefill.prompt": 200}, False),
        ({"load.disk": 150, "prefill.prompt": 99}, False),
        ({"queue.busy": 5000, "prefill.prompt": 30}, False),
        ({"evict.stop": 50, "spawn.fit": 50, "transfer.h2d": 50, "init.rest": 51,
          "prefill.prompt": 200}, True),
    ],
)  # fmt: skip
def test_without_a_baseline_the_cold_phases_must_be_more_than_half(
    stages: dict[str, float], spike: bool
) -> None:
    got = attribution.judge(case(stages, baseline=warm(count=4)))
    assert got.is_spike is spike
    assert got.typical_ns is None


def test_first_expanded_is_the_earliest_that_holds_a_tenth_of_the_excess() -> None:
    stages = {"queue.front": 99, "evict.stop": 101, "load.disk": 800, "prefill.prompt": 30}
    got = attribution.judge(case(stages, baseline=warm(30)))
    assert (got.first_expanded, got.dominant) == ("evict", "load")


def test_what_is_typical_of_a_phase_is_no_excess() -> None:
    """900 ms of prefill are this kind's habit; the rest is what grew."""
    stages = {"queue.busy": 2000, "prefill.prompt": 900}
    got = attribution.judge(case(stages, baseline=warm(901)))
    assert got.first_expanded == "queue"
    assert (got.dominant, got.cause) == ("queue", "queue.busy")


@pytest.mark.parametrize(
    ("spawn", "dominant", "cause"),
    [
        (899, "load", "load.disk"),
        (900, "spawn+load", "load.disk"),
        (1110, "spawn+load", "spawn.fit"),
        (1112, "spawn", "spawn.fit"),
    ],
)
def test_near_ties_are_both_named_in_the_tables_order(
    spawn: float, dominant: str, cause: str
) -> None:
    got = attribution.judge(case({"spawn.fit": spawn, "load.disk": 1000}))
    assert (got.dominant, got.cause) == (dominant, cause)


def test_cause_is_the_largest_stage_of_the_dominant_phase() -> None:
    stages = {"load.meta": 300, "load.disk": 500, "load.cache": 100, "load.rest": 700}
    assert attribution.judge(case(stages)).cause == "load.disk"


def test_a_rest_that_is_most_of_the_phase_is_not_passed_over() -> None:
    assert attribution.judge(case({"init.poll": 10, "init.rest": 900})).cause == "init.rest"


def test_other_that_dominates_is_unknown_and_lowers_confidence() -> None:
    got = attribution.judge(case({"other.rest": 900, "load.disk": 100}, baseline=warm()))
    assert (got.dominant, got.cause, got.confidence) == ("other", "unknown", 0.05)


@pytest.mark.parametrize(
    ("tokens", "cause"),
    [
        (4000, "prefill.prompt"),
        (1300, "prefill.prompt"),
        (500, "prefill.prompt"),
        (400, "prefill.unexplained"),
        (90, "prefill.unexplained"),
    ],
)
def test_a_long_prompt_is_the_cause_only_if_its_size_explains_it(tokens: int, cause: str) -> None:
    """Warm prompts of 26 tokens take 29 ms: 1.1 ms a token; far beyond, up to four times that."""
    c = case({"queue.socket": 1, "prefill.prompt": 2000}, baseline=warm(30), tokens=tokens)
    assert attribution.judge(c).cause == cause


def test_a_prompt_of_unknown_size_is_still_the_prompt() -> None:
    got = attribution.judge(case({"prefill.prompt": 2000}, baseline=warm(30)))
    assert got.cause == "prefill.prompt"
    assert got.because is not None
    assert "work on the prompt" in got.because


def test_a_shared_batch_is_named() -> None:
    stages = {"prefill.shared": 1500, "prefill.prompt": 500}
    got = attribution.judge(case(stages, baseline=warm(30), tokens=26))
    assert got.cause == "prefill.shared"


def test_decoding_is_not_held_against_a_whole_reply() -> None:
    stages = {"prefill.prompt": 40, "prefill.decode": 9000}
    assert not attribution.judge(case(stages, baseline=warm(30))).is_spike
    got = attribution.judge(case({"load.disk": 500, **stages}, baseline=warm(30)))
    assert (got.dominant, got.cause) == ("load", "load.disk")


def test_confidence_falls_by_the_written_rule() -> None:
    stages = {"load.disk": 900, "prefill.prompt": 100}
    sure = case(stages, baseline=warm(30))
    assert attribution.judge(sure).confidence == 0.97
    assert attribution.judge(case(stages)).confidence == 0.82
    assert attribution.judge(case(stages, baseline=warm(30), complete=False)).confidence == 0.77
    assert attribution.judge(case(stages, baseline=warm(30), estimate=True)).confidence == 0.82
    partly = {**stages, "other.rest": 100}
    assert attribution.judge(case(partly, baseline=warm(30))).confidence == 0.88


def test_every_verdict_comes_with_advice() -> None:
    assert attribution.advice("load.disk", ("load.refault", "load.readahead")) == (
        "Raise the memory limit above the size of the model, or use a smaller one."
    )
    assert attribution.advice("load.disk", ()) is not None
    assert attribution.advice("unheard of", ()) is None


def test_advice_on_loading_is_none_for_a_long_prompt() -> None:
    prompt = attribution.advice("prefill.prompt", ())
    assert attribution.advice("prefill.prompt", ("evicted.pagecache",)) == prompt


def test_excess_without_a_baseline_is_the_phase() -> None:
    c = case({"load.disk": 500, "prefill.prompt": 100})
    excess = attribution.excess_ns(c, Baseline(count=0))
    assert excess == {**dict.fromkeys(PHASES, 0), "load": 500 * MS, "prefill": 100 * MS}
