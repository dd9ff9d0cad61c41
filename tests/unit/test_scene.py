"""Ranges of time, and who is below whom."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.evidence_build import life
from tracer import scene

ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def instants(given: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in given for t in range(start, end)}


@given(ranges)
def test_union_is_disjoint_sorted_and_covers_the_same(made: list[tuple[int, int]]) -> None:
    got = scene.union(made)
    assert instants(got) == instants(made)
    assert all(a[1] < b[0] for a, b in pairwise(got))
    assert scene.length(got) == len(instants(made))


@given(ranges, ranges)
def test_subtract_leaves_what_no_hole_covers(
    made: list[tuple[int, int]], holes: list[tuple[int, int]]
) -> None:
    got = scene.subtract(made, holes)
    assert instants(got) == instants(made) - instants(holes)
    assert scene.length(got) == len(instants(got))


def test_descendants_survive_a_circle() -> None:
    lives = [life(2, None, ppid=1), life(3, None, ppid=2), life(1, None, ppid=3)]
    assert scene.descendants(lives, 2) == {1, 2, 3}
    assert scene.descendants(lives, 9) == {9}
