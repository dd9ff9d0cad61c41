"""Clocks that are set, and machines that stand still: the time of day stays right."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fake_daemon import STATUS
from tracer import answers_state, render_state
from tracer.answers_state import Clocks as Told
from tracer.host.clock import Clock, Clocks, Reading, read
from tracer.records import Host

S = 1_000_000_000
DAY = 86_400 * S
START = Reading(1000 * S, 1_700_000_000 * S, 1000 * S)


class Hands:
    """Three clocks, moved by hand."""

    def __init__(self) -> None:
        self.now = START
        self.said: list[str] = []
        host = Host(
            ts_ns=START.monotonic_ns, wall_offset_ns=START.wall_ns - START.monotonic_ns,
            machine="m", kernel="k", version="v", began_ns=START.monotonic_ns,
        )  # fmt: skip
        self.clock = Clock(host, lambda: self.now, self.said.append)

    def go(self, runs_ns: int, *, sleeps_ns: int = 0, set_ns: int = 0) -> list[Host]:
        was = self.now
        self.now = Reading(
            was.monotonic_ns + runs_ns,
            was.wall_ns + runs_ns + sleeps_ns + set_ns,
            was.boot_ns + runs_ns + sleeps_ns,
        )
        return self.clock.look()


def test_time_that_only_passes_is_nothing() -> None:
    hands = Hands()
    assert [hands.go(3600 * S, set_ns=1000) for _ in range(3)] == [[], [], []]
    assert (hands.clock.seen, hands.said) == (Clocks(), [])


def test_a_clock_that_is_set() -> None:
    hands = Hands()
    (host,) = hands.go(10 * S, set_ns=-3600 * S)
    assert host.ts_ns == 1010 * S
    assert host.wall_offset_ns == hands.now.wall_ns - hands.now.monotonic_ns
    assert hands.clock.offset_ns == host.wall_offset_ns
    assert hands.go(10 * S) == []
    hands.go(10 * S, set_ns=2 * S)
    assert hands.clock.seen == Clocks(steps=2, last_step_s=2.0)
    assert hands.said[0] == "the clock was set by -3600.0 s; times of day go by it from now"


def test_a_machine_that_is_suspended_over_night() -> None:
    """No clock was set, but the time of day is another one."""
    hands = Hands()
    (host,) = hands.go(S, sleeps_ns=8 * 3600 * S)
    assert host.wall_offset_ns == hands.now.wall_ns - hands.now.monotonic_ns
    hands.go(S, sleeps_ns=60 * S, set_ns=5 * S)
    assert hands.clock.seen == Clocks(
        steps=1, last_step_s=5.0, suspensions=2, suspended_s=8 * 3600 + 60
    )
    assert hands.said[0] == "the machine was suspended for 28800 s"


def test_one_wrong_date_does_not_cost_the_history() -> None:
    """Set ten years ahead and back again, or right at last: believed a day later."""
    hands = Hands()
    hands.go(S, set_ns=3650 * DAY)
    assert hands.clock.cautious_ns() == hands.now.wall_ns - 3650 * DAY
    hands.go(3600 * S, set_ns=-3650 * DAY)
    assert hands.clock.cautious_ns() == hands.now.wall_ns
    hands.go(S, set_ns=3650 * DAY)
    hands.go(DAY)
    assert hands.clock.cautious_ns() == hands.now.wall_ns


moves = st.tuples(st.integers(0, DAY), st.integers(0, DAY), st.integers(-DAY, DAY))


@given(st.lists(moves, max_size=8))
def test_the_offset_is_never_far_off(found: list[tuple[int, int, int]]) -> None:
    hands = Hands()
    for runs, sleeps, step in found:
        hands.go(runs, sleeps_ns=sleeps, set_ns=step)
        assert abs(hands.clock.offset_ns - (hands.now.wall_ns - hands.now.monotonic_ns)) < 2 * S
        assert hands.clock.cautious_ns() <= hands.now.wall_ns


def test_this_machines_clocks() -> None:
    first, second = read(), read()
    assert first.monotonic_ns <= second.monotonic_ns
    assert second.boot_ns >= second.monotonic_ns


def text_of(clock: Told, **history: Any) -> str:
    from msgspec.structs import replace

    state = replace(STATUS, clock=clock, history=replace(STATUS.history, **history))
    return "\n".join(render_state.status(answers_state.status(state)))


def test_it_is_in_the_status() -> None:
    assert "Clock" not in text_of(Told())
    set_twice = text_of(Told(steps=2, last_step_s=-3600.0))
    assert "Clock    set 2 times, last by 60 min back" in set_twice, set_twice
    slept = text_of(Told(steps=1, last_step_s=1.5, suspensions=1, suspended_s=28800))
    assert "set once by 1.50 s ahead; stood still once for 480 min (suspended)" in slept
    aside = text_of(Told(), set_aside=("history.db.damaged-20260131T120000",))
    assert "set aside as history.db.damaged-20260131T120000" in " ".join(aside.split())
