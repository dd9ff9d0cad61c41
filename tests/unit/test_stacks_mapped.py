"""Which file code is from, of a process that may let its reader wait."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator

import pytest

from tests.workloads.waiting import wait_for
from tracer.host import reach
from tracer.stacks import mapped
from tracer.stacks.mapped import Mapping, Mappings

OWN = os.getpid()
CODE = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value or 0
LATER_NS = 1_000_000_000


class Slow:
    """The reading of mappings, which may wait."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.read: list[int] = []
        self._real = mapped._parsed

    def __call__(self, tgid: int) -> list[Mapping]:
        self.read.append(tgid)
        assert self.goes_on.wait(60)
        return self._real(tgid)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> reach.Patience:
    made = reach.Patience(60.0)
    monkeypatch.setattr(reach, "PATIENCE", made)
    return made


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, patience: reach.Patience) -> Iterator[Slow]:
    made = Slow()
    monkeypatch.setattr(mapped, "_parsed", made)
    yield made
    made.goes_on.set()
    wait_for(lambda: not patience.stuck, 10, "the readers to be over")


def hangs(slow: Slow, patience: reach.Patience) -> None:
    slow.goes_on.clear()
    patience._patience_s = 0.01


def test_code_of_a_process_that_does_not_answer_is_nobodys(
    slow: Slow, patience: reach.Patience
) -> None:
    """And it is not asked again until it has answered."""
    mappings = Mappings()
    hangs(slow, patience)
    for turn in range(10):
        assert mappings.at(OWN, CODE, turn * LATER_NS) is None
    assert (slow.read, mappings.of(OWN)) == ([OWN], [])
    patience._patience_s = 60.0
    slow.goes_on.set()
    wait_for(lambda: not patience.stuck, 10, "it to answer")
    found = mappings.at(OWN, CODE, 10 * LATER_NS)
    assert found is not None
    assert found.module.startswith("/") and found.start <= CODE < found.end


def test_what_was_known_stays(slow: Slow, patience: reach.Patience) -> None:
    mappings = Mappings()
    found = mappings.at(OWN, CODE, 0)
    assert found is not None
    hangs(slow, patience)
    assert mappings.at(OWN, 1, LATER_NS) is None
    assert slow.read == [OWN, OWN]
    assert mappings.at(OWN, CODE, 2 * LATER_NS) == found


def test_of_a_process_that_is_gone_too(slow: Slow) -> None:
    mappings = Mappings()
    gone = 1 << 22  # beyond what the kernel gives
    assert mappings.at(gone, CODE, 0) is None
    assert mappings.of(gone) == []
