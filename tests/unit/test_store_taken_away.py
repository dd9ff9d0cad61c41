"""The history's file changes under a running daemon: never silent, never the end of it."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.unit.answer_cases import warm
from tracer.errors import StoreError
from tracer.store import Store, database, writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history.db"


def _by_hand(path: Path, what: str) -> None:
    if what == "folder removed":
        shutil.rmtree(path.parent)
    elif what == "file removed":
        path.unlink()
    elif what == "moved":
        path.rename(path.with_name("old.db"))
    else:
        path.write_bytes(b"")
        path.rename(path.with_name("gone"))
        path.with_name("gone").with_suffix(".new").write_bytes(b"")
        path.with_name("gone").with_suffix(".new").rename(path)


@pytest.mark.parametrize("what", ["folder removed", "file removed", "moved", "replaced"])
def test_a_history_taken_away_while_running_goes_on_anew(path: Path, what: str) -> None:
    warnings: list[str] = []
    store = Store(path, warn=warnings.append)
    first = store.next_id()
    store.put([warm(first)])
    _by_hand(path, what)
    store.put([warm(first + 1)])
    assert (store.trouble, store.find()) == (None, [first + 1])
    assert warnings == [f"{path} was moved, removed or replaced; going on with what is there"]
    with pytest.raises(StoreError, match="another ttftd keeps its history here"):
        Store(path)
    store.close(first + 2)
    again = Store(path)
    assert (again.find(), again.next_id()) == ([first + 1], first + 2)
    again.close()


def test_a_history_taken_away_with_nothing_in_its_place_is_trouble(path: Path) -> None:
    """And another daemon that took the place keeps it."""
    store = Store(path)
    store.put([warm(1)])
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"")
    store.put([warm(2)])
    assert store.trouble is not None
    assert (store.pending, store.trouble.hint is not None) == (1, True)
    with pytest.raises(StoreError):
        store.find()
    path.parent.unlink()
    other = Store(path)
    assert not store.flush()
    assert "another ttftd" in str(store.trouble)
    other.close()
    assert store.flush()
    assert store.find() == [2]
    store.close(3)


def test_damage_that_cannot_be_moved_aside_is_trouble(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("cannot be moved aside", "make it writable")

    def damaged(*_: object) -> None:
        error = sqlite3.DatabaseError("malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    store = Store(path)
    with monkeypatch.context() as patched:
        patched.setattr(database, "move_aside", refuse)
        for change in ("put", "drop_before", "forget_unused", "reserve_ids"):
            patched.setattr(writer, change, damaged)
        store.put([warm(1)])
        assert (str(store.trouble), store.pending) == ("cannot be moved aside", 1)
        assert store.trim(10**18) == 0
    assert store.flush()
    assert (store.trouble, store.find()) == (None, [1])
    store.close()
