"""The table of codes is whole: every code that can be said has a line, and is said once."""

from __future__ import annotations

from typing import get_args

from tracer import codes
from tracer.derived import PHASES
from tracer.records import Unreadable


def test_codes_are_unique_in_their_kind() -> None:
    keys = [(c.what, c.code) for c in codes.TABLE]
    assert len(keys) == len(set(keys))


def test_every_phase_has_a_rest_and_every_stage_a_phase() -> None:
    assert {c.code for c in codes.PHASE_CODES} == set(PHASES) == set(codes.PRIORITY)
    for phase in PHASES:
        assert f"{phase}.rest" in codes.STAGES
    for stage in codes.STAGE_CODES:
        assert stage.phase == stage.code.partition(".")[0]


def test_every_cause_and_antecedent_says_what_to_do() -> None:
    ends = [c for c in codes.TABLE if c.what in ("stage", "cause", "why")]
    without = [c.code for c in ends if not c.advice]
    assert without == ["other.rest"]
    for code in ends:
        assert code.advice is None or code.advice.endswith(".")


def test_unreadable_reasons_are_those_of_the_records() -> None:
    assert {c.code for c in codes.UNREADABLE_CODES} == set(get_args(Unreadable))


def test_ranks_follow_the_order_of_phases() -> None:
    phases = [s.partition(".")[0] for s in codes.by_rank()]
    assert list(dict.fromkeys(phases)) == list(codes.PRIORITY)
    assert codes.rank("load.disk") < codes.rank("load.cache") < codes.rank("load.rest")
