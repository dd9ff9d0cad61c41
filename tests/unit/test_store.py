"""The history: kept whole, found fast, bounded."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.answer_cases import ARRIVAL, MS, WALL_OFFSET, spike, warm, warm_record
from tracer import answers
from tracer.derived import Derived
from tracer.errors import StoreError
from tracer.store import Store, evidence_from
from tracer.store import history as history_module
from tracer.store.bulk import fill
from tracer.store.migrations import NEWEST
from tracer.store.rows import encode

SECOND = 1000 * MS
WALL = ARRIVAL + WALL_OFFSET


def at(number: int) -> int:
    """Arrival of request `number`: one a second."""
    return ARRIVAL + number * SECOND


def ids(found: list[bytes]) -> list[int]:
    return [orjson.loads(item)["id"] for item in found]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history.db"


@pytest.fixture
def store(path: Path) -> Store:
    return Store(path)


def test_answer_detail_and_evidence_come_back_whole(store: Store) -> None:
    item = spike()
    store.put([item])
    assert store.requests() == [answers.dumps(answers.answer(item))]
    whole = store.get(17)
    assert whole is not None
    expected = {**answers.answer(item), **answers.detail(item)}
    assert orjson.loads(whole) == orjson.loads(answers.dumps(expected))
    assert store.evidence(17) == item.evidence
    assert evidence_from(encode(item).evidence) == item.evidence


def test_nothing_for_an_unknown_id(store: Store) -> None:
    assert (store.get(1), store.evidence(1)) == (None, None)


def test_damaged_evidence_is_an_error() -> None:
    with pytest.raises(StoreError, match="evidence of this request cannot be read"):
        evidence_from(b"no zlib")


def test_the_last_word_on_a_request_replaces_the_earlier(store: Store) -> None:
    store.put([replace(spike(), outcome="open", ttft_ns=None)])
    store.put([spike()])
    assert [orjson.loads(item)["outcome"] for item in store.requests()] == ["ok"]


def test_filters(store: Store) -> None:
    store.put([warm(number, at(number)) for number in range(1, 6)])
    store.put([spike(6, at(6)), replace(spike(7, at(7)), model="alpha")])
    assert ids(store.requests()) == [1, 2, 3, 4, 5, 6, 7]
    assert ids(store.requests(last=2)) == [6, 7]
    assert ids(store.requests(spikes_only=True)) == [6, 7]
    assert ids(store.requests(spikes_only=True, model="beta")) == [6]
    assert ids(store.requests(model="alpha")) == [7]
    assert ids(store.requests(model="no'; DROP TABLE requests; --")) == []
    assert ids(store.requests(since_ns=WALL + 5 * SECOND)) == [5, 6, 7]
    assert store.find(since_ns=WALL + 5 * SECOND) == [5, 6, 7]
    assert store.find(2, 0) == [6, 7]


def test_warm_history_for_the_baseline(store: Store) -> None:
    items = [warm(number, at(number), ttft_ns=(30 + number) * MS) for number in range(1, 5)]
    store.put([*items, spike(5, at(5)), warm(6, at(6), kind="chat")])
    expected = [warm_record(item) for item in items]
    server, offset = "llama-server:8080", WALL_OFFSET
    assert store.warm(server, "beta", "chat/stream", 10, offset) == expected
    assert store.warm(server, "beta", "chat/stream", 2, offset) == expected[2:]
    both = store.warm_context(10, offset)
    assert [record.kind for record in both] == ["chat/stream"] * 4 + ["chat"]


def test_models_and_the_last_of_each_server(store: Store) -> None:
    store.put([warm(1, at(1)), warm(2, at(2), model="alpha"), warm(3, at(3), model=None)])
    server = "llama-server:8080"
    assert store.last_models() == {server: "alpha"}
    assert store.models() == {
        (server, "beta"): WALL + SECOND,
        (server, "alpha"): WALL + 2 * SECOND,
    }


def test_ids_go_on_after_a_clean_end(path: Path) -> None:
    store = Store(path)
    assert store.next_id() == 1
    store.put([warm(1), warm(2)])
    store.close(next_id=4)
    again = Store(path)
    assert again.next_id() == 4
    again.close(next_id=4)


def test_ids_are_never_repeated_after_a_kill(path: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.unit.answer_cases import spike\n"
        "from tracer.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "number = store.next_id()\n"
        "while True:\n"
        "    store.put([spike(number)])\n"
        "    print(number, flush=True)\n"
        "    number += 1\n"
    )
    highest = 0
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        ) as child:
            assert child.stdout is not None
            shown = [int(child.stdout.readline()) for _ in range(20)]
            os.kill(child.pid, signal.SIGKILL)
            shown += [int(line) for line in child.stdout.read().split()]
        assert shown[0] > highest
        highest = shown[-1]
    store = Store(path)
    assert store.next_id() > highest
    # What was shown is there, and the file is whole.
    assert ids(store.requests(last=1))[0] >= highest
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_retention_by_age(path: Path) -> None:
    store = Store(path, max_age_days=1)
    day = 86_400 * SECOND
    store.put([warm(1, ARRIVAL, model="old"), warm(2, ARRIVAL + day)])
    assert store.trim(WALL + day + SECOND) == 1
    assert ids(store.requests()) == [2]
    assert store.evidence(1) is None
    assert store.models() == {("llama-server:8080", "beta"): WALL + day}


def test_retention_by_size(path: Path) -> None:
    store = Store(path, max_mb=1)
    fill(store, spike(), 2000)
    assert store.size_bytes() > 1_000_000
    assert store.trim(WALL) > 0
    assert store.size_bytes() <= 1_000_000
    kept = ids(store.requests(last=10_000))
    # The newest stay, and not much fewer than fit.
    assert kept == list(range(2001 - len(kept), 2001))
    assert len(kept) > 100


@pytest.mark.parametrize("newer", [NEWEST + 1, NEWEST + 7])
def test_a_newer_schema_is_refused(path: Path, newer: int) -> None:
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO migrations VALUES (?, 0)", (newer,))
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"schema {newer}, this ttft knows up to {NEWEST}"):
        Store(path)
    assert path.read_bytes() == before


def test_each_migration_is_recorded_once(path: Path) -> None:
    Store(path).close()
    Store(path).close()
    found = sqlite3.connect(path).execute("SELECT number FROM migrations").fetchall()
    assert found == [(number,) for number in range(1, NEWEST + 1)]


def test_a_failed_migration_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ("CREATE TABLE a (x); CREATE TABLE a (x)",)
    monkeypatch.setattr("tracer.store.migrations.MIGRATIONS", broken)
    monkeypatch.setattr("tracer.store.migrations.NEWEST", 1)
    with pytest.raises(StoreError, match="already exists"):
        Store(path)
    assert sqlite3.connect(path).execute("SELECT * FROM sqlite_schema").fetchall() == []


def test_a_second_owner_is_refused(path: Path) -> None:
    first = Store(path)
    with pytest.raises(StoreError, match="another ttftd keeps its history here"):
        Store(path)
    first.close()
    Store(path).close()


def test_a_file_that_is_no_database_is_kept_aside(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is not a database at all" * 100)
    warnings: list[str] = []
    store = Store(path, warn=warnings.append)
    store.put([spike()])
    assert ids(store.requests()) == [17]
    kept = [item for item in path.parent.iterdir() if "damaged" in item.name]
    assert [item.read_bytes()[:8] for item in kept] == [b"this is "]
    assert len(warnings) == 1
    assert str(kept[0]) in warnings[0]


def test_damage_found_while_running_loses_nothing_new(path: Path) -> None:
    warnings: list[str] = []
    store = Store(path, warn=warnings.append)
    first = store.next_id()
    fill(store, spike(), 300)
    store.close()
    whole = bytearray(path.read_bytes())
    # Page 1 stays, so that opening finds nothing wrong.
    whole[4096:] = b"\xa5" * (len(whole) - 4096)
    path.write_bytes(whole)
    try:
        store = Store(path, warn=warnings.append)
        store.put([spike(first)])
    finally:
        found = store.requests()
    assert ids(found) == [first]
    assert len(warnings) == 1
    assert "a new one begins" in warnings[0]
    assert any(item.name.startswith("history.db.damaged-") for item in path.parent.iterdir())


def full(store: Store, pages: int) -> None:
    """As if the disk had room for so many pages and no more."""
    store._open().execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_keeps_results_in_memory_until_there_is_room(path: Path) -> None:
    store = Store(path)
    store.put([spike(1)])
    full(store, 1)
    big = [spike(number, at(number)) for number in range(2, 40)]
    store.put(big)
    assert store.trouble is not None
    assert "full" in store.trouble.message
    assert "free space" in str(store.trouble.hint)
    assert store.pending == 38
    # They still answer.
    assert ids(store.requests(last=100)) == list(range(1, 40))
    assert store.evidence(20) == big[18].evidence
    assert store.get(39) is not None
    assert ids(store.requests(last=1, spikes_only=True)) == [39]
    assert store.find()[-1] == 39
    full(store, 1_000_000)
    assert store.flush()
    assert store.pending == 0
    assert store.trouble is None
    store.close()
    assert ids(Store(path).requests(last=100)) == list(range(1, 40))


def test_memory_for_what_waits_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "PENDING_MAX", 10)
    store.put([spike(number, at(number)) for number in range(-30, 0)])
    assert (store.dropped, len(store.find(100))) == (0, 30)
    full(store, 1)
    for number in range(1, 200):
        store.put([spike(number, at(number))])
    assert store.pending == 10
    assert store.dropped > 0
    assert ids(store.requests(last=5)) == [195, 196, 197, 198, 199]


def test_a_read_only_history_is_trouble_not_an_exception(store: Store) -> None:
    store._open().execute("PRAGMA query_only = ON")
    store.put([spike()])
    assert store.trouble is not None
    assert "readonly" in store.trouble.message
    assert ids(store.requests()) == [17]


def test_a_state_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as caught:
        Store(tmp_path / "file" / "history.db")
    assert "--state" in str(caught.value.hint)


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "history.db").mkdir()
    with pytest.raises(StoreError, match="unable to open database file"):
        Store(tmp_path / "history.db")


def test_any_thread_may_ask(store: Store) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def put(number: int) -> list[int]:
        store.put([spike(number, at(number))])
        return ids(store.requests(last=1000))

    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(put, range(1, 101)))
    assert all(number in found for number, found in enumerate(seen, 1))
    assert ids(store.requests(last=1000)) == list(range(1, 101))


def test_listings_use_an_index(store: Store) -> None:
    asked: list[str] = []
    store._open().set_trace_callback(asked.append)
    for spikes_only in (False, True):
        for model in (None, "beta"):
            for since_ns in (None, WALL):
                store.requests(5, since_ns, model, spikes_only)
    store.warm("a", "b", "c")
    store._open().set_trace_callback(None)
    assert len(asked) == 9
    for statement in asked:
        plan = store._open().execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
        text = " ".join(str(row[3]) for row in plan)
        assert "USING" in text and "INDEX" in text, (statement, text)
        assert "TEMP B-TREE" not in text, (statement, text)


def test_spikes_of_a_long_history_are_found_at_once(store: Store) -> None:
    fill(store, warm(1), 20_000, spike(1), every=1000)
    began = time.perf_counter()
    found = store.requests(spikes_only=True)
    took = time.perf_counter() - began
    assert ids(found) == list(range(1000, 20_001, 1000))
    assert took < 0.1


_item = st.builds(
    lambda number, second, is_spike, model: replace(
        (spike if is_spike else warm)(number, at(second)), model=model
    ),
    st.integers(1, 8),
    st.integers(0, 8),
    st.booleans(),
    st.sampled_from(["alpha", "beta", None]),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(_item, max_size=4), max_size=5),
    st.integers(1, 9),
    st.none() | st.integers(0, 8),
    st.sampled_from([None, "alpha", "beta"]),
    st.booleans(),
)
def test_the_history_is_what_was_put_last(
    tmp_path_factory: pytest.TempPathFactory,
    puts: list[list[Derived]],
    last: int,
    since: int | None,
    model: str | None,
    spikes_only: bool,
) -> None:
    since_ns = None if since is None else WALL + since * SECOND
    store = Store(tmp_path_factory.mktemp("h") / "history.db")
    model_of: dict[int, Derived] = {}
    for index, items in enumerate(puts):
        # Every other put finds the disk full: what waits in memory answers all the same.
        store._open().execute(f"PRAGMA query_only = {'ON' if index % 2 else 'OFF'}")
        store.put(items)
        model_of |= {item.evidence.id: item for item in items}
    expected = sorted(
        (
            item
            for item in model_of.values()
            if (item.spike.is_spike or not spikes_only)
            and model in (None, item.model)
            and (since_ns is None or answers.arrival_wall_ns(item) >= since_ns)
        ),
        key=lambda item: (answers.arrival_wall_ns(item), item.evidence.id),
    )[-last:]
    found = store.requests(last, since_ns, model, spikes_only)
    store.close()
    assert found == [answers.dumps(answers.answer(item)) for item in expected]
