"""The tiling: disjoint, without gaps, exact sums, whatever is claimed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tracer import codes, phases
from tracer.derived import PHASES, Interval, Phases, Timeline


def timeline(start: int, end: int, *claims: Interval) -> Timeline:
    return Timeline(
        start_ns=start, end_ns=end, claims=claims, prompt_start_ns=None, triggered_by=None,
        waited_for=(), retry_of=(), engine_seen=True,
    )  # fmt: skip


def claim(stage: str, start: int, end: int, tgid: int | None = None) -> Interval:
    return Interval(stage=stage, start_ns=start, end_ns=end, tgid=tgid)


def sums(**values: int) -> dict[str, int]:
    return {**dict.fromkeys(PHASES, 0), **values}


times = st.integers(-50, 150)
stages = st.sampled_from(
    [*codes.STAGES, *PHASES, "load.unheard", "nonsense", "", "other.else", "queue."]
)
claims = st.lists(
    st.builds(
        Interval, stage=stages, start_ns=times, end_ns=times, estimate=st.booleans(),
        tgid=st.none() | st.integers(1, 3), tid=st.none() | st.integers(1, 3),
    ),
    max_size=40,
)  # fmt: skip


@given(st.integers(-20, 120), st.integers(-20, 120), claims)
@settings(max_examples=400, deadline=None)
def test_any_claims_tile_the_window_exactly(start: int, end: int, made: list[Interval]) -> None:
    t = timeline(start, end, *made)
    got = phases.split(t)
    at = start
    for x in got.intervals:
        assert x.start_ns == at
        assert x.end_ns > x.start_ns
        at = x.end_ns
    assert at == max(start, end)
    assert sum(got.phases_ns.values()) == max(0, end - start)
    assert list(got.phases_ns) == list(PHASES)
    for phase in PHASES:
        of_phase = [n for s, n in got.stages_ns.items() if s.partition(".")[0] == phase]
        assert sum(of_phase) == got.phases_ns[phase]
    assert set(got.stages_ns) <= set(codes.STAGES)


@given(st.integers(0, 60), claims)
@settings(max_examples=200, deadline=None)
def test_each_instant_goes_to_the_first_claimant(end: int, made: list[Interval]) -> None:
    """Against a reference that looks at each nanosecond by itself."""
    got = phases.split(timeline(0, end, *made))
    hidden: dict[str, int] = {}
    for now in range(end):
        there = [codes.stage_of(c.stage) for c in made if c.start_ns <= now < c.end_ns]
        want = min(there, key=codes.rank, default="other.rest")
        assert next(x.stage for x in got.intervals if x.start_ns <= now < x.end_ns) == want
        winner = want.partition(".")[0]
        for phase in {s.partition(".")[0] for s in there} - {winner}:
            hidden[f"{phase}+{winner}"] = hidden.get(f"{phase}+{winner}", 0) + 1
    assert got.overlaps_ns == hidden


def test_load_hides_what_runs_beside_it() -> None:
    got = phases.split(
        timeline(
            0, 100, claim("queue.busy", 0, 90), claim("transfer.h2d", 20, 60),
            claim("load.disk", 10, 40),
        )
    )  # fmt: skip
    assert got == Phases(
        intervals=(
            claim("queue.busy", 0, 10),
            claim("load.disk", 10, 40),
            claim("transfer.h2d", 40, 60),
            claim("queue.busy", 60, 90),
            claim("other.rest", 90, 100),
        ),
        phases_ns=sums(queue=40, load=30, transfer=20, other=10),
        stages_ns={"queue.busy": 40, "load.disk": 30, "transfer.h2d": 20, "other.rest": 10},
        overlaps_ns={"queue+load": 30, "queue+transfer": 20, "transfer+load": 20},
    )


def test_the_order_of_phases_is_the_contracts() -> None:
    order = ["load", "transfer", "init", "evict", "spawn", "prefill", "queue", "other"]
    made = [claim(f"{p}.rest", 0, 10 * (i + 1)) for i, p in enumerate(order)]
    got = phases.split(timeline(0, 80, *reversed(made)))
    assert [x.stage for x in got.intervals] == [f"{p}.rest" for p in order]


def test_a_finer_stage_wins_within_its_phase() -> None:
    made = (claim("load.rest", 0, 40), claim("load.cache", 10, 30), claim("load.disk", 15, 20))
    got = phases.split(timeline(0, 40, *made))
    assert got.stages_ns == {"load.disk": 5, "load.cache": 15, "load.rest": 20}


def test_what_no_stage_names_falls_to_the_rest() -> None:
    got = phases.split(timeline(0, 30, claim("load.odd", 0, 10), claim("strange", 10, 20)))
    assert got.stages_ns == {"load.rest": 10, "other.rest": 20}


def test_an_empty_or_reversed_window_has_nothing_in_it() -> None:
    for end in (5, 3):
        got = phases.split(timeline(5, end, claim("load.disk", 0, 10)))
        assert got == Phases(intervals=(), phases_ns=sums(), stages_ns={}, overlaps_ns={})


def test_many_claims_take_no_longer_than_sorting() -> None:
    """100,000 overlapping claims: a sweep that were quadratic would not come back."""
    n = 100_000
    made = [claim("load.cache", i, i + 1000, tgid=i % 7) for i in range(n)]
    got = phases.split(timeline(0, n + 1000, *made))
    assert got.phases_ns == sums(load=n + 999, other=1)
