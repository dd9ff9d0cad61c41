"""Samples put into the stages of a request, and kept within bounds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.evidence_build import FRONT, NEW, OLD, evidence, front, life, ns, other, request
from tracer.derived import Interval, Phases
from tracer.evidence import Evidence
from tracer.records import Names, Samples
from tracer.stacks.fold import FEW, TOP, Function, Module, Stage, places, stages
from tracer.stacks.kept import MAX_KEPT, MAX_STACKS, Stacks, thinned

PERIOD_NS = 20_000_000
LLVM, LIBC = "/usr/lib/libLLVM-15.so.1", "/usr/lib/libc.so.6"
NAMES = Names(
    ts_ns=0,
    id=1,
    modules=(LLVM, LIBC),
    functions=("llvm::combine", "malloc", "llvm::visit"),
    at=((0, 16, 0), (0, 17, 0), (1, 8, 1), (0, 99, 2)),
)


def samples(at: float, *stacks: tuple[int, ...], tgid: int = NEW, length: float = 100) -> Samples:
    return Samples(
        ts_ns=ns(at),
        end_ns=ns(at + length),
        tgid=tgid,
        period_ns=PERIOD_NS,
        modules=(LLVM, LIBC),
        stacks=stacks,
    )


def phases(*parts: tuple[str, float, float]) -> Phases:
    spent: dict[str, int] = {}
    for stage, start, end in parts:
        spent[stage] = spent.get(stage, 0) + ns(end) - ns(start)
    return Phases(
        intervals=tuple(Interval(stage=s, start_ns=ns(a), end_ns=ns(b)) for s, a, b in parts),
        phases_ns={},
        stages_ns=spent,
        overlaps_ns={},
    )


def told(*found: Samples, **more: Any) -> Evidence:
    return msgspec.structs.replace(
        evidence(request(), runner=NEW, lives=(front(), life(NEW, "beta"))), samples=found, **more
    )


TILES = phases(("init.compile", 0, 1000), ("prefill.prompt", 1000, 1500))


def test_the_functions_of_each_stage() -> None:
    """By function, whatever the place in it; the most frequent first, with who called it."""
    found = stages(
        told(
            samples(0, (3, 0, 16, 0, 99), (2, 0, 17), (1, 1, 8)),
            samples(500, (4, 0, 16, 0, 99)),
            samples(1200, (7, 1, 8), (3, 1, 555)),
            names=NAMES,
        ),
        TILES,
    )
    assert found == (
        Stage(
            stage="init.compile",
            samples=10,
            processors=0.2,
            modules=(
                Module(module=LLVM, samples=9, share=0.9),
                Module(module=LIBC, samples=1, share=0.1),
            ),
            functions=(
                Function(
                    name="llvm::combine",
                    module=LLVM,
                    samples=9,
                    share=0.9,
                    callers=("llvm::visit",),
                ),
                Function(name="malloc", module=LIBC, samples=1, share=0.1),
            ),
        ),
        Stage(
            stage="prefill.prompt",
            samples=10,
            processors=0.4,
            modules=(Module(module=LIBC, samples=10, share=1.0),),
            functions=(
                Function(name="malloc", module=LIBC, samples=7, share=0.7),
                Function(name=None, module=LIBC, samples=3, share=0.3),
            ),
        ),
    )


def test_without_names_a_module_is_one_entry() -> None:
    (stage,) = stages(told(samples(0, (3, 0, 16), (2, 0, 17), (1, 1, 8))), TILES)
    assert [(f.name, f.module, f.samples) for f in stage.functions] == [
        (None, LLVM, 5),
        (None, LIBC, 1),
    ]


def test_a_slot_belongs_to_the_stage_that_holds_most_of_it() -> None:
    before, after = samples(940, (9, 0, 16)), samples(960, (9, 0, 16))
    assert [s.stage for s in stages(told(before), TILES)] == ["init.compile"]
    assert [s.stage for s in stages(told(after), TILES)] == ["prefill.prompt"]


def test_what_lies_outside_counts_nowhere() -> None:
    assert stages(told(samples(1600, (9, 0, 16)), samples(-300, (9, 0, 16))), TILES) == ()


def test_too_few_say_nothing() -> None:
    assert stages(told(samples(0, (FEW - 1, 0, 16))), TILES) == ()


def test_runners_of_other_models_count_only_while_they_have_to_go() -> None:
    tiles = phases(("evict.stop", 0, 500), ("init.rest", 500, 1000))
    both = told(
        samples(0, (9, 0, 16), tgid=OLD),
        samples(700, (9, 0, 16), tgid=OLD),
        samples(700, (6, 1, 8), tgid=NEW),
        lives=(front(), life(NEW, "beta"), life(OLD, "alpha")),
        others=(other(3, runner=OLD, arrival=-100),),
    )
    assert [(s.stage, s.samples) for s in stages(both, tiles)] == [
        ("evict.stop", 9),
        ("init.rest", 6),
    ]


def test_what_is_asked_for_is_the_most_frequent_first_where_it_ran() -> None:
    asked = places(told(samples(0, (2, 1, 8, 0, 99), (5, 0, 16, 0, 99))))
    assert asked == [(NEW, LLVM, 16), (NEW, LIBC, 8), (NEW, LLVM, 99)]


_COUNTS = st.tuples(st.integers(1, 9), st.integers(0, 1), st.integers(0, 50))
_RECORDS = st.lists(
    st.tuples(st.integers(-5, 30), st.sampled_from([NEW, FRONT, 7]), st.lists(_COUNTS, max_size=6)),
    max_size=20,
)
_EDGES = st.lists(st.integers(0, 2500), min_size=2, max_size=8, unique=True).map(sorted)


@given(_RECORDS, _EDGES)
def test_sums(records: list[tuple[int, int, list[tuple[int, int, int]]]], edges: list[int]) -> None:
    """What is in the window is counted once, or not where a stage has too few."""
    found = [samples(100 * slot, *stacks, tgid=tgid) for slot, tgid, stacks in records]
    tiles = phases(*((f"init.{n}", a, b) for n, (a, b) in enumerate(pairwise(edges))))
    result = stages(told(*found), tiles)
    within = [
        s for s in found if s.ts_ns < ns(edges[-1]) and s.end_ns > ns(edges[0])
    ]  # fmt: skip
    total = sum(count for s in within for count, *_ in s.stacks)
    told_of = sum(stage.samples for stage in result)
    assert total - (FEW - 1) * (len(edges) - 1) <= told_of <= total
    for stage in result:
        assert len(stage.functions) <= TOP
        assert sum(f.samples for f in stage.functions) <= stage.samples
        assert [f.samples for f in stage.functions] == sorted(
            (f.samples for f in stage.functions), reverse=True
        )


@given(_RECORDS, st.integers(1, 40))
def test_thinning_keeps_the_sum_about_right(
    records: list[tuple[int, int, list[tuple[int, int, int]]]], most: int
) -> None:
    found = [
        samples(100 * slot, *((1, *rest) for _, *rest in stacks), tgid=tgid)
        for slot, tgid, stacks in records
    ]
    total = sum(len(s.stacks) for s in found)
    kept = thinned(found, most)
    assert sum(len(s.stacks) for s in kept) <= most
    told_of = sum(count for s in kept for count, *_ in s.stacks)
    step = max(1, -(-total // most))
    assert total <= told_of < total + step
    assert total > most or kept == tuple(found)


def test_what_is_kept_is_bounded() -> None:
    """The whole of a long wait stays covered, and the sums about right."""
    stacks = Stacks()
    for n in range(300):
        stacks.feed(samples(100 * n, *((1, 0, k) for k in range(100))))
    kept = list(stacks.records())
    assert sum(len(s.stacks) for s in kept) <= MAX_KEPT
    assert (kept[0].ts_ns, kept[-1].ts_ns) == (ns(0), ns(29_900))
    assert sum(count for s in kept for count, *_ in s.stacks) == pytest.approx(30_000, rel=0.01)
    found = stacks.of({NEW}, ns(0), ns(30_000))
    assert sum(len(s.stacks) for s in found) <= MAX_STACKS
    assert sum(count for s in found for count, *_ in s.stacks) == pytest.approx(30_000, rel=0.01)
    assert stacks.of({FRONT}, ns(0), ns(30_000)) == ()
    stacks.prune(ns(20_000))
    assert next(stacks.records()).end_ns == ns(20_000)
