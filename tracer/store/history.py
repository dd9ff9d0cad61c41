"""The history: what the daemon writes and the interface reads.

One connection under one lock, so that any thread may ask. What cannot be written now (disk
full, read-only) is kept in memory, still answers, and is tried again with every `put`. So also
where the disk takes nothing from the start.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

from tracer.derived import Derived
from tracer.errors import StoreError
from tracer.evidence import Evidence
from tracer.records import Warm
from tracer.store import database, ids, reader, rows, writer
from tracer.store.access import Access
from tracer.store.counts import counts
from tracer.store.settle import settle
from tracer.summary import Counts

PENDING_MAX = 1000
"""Requests kept in memory while the disk takes none; beyond it the oldest is dropped."""

_CHUNK = 500
_RECENT = 5000  # requests; older ones are not looked through at the start
_BATCH = 50
_DAY_NS = 86_400_000_000_000
TIME_MAX_NS = (1 << 63) - 1  # of SQLite's integers

T = TypeVar("T")


class Store(Access):
    """An open history; `close` it. `warn` gets one line when damage was moved aside."""

    def __init__(
        self,
        path: Path,
        *,
        max_age_days: float = 90.0,
        max_mb: float = 512.0,
        warn: database.Warn | None = None,
    ) -> None:
        super().__init__(path, warn)
        self.dropped = 0
        """Requests lost because memory for pending ones ran out."""
        self.limit(max_age_days, max_mb)
        self._pending: dict[int, rows.Row] = {}
        self._puts = self._wanted = self._clocked = 0
        try:
            self._begin()
        except BaseException:
            self._close()
            self._disown()
            raise

    def _begin(self) -> None:
        try:
            self._reserved = self._retry_damage(reader.reserved_id)
            self._settle()
        except (sqlite3.Error, StoreError) as error:
            self._failed(error)

    def _failed(self, error: sqlite3.Error | StoreError) -> None:
        """It goes on in memory where the disk takes nothing now; all else is raised."""
        self.trouble = database.trouble(self.path, error)
        if not isinstance(self.trouble, database.UnwritableError):
            raise self.trouble from error

    def limit(self, max_age_days: float, max_mb: float) -> None:
        """What `trim` keeps from now on: days, and 10^6 bytes."""
        self._max_age_ns = min(int(max_age_days * _DAY_NS), TIME_MAX_NS)
        self._max_bytes = int(max_mb * 1_000_000)

    # --- writing -----------------------------------------------------------------

    def put(self, derived: Sequence[Derived]) -> None:
        """Insert or replace by id. Never raises for the disk: see `trouble`."""
        encoded = [rows.encode(item) for item in derived]
        with self._lock:
            for row in encoded:
                self._pending.pop(row.id, None)
                self._pending[row.id] = row
            self.flush()
            while len(self._pending) > PENDING_MAX:
                del self._pending[next(iter(self._pending))]
                self.dropped += 1
            self._puts += len(encoded)
            if self._puts >= _CHUNK:
                self._puts = 0
                self._trim_size()

    def put_rows(self, encoded: Iterable[rows.Row]) -> None:
        """Insert ready rows in one transaction; for filling a history, see bulk.py."""
        with self._lock:
            try:
                writer.put(self._open(), encoded, None)
            except sqlite3.Error as error:
                raise database.trouble(self.path, error) from error

    def flush(self) -> bool:
        """Write what is pending; False (and `trouble` set) when the disk took none."""
        with self._lock:
            if not self._pending:
                return self._recovered()
            reserve = ids.to_reserve(self._wanted, self._pending, self._reserved)
            try:
                self._retry_damage(lambda db: writer.put(db, self._pending.values(), reserve))
            except (sqlite3.Error, StoreError) as error:
                self.trouble = database.trouble(self.path, error)
                return False
            self._reserved = reserve or self._reserved
            self._pending.clear()
            self.trouble = None
            return True

    def _recovered(self) -> bool:
        """Whether all is well; a disk that took nothing is tried again."""
        if isinstance(self.trouble, database.UnwritableError):
            try:
                self._open().execute("BEGIN IMMEDIATE").execute("ROLLBACK")
                self.trouble = None
            except (sqlite3.Error, StoreError) as error:
                self.trouble = database.trouble(self.path, error)
        return self.trouble is None

    @property
    def set_aside(self) -> list[str]:
        """Names of damaged histories beside this one."""
        return database.set_aside(self.path)

    @property
    def pending(self) -> int:
        """Requests not on disk yet."""
        return len(self._pending)

    def next_id(self) -> int:
        """The first id for this run: never one that any earlier run can have shown."""
        with self._lock:
            try:
                first = self._retry_damage(partial(writer.reserve_block, count=ids.BLOCK))
            except (sqlite3.Error, StoreError) as error:
                self._failed(error)
                self._clocked = self._ask(reader.highest_clocked)
                return ids.by_clock(self._clocked)
            self._reserved = first + ids.BLOCK
            return first

    def go_on_at(self, number: int) -> int | None:
        """Where to go on if `number`, the next id, was not reserved and is not going to be soon;
        None: with it. Never waits for the disk; to be asked by one thread, of all it gives."""
        if not ids.is_counted(number):
            return None
        self._wanted = number
        kept_back = ids.BLOCK // 4 if self.trouble is not None else 0  # some are given meanwhile
        return None if number < self._reserved - kept_back else ids.by_clock(self._clocked)

    def trim(self, now_wall_ns: int) -> int:
        """Drop what is too old or too much; returns how many requests went."""
        oldest = max(0, now_wall_ns - self._max_age_ns)
        gone = self._drop(lambda db: writer.drop_before(db, oldest, _CHUNK))
        self._attempt(lambda db: writer.forget_unused(db, oldest))
        return gone + self._trim_size()

    def close(self, next_id: int | None = None) -> None:
        """Write what is pending. `next_id`: the first unused one, when all others are put; what
        was reserved beyond it is given back."""
        with self._lock:
            self.flush()
            if next_id is not None and ids.is_counted(next_id) and self.trouble is None:
                try:
                    writer.give_back_ids(self._open(), next_id)
                except (sqlite3.Error, StoreError) as error:
                    self.trouble = database.trouble(self.path, error)
            self._close()
            self._disown()

    def _settle(self) -> None:
        """Nothing is open when a run begins: what an earlier one left so was never ended."""
        left = self._ask(partial(reader.unfinished, among=_RECENT, last=_BATCH))
        if ended := [rows.encode(one) for one in map(settle, self.evidences(left))]:
            self._attempt(lambda db: writer.put(db, ended, None))

    def _trim_size(self) -> int:
        gone = 0
        while True:
            with self._lock:
                found = self._attempt(reader.size)
                if found is None:  # the disk does not answer now
                    return gone
                used, whole = found
                if used <= self._max_bytes:
                    if whole > self._max_bytes:
                        self._attempt(writer.give_back)
                    return gone
                # Small steps near the limit: a few requests with much evidence must not
                # cost the whole history.
                step = max(1, min(_CHUNK, (self._attempt(reader.span) or 0) // 20))
                dropped = self._attempt(partial(writer.drop_oldest, count=step))
            if not dropped:
                return gone
            gone += dropped

    def _drop(self, work: Callable[[sqlite3.Connection], int]) -> int:
        gone = 0
        while count := self._attempt(work):
            gone += count
            if count < _CHUNK:
                break
        return gone

    # --- reading -----------------------------------------------------------------

    def find(
        self,
        last: int = 20,
        since_ns: int | None = None,
        model: str | None = None,
        spikes_only: bool = False,
    ) -> list[int]:
        """Ids of the newest `last` requests that fit, oldest first. `since_ns`: wall clock."""
        since_ns = None if since_ns is None else max(-TIME_MAX_NS, since_ns)

        def fits(row: rows.Row) -> bool:
            return (
                (row.is_spike or not spikes_only)
                and (model is None or row.model == model)
                and (since_ns is None or row.arrival_ns >= since_ns)
            )

        with self._lock:
            found = self._ask(
                lambda db: reader.select(
                    db,
                    # What waits in memory may stand for as many of the rows.
                    last=last + len(self._pending),
                    since_ns=since_ns,
                    model=model,
                    spikes_only=spikes_only,
                )
            )
            kept = [item for item in self._kept(found, rows.when) if item[1] not in self._pending]
            kept += [(row.arrival_ns, row.id) for row in self._pending.values() if fits(row)]
        return [number for _, number in sorted(kept)[-last:]]

    def answers(self, ids: Sequence[int]) -> Iterator[list[bytes]]:
        """Their answers (JSON) in the same order, in batches; those gone meanwhile left out."""
        for start in range(0, len(ids), _BATCH):
            batch = list(ids[start : start + _BATCH])
            with self._lock:
                stored = self._ask(partial(reader.answers, ids=batch))
                found = dict(self._kept(stored, rows.answer_from))
                found |= {n: self._pending[n].answer for n in batch if n in self._pending}
            yield [found[number] for number in batch if number in found]

    def requests(
        self,
        last: int = 20,
        since_ns: int | None = None,
        model: str | None = None,
        spikes_only: bool = False,
    ) -> list[bytes]:
        """Answers (JSON) of what `find` finds."""
        return list(
            chain.from_iterable(self.answers(self.find(last, since_ns, model, spikes_only)))
        )

    def counts(self, since_ns: int, model: str | None = None) -> Counts:
        """How many requests since `since_ns` (wall clock) are on disk, by model."""
        since_ns = max(-TIME_MAX_NS, since_ns)
        with self._lock:
            return self._ask(lambda db: counts(db, since_ns, model))

    def get(self, number: int) -> bytes | None:
        """The answer of one request with its detail, as JSON; None: no such id."""
        with self._lock:
            row = self._pending.get(number)
            pair = (row.answer, row.detail) if row else self._ask(lambda db: reader.one(db, number))
        return None if pair is None else rows.detail_from(pair)

    def evidence(self, number: int) -> Evidence | None:
        """The evidence of one request; None: no such id. StoreError: it cannot be read."""
        with self._lock:
            row = self._pending.get(number)
            blob = row.evidence if row else self._ask(lambda db: reader.evidence(db, number))
        return None if blob is None else rows.evidence_from(blob)

    def evidences(self, ids: Iterable[int]) -> Iterator[Evidence]:
        """The evidence of these requests; without those that are gone or cannot be read."""
        for number in ids:
            with self._lock:
                kept = self._kept([number], self.evidence)
            yield from (one for one in kept if one is not None)

    def warm(
        self, server: str, model: str, kind: str, n: int = 50, wall_offset_ns: int = 0
    ) -> list[Warm]:
        """The newest `n` warm requests of one kind, oldest first; times on the monotonic clock
        that is `wall_offset_ns` behind the wall clock (negative: before this boot)."""
        with self._lock:
            found = self._ask(lambda db: reader.warm(db, server, model, kind, count=n))
            read = partial(rows.warm_from, (server, model, kind), wall_offset_ns)
            return self._kept(found, read)

    def warm_context(self, n: int = 50, wall_offset_ns: int = 0) -> list[Warm]:
        """`warm` of every kind there is: what a new pipeline starts with."""
        return [
            item
            for server, model, kind, _ in self._groups()
            for item in self.warm(server, model, kind, n, wall_offset_ns)
        ]

    def last_models(self) -> dict[str, str]:
        """The model each server served last."""
        return {server: model for server, model, _, _ in self._groups()}

    def models(self) -> dict[tuple[str, str], int]:
        """When each (server, model) was last used: wall clock, nanoseconds."""
        return {(server, model): last_ns for server, model, _, last_ns in self._groups()}

    def size_bytes(self) -> int:
        """Size of the history's file."""
        with self._lock:
            return self._ask(reader.size)[1]

    def _groups(self) -> list[tuple[str, str, str, int]]:
        with self._lock:
            return self._kept(self._ask(reader.groups), rows.group)
