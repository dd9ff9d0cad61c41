"""Fill a history with copies of a request, for tests and benchmarks of its size."""

from __future__ import annotations

from itertools import islice

from tracer.derived import Derived
from tracer.store.history import Store
from tracer.store.rows import Row, encode

_BATCH = 10_000


def fill(
    store: Store, common: Derived, count: int, rare: Derived | None = None, every: int = 1000
) -> None:
    """Ids 1 to `count`, a second apart: copies of `common`, each `every`-th one of `rare`."""
    often = encode(common)
    seldom = often if rare is None else encode(rare)
    rows = (_copy(seldom if n % every == 0 else often, n) for n in range(1, count + 1))
    while batch := list(islice(rows, _BATCH)):
        store.put_rows(batch)


def _copy(row: Row, number: int) -> Row:
    before = b'"id":%d,' % row.id
    return row._replace(
        id=number,
        arrival_ns=row.arrival_ns + number * 1_000_000_000,
        answer=row.answer.replace(before, b'"id":%d,' % number, 1),
    )
