"""The history is written beside the engine, never in its way."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import cast

import pytest

from tests.workloads.waiting import wait_for
from tracer.backlog import Backlog
from tracer.derived import Derived


class Item:
    """Can be watched until nobody holds it."""


def items(*names: str) -> list[Derived]:
    """Stand-ins: the backlog never looks inside."""
    return cast(list[Derived], list(names))


def test_a_slow_disk_holds_up_nobody_and_loses_nothing() -> None:
    disk, began = threading.Event(), threading.Event()
    written: list[Sequence[Derived]] = []

    def put(batch: Sequence[Derived]) -> None:
        began.set()
        disk.wait()
        written.append(batch)

    backlog = Backlog(put)
    backlog.add(items("a"))
    began.wait()
    backlog.add(items("b", "c"))
    backlog.add(items("d"))
    assert written == []
    assert backlog.waiting == 3
    disk.set()
    backlog.close()
    assert written == [items("a"), items("b", "c", "d")]


def test_a_burst_is_put_in_pieces_and_let_go() -> None:
    disk = threading.Event()
    sizes: list[int] = []
    many = [Item() for _ in range(1000)]
    last = weakref.ref(many[-1])

    def put(batch: Sequence[Derived]) -> None:
        disk.wait()
        sizes.append(len(batch))

    backlog = Backlog(put)
    backlog.add(cast(list[Derived], many))
    del many
    disk.set()
    wait_for(lambda: sum(sizes) == 1000, 10, "all to be put")
    wait_for(lambda: last() is None, 10, "the last one to be let go")
    assert max(sizes) <= 50
    backlog.close()


def test_closing_an_idle_backlog_writes_nothing() -> None:
    written: list[Sequence[Derived]] = []
    backlog = Backlog(written.append)
    backlog.close()
    assert written == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_ends_the_thread_is_told() -> None:
    def put(_: Sequence[Derived]) -> None:
        raise ValueError("a fault of ours")

    backlog = Backlog(put)
    backlog.add(items("a"))
    with pytest.raises(ValueError, match="a fault of ours"):
        backlog.failed.result(timeout=10)
    backlog.close()
