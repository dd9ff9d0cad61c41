"""Holding the history open, and going on when it is damaged, taken away or refused.

What SQLite calls malformed is set aside whole. A row that is not what was written is left out.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from tracer.errors import StoreError
from tracer.store import database, writer

T = TypeVar("T")
R = TypeVar("R")


class Access:
    """One connection under one lock; `trouble`: why the last write failed."""

    def __init__(self, path: Path, warn: database.Warn | None) -> None:
        self.path = path
        self.trouble: StoreError | None = None
        """Why the last write failed; None when all is written."""
        self.left_out = 0
        """Rows that could not be read, each time they were asked for."""
        self._warn = warn or (lambda _: None)
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._connection: sqlite3.Connection | None = None
        self._spare: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._reserved = 0

    def _kept(self, found: Iterable[R], read: Callable[[R], T]) -> list[T]:
        """Each of the rows as `read`; those that cannot be are left out, counted, said once."""
        kept: list[T] = []
        for item in found:
            try:
                kept.append(read(item))
            except StoreError as error:
                self.left_out += 1
                if self.left_out == 1:
                    self._warn(f"what cannot be read of the history is left out: {error.message}")
        return kept

    def _attempt(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        # The lock is taken for each piece of work alone, so that readers get their turn.
        with self._lock:
            try:
                return self._retry_damage(work)
            except (sqlite3.Error, StoreError) as error:
                self.trouble = database.trouble(self.path, error)
                return None

    def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return self._retry_damage(question, self._readable())
        except sqlite3.Error as error:
            raise database.trouble(self.path, error) from error

    def _readable(self) -> sqlite3.Connection:
        """The connection; while the disk takes nothing one that reads what is there."""
        try:
            return self._open()
        except database.UnwritableError as error:
            self.trouble = error
            self._spare = self._spare or database.spare(self.path)
            return self._spare

    def _retry_damage(
        self, work: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection | None = None
    ) -> T:
        """Do it; when the file turns out damaged, once more on a new one."""
        connection = connection or self._open()
        try:
            with database.damage_told():
                return work(connection)
        except sqlite3.DatabaseError as error:
            if not database.is_damage(error) or connection is self._spare:
                raise  # the spare may lack what is in the log beside the file
            database.move_aside(self.path, error, self._warn)
            self._close()
            return work(self._open())

    def _open(self) -> sqlite3.Connection:
        """The connection; to a new history where the file is no longer the one it was."""
        if self._connection is not None:
            if database.identity(self.path) == self._identity:
                return self._connection
            self._close()
            self._warn(f"{self.path} was moved, removed or replaced; going on with what is there")
        if self._owner is None:
            self._owner = database.own(self.path)
        elif database.identity(database.lock_of(self.path)) != database.identity(self._owner):
            owner = database.own(self.path)
            self._disown()
            self._owner = owner
        connection = database.connect(self.path, self._warn)
        try:
            if self._reserved:
                writer.reserve_ids(connection, self._reserved)
        except BaseException:
            connection.close()
            raise
        self._identity = database.identity(self.path)
        self._connection = connection
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        return connection

    def _disown(self) -> None:
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def _close(self) -> None:
        for connection in (self._connection, self._spare):
            if connection is not None:
                connection.close()
        self._connection = self._spare = None
