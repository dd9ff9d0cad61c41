"""What is typical of warm requests is the same for a daemon that starts again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.answer_cases import WALL_OFFSET, warm, warm_record
from tests.unit.evidence_build import hop, request
from tests.unit.evidence_build import warm as history
from tests.unit.scenarios import warm_router
from tests.unit.test_clocks import GPU, reading, story
from tests.unit.test_clocks_warm import warm_readings
from tracer import derive as derivation
from tracer.derive import derive
from tracer.evidence import Evidence
from tracer.pipeline import Pipeline
from tracer.records import Says, Warm
from tracer.store import Store
from tracer.store.migrations import FIRST, NEWEST
from tracer.store.rows import REQUEST_COLUMNS, encode


def kept(path: Path, evidence: Evidence) -> tuple[Warm, Warm]:
    """What a pipeline learns from a request, and what a daemon that starts again does."""
    d = derive(evidence)
    learnt = derivation.warm_record(d)
    assert learnt is not None
    store = Store(path)
    store.put([d])
    store.close()
    offset = evidence.wall_offset_ns
    (again,) = Store(path).warm_context(wall_offset_ns=offset)
    return learnt, again


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("cached", [0, 20])
@pytest.mark.parametrize("clock", [None, 1900])
def test_a_daemon_that_starts_again_knows_the_same(
    tmp_path: Path, stream: bool, cached: int, clock: int | None
) -> None:
    """Decoding is left out, and so are tokens that were cached; clocks of devices are in it."""
    says = Says(prompt_ms=290.0, prompt_n=26, cache_n=cached, predicted_ms=400.0)
    end = 101 if stream else 700
    evidence = warm_router(
        req=request(read=0.2, head=3.2, first_token=300, end=300 + end, stream=stream,
                    event_stream=stream),
        hop=hop(arrival=1, read=1.1, body=1, head=3, first_token=299.8, end=300 + end - 1,
                stream=stream, event_stream=stream, says=says),
        baseline=history(300),
        telemetry=() if clock is None else (reading(210, clock), reading(280, clock)),
    )  # fmt: skip
    learnt, again = kept(tmp_path / "history.db", evidence)
    assert again == learnt
    assert again.clocks_mhz == ({} if clock is None else {GPU: clock})
    assert again.prompt_tokens == 26
    assert again.ttft_ns <= 610_000_000


def test_of_a_whole_story(tmp_path: Path) -> None:
    pipeline, store = Pipeline(), Store(tmp_path / "history.db")
    offset = 0
    for record in story(200, warm_readings(1900), 450, usual=450):
        for d in pipeline.feed(record):
            offset = d.evidence.wall_offset_ns
            store.put([d])
    learnt = [r for r in pipeline.snapshot() if isinstance(r, Warm)]
    assert store.warm_context(wall_offset_ns=offset) == learnt
    assert [bool(w.clocks_mhz) for w in learnt] == [True] * 6 + [False]


def test_the_columns_suffice_for_most(tmp_path: Path) -> None:
    assert encode(derive(warm_router(baseline=history()))).baseline is None


def test_an_older_history_goes_on(tmp_path: Path) -> None:
    """Its requests tell what their columns say."""
    path, row = tmp_path / "history.db", encode(warm(1))
    columns = [name for name in REQUEST_COLUMNS if name != "baseline"]
    with sqlite3.connect(path) as old:
        old.executescript(FIRST)
        old.execute("CREATE TABLE migrations (number INTEGER PRIMARY KEY, applied_ns INTEGER)")
        old.execute("INSERT INTO migrations VALUES (1, 0)")
        places = ", ".join("?" * len(columns))
        old.execute(
            f"INSERT INTO requests ({', '.join(columns)}) VALUES ({places})",
            [getattr(row, name) for name in columns],
        )
        old.execute("INSERT INTO seen VALUES (?, ?, ?, 1)", (row.server, row.model, row.kind))
    old.close()
    store = Store(path)
    store.put([warm(2)])
    assert store.warm_context(wall_offset_ns=WALL_OFFSET) == [warm_record(warm(1))] * 2
    numbers = sqlite3.connect(path).execute("SELECT number FROM migrations").fetchall()
    assert numbers == [(n,) for n in range(1, NEWEST + 1)]


def test_what_a_newer_version_wrote_is_left_aside(tmp_path: Path) -> None:
    for strange in (b'{"t":"warm","ts_ns":1,"more":2}', b"no JSON"):
        row = encode(warm(1))._replace(baseline=strange)
        store = Store(tmp_path / strange[:3].hex() / "history.db")
        store.put_rows([row])
        assert store.warm_context(wall_offset_ns=WALL_OFFSET) == [warm_record(warm(1))]


def test_what_was_kept_is_what_counts(tmp_path: Path) -> None:
    """Not what a later version would make of the columns."""
    kept_so = replace(warm_record(warm(1)), ttft_ns=5, clocks_mhz={GPU: 7})
    row = encode(warm(1))._replace(baseline=msgspec.json.encode(kept_so))
    store = Store(tmp_path / "history.db")
    store.put_rows([row])
    assert store.warm_context(wall_offset_ns=WALL_OFFSET) == [kept_so]
