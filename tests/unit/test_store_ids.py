"""No id is given twice: however runs end, and whenever the disk takes nothing."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.answer_cases import spike, warm
from tracer import answers, render, render_spikes
from tracer.errors import StoreError
from tracer.store import Store, database, history, ids, reader, writer

#: What a run does: gives so many ids, or its disk begins to refuse or to take writes.
Step = int | bool
BLOCK = 8


class Clock:
    """Stands for the module `time`: a run gives less than one id a millisecond."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def time_ns(self) -> int:
        return self.now_ms * 1_000_000


@dataclass
class Runs:
    """One state folder, and who was given which id in it."""

    root: Path
    clock: Clock
    refuses: bool = False
    given: list[tuple[int, int]] = field(default_factory=list)
    run: int = 0
    folder: int = 0

    @property
    def path(self) -> Path:
        return self.root / str(self.folder) / "history.db"

    def go(self, steps: Sequence[Step], *, clean: bool, index_lost: bool = False) -> None:
        """One run of the daemon."""
        self.run += 1
        self.clock.now_ms += 1000
        store = Store(self.path)
        number = store.next_id()
        later: int | None = None
        for step in steps:
            if isinstance(step, bool):
                self.refuses = step
                continue
            for _ in range(step):
                self.clock.now_ms += 1
                self.given.append((number, self.run))
                store.put([warm(number, model=str(self.run))])
                # As in the daemon, where one more may be given before the news comes in.
                number = max(number + 1, later or 0)
                later = store.go_on_at(number) or later
        if clean:
            store.close(number)
        else:
            self._kill(store, index_lost)

    def _kill(self, store: Store, index_lost: bool) -> None:
        """What is on disk stays as it is: closing would put the log into the file."""
        before = self.path.parent
        self.folder += 1
        if before.exists():
            left = shutil.ignore_patterns("*-shm") if index_lost else None
            shutil.copytree(before, self.path.parent, ignore=left)
        store._close()
        store._disown()

    def check(self) -> None:
        """Each id was given once, and what is stored is what its own run had to say."""
        self.refuses = False
        numbers = [number for number, _ in self.given]
        assert sorted(set(numbers)) == sorted(numbers)
        store = Store(self.path)
        stored = [orjson.loads(one) for one in store.requests(last=100_000)]
        store.close()
        assert {(one["id"], int(one["model"])) for one in stored} <= set(self.given)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return prepared(tmp_path, monkeypatch)


def prepared(root: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs(root, Clock())
    connect, transaction = database.connect, writer.transaction

    def connects(path: Path, warn: database.Warn) -> sqlite3.Connection:
        if made.refuses:
            raise database.UnwritableError("refused", "make room")
        return connect(path, warn)

    def begins(connection: sqlite3.Connection) -> object:
        if made.refuses:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return transaction(connection)

    monkeypatch.setattr(database, "connect", connects)
    monkeypatch.setattr(writer, "transaction", begins)
    monkeypatch.setattr(ids, "time", made.clock)
    monkeypatch.setattr(ids, "BLOCK", BLOCK)
    monkeypatch.setattr(history, "PENDING_MAX", 5)
    return made


@pytest.mark.parametrize("index_lost", [False, True], ids=["with its index", "without"])
def test_a_disk_that_refuses_at_the_start_and_takes_writes_later(
    runs: Runs, index_lost: bool
) -> None:
    """What the run before had stored is in the log beside the file alone."""
    runs.go([20], clean=False, index_lost=index_lost)
    stored = {number for number, _ in runs.given}
    runs.refuses = True
    runs.go([5, False, 5], clean=True)
    assert not any(ids.is_counted(number) for number, run in runs.given if run == 2)
    runs.go([5], clean=True)
    store = Store(runs.path)
    assert stored < set(store.find(1000))
    store.close()
    runs.check()


def test_a_run_whose_disk_never_took_anything_leaves_no_word_of_its_ids(runs: Runs) -> None:
    for clean in (True, False, True):
        runs.refuses = True
        runs.go([3], clean=clean)
    runs.refuses = False
    runs.go([30], clean=True)
    runs.go([30], clean=True)
    runs.check()


@pytest.mark.parametrize("clean", [True, False])
def test_a_disk_that_refuses_for_longer_than_ids_are_reserved(runs: Runs, clean: bool) -> None:
    runs.go([3, True, 4 * BLOCK], clean=clean)
    runs.refuses = False
    runs.go([4 * BLOCK], clean=True)
    runs.check()
    counted = [number for number, _ in runs.given if ids.is_counted(number)]
    assert max(counted) < 8 * BLOCK, "the next one counts on"


def test_a_clean_end_gives_back_what_was_not_used(runs: Runs) -> None:
    for _ in range(4):
        runs.go([3], clean=True)
    assert [number for number, _ in runs.given] == list(range(1, 13))
    runs.check()


def test_the_clock_was_put_back(runs: Runs) -> None:
    """What is stored is not replaced."""
    runs.refuses = True
    runs.go([3, False, 3], clean=True)
    runs.clock.now_ms -= 3_600_000
    runs.refuses = True
    runs.go([3, False, 3], clean=True)
    runs.check()
    runs.clock.now_ms = 0
    assert ids.by_clock(0) == ids.CLOCKED


def test_other_trouble_than_the_disks_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "history.db")

    def busy(*_: object, **__: object) -> None:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(writer, "reserve_block", busy)
        with pytest.raises(StoreError, match="locked"):
            store.next_id()
    store.close()


def test_ids_by_the_clock_make_a_history_no_bigger(tmp_path: Path) -> None:
    """How many there are decides how many are dropped at a time."""
    store = Store(tmp_path / "history.db")
    store.put([warm(n) for n in (5, 9, ids.CLOCKED + 7, ids.CLOCKED + 10**9)])
    assert store._ask(reader.span) == 7
    assert store.next_id() == 1010
    store.close()


def test_an_id_is_shown_whole_however_long() -> None:
    """What is cut names no request."""
    for number in (999_999, 1_000_000, Clock().now_ms):
        one = orjson.loads(answers.dumps(answers.answer(spike(number))))
        line, head = render.request_line(one), render_spikes.spike(one, UTC)[0]
        assert line.split()[0] == str(number)
        assert head.split()[0] == f"#{number}"
        assert max(len(line), len(head)) <= 80
        assert one["model"] in line and one["model"] in head


_steps = st.lists(st.integers(1, 2 * BLOCK) | st.booleans(), max_size=4)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(_steps, st.booleans(), st.booleans()), min_size=2, max_size=4))
def test_whatever_disks_and_runs_do(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[list[Step], bool, bool]]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        made = prepared(tmp_path_factory.mktemp("ids"), patched)
        for steps, clean, index_lost in story:
            made.go(steps, clean=clean, index_lost=index_lost)
        made.check()
