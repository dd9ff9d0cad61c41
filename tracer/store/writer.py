"""Changes to the history, each in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tracer.store import ids, reader
from tracer.store.rows import REQUEST_COLUMNS, Row

_PUT_REQUEST = (
    f"INSERT OR REPLACE INTO requests ({', '.join(REQUEST_COLUMNS)}) "  # noqa: S608
    f"VALUES ({', '.join('?' * len(REQUEST_COLUMNS))})"
)
_PUT_SEEN = (
    "INSERT INTO seen VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE "
    "SET last_ns = max(last_ns, excluded.last_ns)"
)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A full disk may have rolled it back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def put(connection: sqlite3.Connection, rows: Iterable[Row], reserve: int | None) -> None:
    """Insert or replace by id; `reserve`: ids below this are used up from now on."""
    columns = len(REQUEST_COLUMNS)
    with transaction(connection):
        for row in rows:
            connection.execute(_PUT_REQUEST, row[:columns])
            connection.execute(
                "INSERT OR REPLACE INTO details VALUES (?, ?, ?)",
                (row.id, row.detail, row.evidence),
            )
            if row.model is not None:
                seen = (row.server, row.model, row.kind, row.arrival_ns)
                connection.execute(_PUT_SEEN, seen)
        if reserve is not None:
            _reserve(connection, reserve)


def reserve_ids(connection: sqlite3.Connection, first_free: int) -> None:
    """Ids below `first_free` are never given out again."""
    with transaction(connection):
        _reserve(connection, first_free)


def reserve_block(connection: sqlite3.Connection, count: int) -> int:
    """The first of `count` ids that nobody else has or will be given."""
    with transaction(connection):
        first = max(reader.highest_id(connection) + 1, reader.reserved_id(connection))
        _reserve(connection, first + count)
    return first


def give_back_ids(connection: sqlite3.Connection, first_free: int) -> None:
    """What was reserved from `first_free` on was not given out."""
    with transaction(connection):
        first_free = max(first_free, reader.highest_id(connection) + 1)
        connection.execute("DELETE FROM counters WHERE name = 'reserved_id'")
        _reserve(connection, first_free)


def _reserve(connection: sqlite3.Connection, first_free: int) -> None:
    connection.execute(
        "INSERT INTO counters VALUES ('reserved_id', ?1) ON CONFLICT DO UPDATE SET value = "
        "CASE WHEN typeof(value) = 'integer' AND value BETWEEN 1 AND ?2 "
        "THEN max(value, ?1) ELSE ?1 END",
        (first_free, ids.COUNTED_MAX),
    )


def drop_before(connection: sqlite3.Connection, arrival_ns: int, count: int) -> int:
    """Delete up to `count` requests that arrived before; returns how many."""
    return _drop(
        connection,
        "SELECT id FROM requests WHERE arrival_ns < ? ORDER BY arrival_ns LIMIT ?",
        (arrival_ns, count),
    )


def drop_oldest(connection: sqlite3.Connection, count: int) -> int:
    """Delete the `count` oldest requests; returns how many there were."""
    return _drop(connection, "SELECT id FROM requests ORDER BY arrival_ns LIMIT ?", (count,))


def _drop(connection: sqlite3.Connection, which: str, values: tuple[int, ...]) -> int:
    with transaction(connection):
        doomed = connection.execute(which, values).fetchall()
        connection.executemany("DELETE FROM details WHERE id = ?", doomed)
        # In a damaged one there may be nothing by the id that is told: nobody waits for it to go.
        return connection.executemany("DELETE FROM requests WHERE id = ?", doomed).rowcount


def forget_unused(connection: sqlite3.Connection, arrival_ns: int) -> None:
    """Forget models last used before."""
    with transaction(connection):
        connection.execute("DELETE FROM seen WHERE last_ns < ?", (arrival_ns,))


def give_back(connection: sqlite3.Connection) -> None:
    """Return freed pages to the file system."""
    # Each of its steps frees one page; only executescript takes them all.
    connection.executescript("PRAGMA incremental_vacuum")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
