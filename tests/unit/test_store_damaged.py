"""A history whose bytes were changed stops no start, and loses no more than what they spoilt."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.answer_cases import spike, warm
from tracer import summary
from tracer.backend import _latest
from tracer.errors import StoreError
from tracer.store import Store
from tracer.store.bulk import fill
from tracer.store.ids import CLOCKED
from tracer.store.migrations import NEWEST

NOW = 1 << 61


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "state" / "history.db"
    store = Store(made)
    store.put([warm(1), warm(2), spike(3)])
    store.close()
    return made


def change(path: Path, sql: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(sql)
    connection.close()


def begin(store: Store) -> int:
    """What a daemon asks before it says that it is ready."""
    first = store.next_id()
    _latest(store)
    store.models()
    store.last_models()
    store.warm_context()
    return first


SPOILT = (
    "UPDATE details SET evidence = x'00' WHERE id = 3",
    "UPDATE details SET evidence = 'text' WHERE id = 3",
    "UPDATE details SET detail = x'00'",
    "UPDATE details SET detail = 17",
    "UPDATE requests SET phases = '{' WHERE warm = 1",
    "UPDATE requests SET phases = x'00' WHERE warm = 1",
    "UPDATE requests SET baseline = x'00', prompt_tokens = 'many' WHERE warm = 1",
    "UPDATE requests SET arrival_ns = 'never' WHERE id = 1",
    "UPDATE requests SET answer = '{' WHERE id = 2",
    "UPDATE requests SET answer = x'7b22ff223a317d' WHERE id = 2",
    "UPDATE requests SET ttft_ns = 'soon' WHERE id = 1",
    "UPDATE seen SET server = CAST(x'ff' AS TEXT)",
    "UPDATE seen SET last_ns = 'soon', model = x'00'",
    "UPDATE counters SET value = 'many'",
    f"UPDATE counters SET value = {NOW}",
    f"UPDATE requests SET id = {CLOCKED - 1} WHERE id = 1",
    f"UPDATE requests SET id = {(1 << 63) - 1} WHERE id = 1",
)


@pytest.mark.parametrize("sql", SPOILT)
def test_a_row_that_cannot_be_read_is_left_out(path: Path, sql: str) -> None:
    change(path, sql)
    said: list[str] = []
    store = Store(path, warn=said.append)
    first = begin(store)
    assert 3 < first < CLOCKED
    counted = store.counts(0)
    assert all(isinstance(one.model, str) for one in counted.models)
    store.put([spike(first)])
    shown = [orjson.loads(one)["id"] for one in store.requests()]
    assert first in shown
    assert len(shown) >= 3
    for number in (1, 2, 3):
        for ask in (store.get, store.evidence):
            told(ask, number)
    assert store.trouble is None
    assert store.set_aside == []
    assert len(said) == (store.left_out > 0)
    store.close()


def told(ask: Callable[[int], object], number: int) -> None:
    """The answer, or an error that says what is wrong."""
    try:
        ask(number)
    except StoreError as error:
        assert "cannot be read" in error.message
        assert error.hint


def test_it_is_said_once_and_counted(path: Path) -> None:
    change(path, "UPDATE details SET evidence = x'00' WHERE id = 3")
    said: list[str] = []
    store = Store(path, warn=said.append)
    assert [one.id for one in store.evidences([1, 2, 3, 4])] == [1, 2]
    assert list(store.evidences([3])) == []
    assert store.left_out == 2
    assert len(said) == 1
    assert "evidence of this request cannot be read" in said[0]
    with pytest.raises(StoreError, match="evidence of this request cannot be read"):
        store.evidence(3)


def test_damaged_detail_is_an_error(path: Path) -> None:
    change(path, "UPDATE details SET detail = x'789c'")
    with pytest.raises(StoreError, match="detail of this request cannot be read"):
        Store(path).get(1)


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE requests",
        "DROP TABLE details",
        "DROP TABLE counters",
        "ALTER TABLE seen RENAME TO sean",
        "ALTER TABLE migrations RENAME TO m",
        f"UPDATE migrations SET number = {NEWEST + 128} WHERE number = {NEWEST}",
        f"DELETE FROM migrations WHERE number = {NEWEST}",
    ],
)
def test_a_file_without_its_tables_is_set_aside_whole(path: Path, sql: str) -> None:
    change(path, sql)
    store = Store(path)
    begin(store)
    store.put([spike(1)])
    assert len(store.requests()) == 1
    assert len(store.set_aside) == 1


def test_damage_that_trimming_finds_is_set_aside(path: Path) -> None:
    store = Store(path)
    assert store._attempt(lambda db: db.execute("SELECT * FROM nowhere")) is None
    assert len(store.set_aside) == 1
    assert store.trim(NOW) == 0


def test_sums_leave_out_what_is_no_answer(path: Path) -> None:
    change(path, "UPDATE requests SET answer = CAST(replace(answer, 'phases_', 'phases-') AS BLOB)")
    store = Store(path)
    found = store.find()
    assert len(store.requests()) == 3
    assert list(summary.slow(store.answers(found))) == []


def test_a_bound_that_reaches_before_all_time(path: Path) -> None:
    store = Store(path, max_age_days=1e9)
    assert store.trim(NOW) == 0
    assert len(store.find(since_ns=-(1 << 90))) == 3
    assert store.counts(-(1 << 90)).requests == 3


@pytest.mark.parametrize("at", [18, 19])
def test_a_format_that_there_is_none_of(path: Path, at: int) -> None:
    """SQLite would read it and write nothing."""
    raw = bytearray(path.read_bytes())
    raw[at] = 255
    path.write_bytes(raw)
    store = Store(path)
    begin(store)
    store.put([spike(1)])
    assert (store.trouble, store.pending, len(store.set_aside)) == (None, 0, 1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("whole") / "history.db"
    store = Store(made, max_age_days=36_500)
    fill(store, warm(1), 60, spike(1), 7)
    store.close()
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changed")


spots = st.floats(0, 1, exclude_max=True)
#: The first page, with the tables' descriptions, more often than its size would have it.
changes = st.lists(
    st.tuples(
        spots | spots.map(lambda at: at / 72), st.sampled_from([0, 255]) | st.integers(0, 255)
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=200, deadline=None)
@given(changed=changes)
def test_changed_bytes(whole: Path, place: Path, changed: list[tuple[float, int]]) -> None:
    shutil.rmtree(place)
    place.mkdir()
    spoilt = bytearray(whole.read_bytes())
    for at, byte in changed:
        spoilt[int(at * len(spoilt))] = byte
    (place / "history.db").write_bytes(spoilt)
    store = Store(place / "history.db", max_age_days=36_500)
    first = begin(store)
    ids = store.find(last=100)
    for batch in store.answers(ids):
        for answer in batch:
            orjson.loads(answer)
    store.counts(0)
    for number in ids[:20]:
        told(store.get, number)
        told(store.evidence, number)
    store.trim(NOW)
    store.put([spike(first)])
    assert (store.pending, store.trouble) == (0, None)
    assert store.requests(last=100)
    store.close(first + 1)
