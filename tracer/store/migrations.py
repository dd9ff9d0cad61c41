"""Numbered migrations; each runs in one transaction with the record that it ran.

Never edit one that was released: add the next number.
"""

from __future__ import annotations

import sqlite3

from tracer.errors import StoreError

FIRST = """
CREATE TABLE requests (
    id INTEGER PRIMARY KEY,
    arrival_ns INTEGER NOT NULL,
    server TEXT NOT NULL,
    model TEXT,
    kind TEXT NOT NULL,
    outcome TEXT NOT NULL,
    final INTEGER NOT NULL,
    is_spike INTEGER NOT NULL,
    warm INTEGER NOT NULL,
    ttft_ns INTEGER,
    prompt_tokens INTEGER,
    phases TEXT NOT NULL,
    answer BLOB NOT NULL
);
CREATE INDEX requests_by_time ON requests (arrival_ns);
CREATE INDEX requests_by_model ON requests (model, arrival_ns);
CREATE INDEX spikes_by_time ON requests (arrival_ns) WHERE is_spike = 1;
CREATE INDEX spikes_by_model ON requests (model, arrival_ns) WHERE is_spike = 1;
CREATE INDEX warm_by_kind ON requests (server, model, kind, arrival_ns) WHERE warm = 1;
CREATE TABLE details (
    id INTEGER PRIMARY KEY,
    detail BLOB NOT NULL,
    evidence BLOB NOT NULL
);
CREATE TABLE seen (
    server TEXT NOT NULL,
    model TEXT NOT NULL,
    kind TEXT NOT NULL,
    last_ns INTEGER NOT NULL,
    PRIMARY KEY (server, model, kind)
) WITHOUT ROWID;
CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
"""

#: What a warm request tells the baseline, where the other columns do not: JSON of `Warm`.
BASELINE = "ALTER TABLE requests ADD COLUMN baseline BLOB"

MIGRATIONS: tuple[str, ...] = (FIRST, BASELINE)
"""The n-th brings the schema from version n to n + 1."""

NEWEST = len(MIGRATIONS)


class DamageError(sqlite3.DatabaseError):
    """Damage that SQLite does not tell of by itself."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def version(connection: sqlite3.Connection) -> int:
    """Schema version of an open database, 0 for an empty one."""
    row = connection.execute(
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'migrations'"
    ).fetchone()
    if not row[0]:
        return 0
    ran = "SELECT number FROM migrations ORDER BY number"
    numbers = [number for (number,) in connection.execute(ran)]
    whole = all(isinstance(number, int) for number in numbers)
    ours = [number for number in numbers if whole and number <= NEWEST]
    newer = len(numbers) > len(ours)
    if not whole or ours != list(range(1, (NEWEST if newer else len(ours)) + 1)):
        raise DamageError("its migrations are not those that ran")
    return max(numbers, default=0)


def refuse_newer(connection: sqlite3.Connection) -> None:
    """StoreError for a history of a newer ttft; nothing is changed by asking."""
    found = version(connection)
    if found > NEWEST:
        raise StoreError(
            f"the history has schema {found}, this ttft knows up to {NEWEST}; it stays as it is",
            "run the newer ttft that wrote it, or give another --state",
        )


def migrate(connection: sqlite3.Connection, now_ns: int) -> None:
    """Bring the schema to the newest version. `now_ns`: wall clock, kept for the curious."""
    refuse_newer(connection)
    for number in range(version(connection) + 1, NEWEST + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in MIGRATIONS[number - 1].split(";"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(
                "CREATE TABLE IF NOT EXISTS migrations "
                "(number INTEGER PRIMARY KEY, applied_ns INTEGER NOT NULL)"
            )
            connection.execute("INSERT INTO migrations VALUES (?, ?)", (number, now_ns))
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
