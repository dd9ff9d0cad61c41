"""Descriptors for page faults: given back when the last who has them is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tracer.kernel import perf
from tracer.kernel.perf import FaultEvents


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Descriptors that stand for events; a process has one thread."""
    made: set[int] = set()

    def open_event(config: int, tid: int) -> int:
        made.add(fd := os.open("/dev/null", os.O_RDONLY))
        return fd

    monkeypatch.setattr(perf, "threads", lambda tgid: {tgid})
    monkeypatch.setattr(perf, "open_event", open_event)
    monkeypatch.setattr("fcntl.ioctl", lambda *_: 0)
    yield made
    for fd in filter(is_open, made):
        os.close(fd)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def left(opened: set[int]) -> int:
    return sum(map(is_open, opened))


PROGRAMS = {"ttft_fault_begin": 1, "ttft_fault_minor": 2}


def test_a_thousand_processes_leave_nothing(opened: set[int]) -> None:
    """Beside others that are watched without events, whatever they do."""
    events = FaultEvents(PROGRAMS)
    events.add(1)
    for tgid in range(100, 1100):
        events.add(tgid)
        events.ended([tgid])
    assert events.covered == {1}
    assert left(opened) == 2
    events.close()
    assert left(opened) == 0


def test_events_stay_while_a_child_has_them(opened: set[int]) -> None:
    events = FaultEvents(PROGRAMS)
    events.add(10)
    events.forked(10, 11)
    events.forked(11, 12)
    events.forked(99, 13)
    events.ended([10, 11])
    assert left(opened) == 2, "12 still has them"
    events.ended([13])
    assert left(opened) == 2
    events.ended([12])
    assert left(opened) == 0


def test_a_child_with_events_of_its_own_needs_none_of_its_parent(opened: set[int]) -> None:
    events = FaultEvents(PROGRAMS)
    events.add(10)
    events.forked(10, 11)
    events.add(11)
    events.ended([10])
    assert left(opened) == 4, "they are told twice until it ends, never lost"
    events.ended([11])
    assert left(opened) == 0
