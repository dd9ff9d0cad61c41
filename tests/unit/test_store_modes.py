"""Who may read the history, where the folder it is in is open to all."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.unit.answer_cases import spike
from tracer.store import Store


def modes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}


def test_nobody_else_may_read_what_lies_in_an_open_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    seen: list[dict[str, int]] = []
    connect = sqlite3.connect

    def watched(*arguments: Any, **more: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **more)
        connection.set_trace_callback(lambda _: seen.append(modes(folder)))
        return connection

    monkeypatch.setattr(sqlite3, "connect", watched)
    store = Store(folder / "history.db")
    store.put([spike()])
    seen.append(modes(folder))
    store.close()
    names = {name for found in seen for name in found}
    assert {"history.db", "history.db-wal", "history.db-shm"} <= names
    assert [found for found in seen if set(found.values()) != {0o640}] == []


def test_what_an_earlier_version_left_open_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "whole" / "history.db"
    store = Store(path)
    store.put([spike()])
    left = tmp_path / "left" / path.name
    left.parent.mkdir()
    for suffix in ("", "-wal", "-shm"):  # as they lie there after a kill
        file = left.with_name(left.name + suffix)
        file.write_bytes(path.with_name(path.name + suffix).read_bytes())
        file.chmod(0o644)
    store.close()
    again = Store(left)
    assert again.get(17) is not None
    assert len(modes(left.parent)) == 4
    assert set(modes(left.parent).values()) == {0o640}
    again.close()
