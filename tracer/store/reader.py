"""Questions to the history, each one statement that an index answers.

What columns hold is told as it lies there: rows.py says whether it can be.
"""

from __future__ import annotations

import sqlite3

from tracer.store import ids
from tracer.store.rows import REQUEST_COLUMNS

_SPAN_MAX = 10_000

Found = tuple[object, ...]

TABLES = {
    "requests": REQUEST_COLUMNS,
    "details": ("id", "detail", "evidence"),
    "seen": ("server", "model", "kind", "last_ns"),
    "counters": ("name", "value"),
}


def all_there(connection: sqlite3.Connection) -> None:
    """sqlite3.Error where a table or column that is asked for later is not there."""
    connection.execute("SELECT max(id) FROM requests").fetchone()
    for table, columns in TABLES.items():
        connection.execute(f"SELECT {', '.join(columns)} FROM {table} LIMIT 0")  # noqa: S608


def select(
    connection: sqlite3.Connection,
    *,
    last: int,
    since_ns: int | None,
    model: str | None,
    spikes_only: bool,
) -> list[Found]:
    """(arrival, id) of the newest `last` requests that fit, newest first."""
    conditions, values = [], list[object]()
    if spikes_only:
        conditions.append("is_spike = 1")
    if model is not None:
        conditions.append("model = ?")
        values.append(model)
    if since_ns is not None:
        conditions.append("arrival_ns >= ?")
        values.append(since_ns)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    # Only fixed words above are put into the statement.
    statement = (
        f"SELECT arrival_ns, id FROM requests {where} "  # noqa: S608
        "ORDER BY arrival_ns DESC, id DESC LIMIT ?"
    )
    return connection.execute(statement, [*values, last]).fetchall()


def answers(connection: sqlite3.Connection, ids: list[int]) -> list[Found]:
    """(id, answer) of these requests; at most a few hundred at once."""
    places = ", ".join("?" * len(ids))
    statement = f"SELECT id, answer FROM requests WHERE id IN ({places})"  # noqa: S608
    return connection.execute(statement, ids).fetchall()


def one(connection: sqlite3.Connection, number: int) -> Found | None:
    """(answer, compressed detail) of a request."""
    row: Found | None = connection.execute(
        "SELECT answer, detail FROM requests JOIN details USING (id) WHERE id = ?", (number,)
    ).fetchone()
    return row


def evidence(connection: sqlite3.Connection, number: int) -> object | None:
    """Compressed evidence of a request."""
    row = connection.execute("SELECT evidence FROM details WHERE id = ?", (number,)).fetchone()
    return None if row is None else row[0]


def unfinished(connection: sqlite3.Connection, *, among: int, last: int) -> list[int]:
    """Ids of those whose end was not stored: the newest `last`, of the newest `among`."""
    found = connection.execute(
        "SELECT id FROM (SELECT id, final, arrival_ns FROM requests "
        "ORDER BY arrival_ns DESC LIMIT ?) WHERE final = 0 ORDER BY arrival_ns DESC LIMIT ?",
        (among, last),
    ).fetchall()
    return [number for (number,) in found if isinstance(number, int)]


def warm(
    connection: sqlite3.Connection, server: str, model: str, kind: str, *, count: int
) -> list[Found]:
    """What the newest `count` warm requests of one kind tell the baseline, oldest first."""
    found = connection.execute(
        "SELECT arrival_ns, ttft_ns, prompt_tokens, phases, baseline FROM requests "
        "WHERE warm = 1 AND server = ? AND model = ? AND kind = ? AND ttft_ns IS NOT NULL "
        "ORDER BY arrival_ns DESC LIMIT ?",
        (server, model, kind, count),
    ).fetchall()
    return found[::-1]


def groups(connection: sqlite3.Connection) -> list[Found]:
    """Each (server, model, kind) seen, with when it was last used (wall clock)."""
    return connection.execute(
        "SELECT server, model, kind, last_ns FROM seen ORDER BY last_ns, server, model, kind"
    ).fetchall()


def highest_id(connection: sqlite3.Connection) -> int:
    """The highest counted id kept, 0 for none."""
    statement = "SELECT coalesce(max(id), 0) FROM requests WHERE id <= ?"
    return int(connection.execute(statement, (ids.COUNTED_MAX,)).fetchone()[0])


def highest_clocked(connection: sqlite3.Connection) -> int:
    """The highest id kept of those told by the clock, 0 for none."""
    statement = "SELECT coalesce(max(id), 0) FROM requests WHERE id BETWEEN ? AND ?"
    return int(connection.execute(statement, (ids.CLOCKED, ids.CLOCKED_MAX)).fetchone()[0])


def span(connection: sqlite3.Connection) -> int:
    """About how many requests are kept: how far apart the first and last counted id are, and
    of the others, which have gaps, how many there are up to some thousands."""
    counted, clocked = connection.execute(
        "SELECT (SELECT coalesce(max(id) - min(id) + 1, 0) FROM requests WHERE id < ?1), "
        "(SELECT count(*) FROM (SELECT 1 FROM requests WHERE id >= ?1 LIMIT ?2))",
        (ids.CLOCKED, _SPAN_MAX),
    ).fetchone()
    return int(counted) + int(clocked)


def reserved_id(connection: sqlite3.Connection) -> int:
    """The first id that no earlier run can have used."""
    row = connection.execute(
        "SELECT value FROM counters WHERE name = 'reserved_id' "
        "AND typeof(value) = 'integer' AND value BETWEEN 1 AND ?",
        (ids.COUNTED_MAX,),
    ).fetchone()
    return 1 if row is None else int(row[0])


def size(connection: sqlite3.Connection) -> tuple[int, int]:
    """(bytes in use, bytes of the file)."""
    pages, free, page = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * page, pages * page
