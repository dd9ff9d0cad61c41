"""How many requests a time held: questions that indexes answer without reading any request."""

from __future__ import annotations

import sqlite3

from tracer.summary import Counts, ModelCount

MODELS_MAX = 200
_TYPICAL_OF = 50


def counts(connection: sqlite3.Connection, since_ns: int, model: str | None) -> Counts:
    """Requests since `since_ns` (wall clock), of one model or of all."""
    which, values = ("", [since_ns]) if model is None else (" AND model = ?", [since_ns, model])
    whole = connection.execute(
        f"SELECT count(*) FROM requests WHERE arrival_ns >= ?{which}",  # noqa: S608
        values,
    ).fetchone()[0]
    groups = connection.execute(
        f"SELECT model, server, kind FROM seen WHERE last_ns >= ?{which} ORDER BY last_ns DESC",  # noqa: S608
        values,
    ).fetchall()
    by_model: dict[str, list[tuple[str, str]]] = {}
    for name, server, kind in groups:
        if not all(isinstance(text, str) for text in (name, server, kind)):
            continue  # damaged: SQLite lets a column hold anything
        if name in by_model or len(by_model) < MODELS_MAX:
            by_model.setdefault(name, []).append((server, kind))
    return Counts(
        requests=int(whole),
        models=[_model(connection, since_ns, *item) for item in by_model.items()],
    )


def _model(
    connection: sqlite3.Connection, since_ns: int, model: str, kinds: list[tuple[str, str]]
) -> ModelCount:
    """`typical_ns` is of the kind that had most warm requests, so that a few of another one
    (a reply that is not streamed takes as long as the whole of it) do not change it."""
    asked = connection.execute(
        "SELECT count(*) FROM requests WHERE model = ? AND arrival_ns >= ?", (model, since_ns)
    ).fetchone()[0]
    warm: dict[tuple[str, str], int] = {
        (server, kind): connection.execute(
            "SELECT count(*) FROM requests WHERE warm = 1 AND server = ? AND model = ? "
            "AND kind = ? AND arrival_ns >= ?",
            (server, model, kind, since_ns),
        ).fetchone()[0]
        for server, kind in kinds
    }
    # Of as many the one asked last: they are in that order.
    server, kind = max(warm, key=warm.__getitem__)
    return ModelCount(
        model=model,
        servers=tuple(dict.fromkeys(server for server, _ in kinds)),
        requests=int(asked),
        warm=sum(warm.values()),
        typical_ns=_typical(connection, server, model, kind),
    )


def _typical(connection: sqlite3.Connection, server: str, model: str, kind: str) -> int | None:
    found = connection.execute(
        "SELECT ttft_ns FROM requests WHERE warm = 1 AND server = ? AND model = ? AND kind = ? "
        "AND ttft_ns IS NOT NULL ORDER BY arrival_ns DESC LIMIT ?",
        (server, model, kind, _TYPICAL_OF),
    ).fetchall()
    times: list[int] = sorted(ttft_ns for (ttft_ns,) in found if isinstance(ttft_ns, int))
    return times[len(times) // 2] if times else None
