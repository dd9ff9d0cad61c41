"""The engine's thread outlives whatever is asked of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tracer.engine import Engine
from tracer.live import Live
from tracer.pipeline import Pipeline
from tracer.records import AnyRecord, Tick


class Quiet(Live):
    """Nothing happens; each `wait` waits to be let go once."""

    def __init__(self) -> None:
        self.turns = threading.Semaphore(0)
        self.ns = 0

    def begin(self) -> list[AnyRecord]:
        return []

    def context(self) -> list[AnyRecord]:
        return []

    def kick(self) -> None:
        pass

    def wait(self, *, busy: bool) -> None:
        self.turns.acquire()

    def drain(
        self, *, busy: bool, waiting: Callable[[], frozenset[int]] = frozenset
    ) -> Iterator[list[AnyRecord]]:
        self.ns += 1
        yield [Tick(ts_ns=self.ns)]


class Running:
    def __init__(self) -> None:
        self.live = Quiet()
        self.engine = Engine(self.live, Pipeline(), lambda _: None, lambda _: None)
        self.engine.start([])

    def turn(self) -> None:
        """One drain, and the calls after it."""
        done = self.engine.call(lambda: None)
        self.live.turns.release()
        done.result(timeout=10)


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    for _ in range(3):
        made.live.turns.release()
    made.engine.stop()
    made.engine.failed.result(timeout=10)


def test_a_reader_gets_context_then_records(running: Running) -> None:
    got: list[list[AnyRecord]] = []
    context = running.engine.tap(got.append)
    running.turn()
    assert context.result(timeout=10) != []
    running.turn()
    assert got == [[Tick(ts_ns=2)]]
    running.engine.untap(got.append)
    running.turn()
    running.turn()
    assert got[-1] == [Tick(ts_ns=3)], "what was drained with the call still went out"


def test_a_reader_that_left_before_it_was_heard(running: Running) -> None:
    got: list[list[AnyRecord]] = []
    assert running.engine.tap(got.append).cancel()
    running.engine.untap(got.append)
    running.engine.untap(got.append)
    running.turn()
    running.turn()
    assert got == []
    assert not running.engine.failed.done()


def test_a_question_that_fails_is_the_askers_trouble(running: Running) -> None:
    def wrong() -> None:
        raise ValueError("odd")

    answer = running.engine.call(wrong)
    running.turn()
    with pytest.raises(ValueError, match="odd"):
        answer.result(timeout=10)
    running.turn()
    assert not running.engine.failed.done()


def test_what_is_asked_from_elsewhere_reads_nothing_that_the_engine_changes() -> None:
    """Its dictionaries may grow at any moment."""
    asked_by: set[str] = set()

    class Watched(Pipeline):
        def open_requests(self) -> tuple[int, ...]:
            asked_by.add(threading.current_thread().name)
            return (1, 2)

    live = Quiet()
    engine = Engine(live, Watched(), lambda _: None, lambda _: None)
    engine.start([])
    done = engine.call(lambda: None)
    live.turns.release()
    done.result(timeout=10)
    before = set(asked_by)
    asked_by.clear()
    with ThreadPoolExecutor(1, "stranger") as elsewhere:
        assert elsewhere.submit(lambda: engine.open_requests).result() == 2
    assert before
    assert not {name for name in asked_by if name.startswith("stranger")}
    for _ in range(3):
        live.turns.release()
    engine.stop()
