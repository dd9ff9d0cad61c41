"""Runs that still grow in a map of the kernel: told when they change, taken out when they end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tracer.kernel.layouts import Layout
from tracer.kernel.maps import Table

_QUIET_NS = 1_000_000_000


class Run(Protocol):
    """What is asked of a run as the kernel has it."""

    @property
    def end_ns(self) -> int: ...
    @property
    def tgid(self) -> int: ...
    @property
    def tid(self) -> int: ...


R = TypeVar("R", bound=Run)
T = TypeVar("T")


class Growing(Generic[R, T]):
    """Remembers what it told, and tells only what changed since.

    `read` gives the run of an entry as it stands, None for a copy taken during an update.
    `record` makes of it what is told, None for nothing. In `layout`, of the values, the process
    is the second field.
    """

    def __init__(
        self,
        table: Table,
        layout: Layout,
        read: Callable[[bytes, bytes], R | None],
        record: Callable[[R], T | None],
    ) -> None:
        self._table = table
        self._layout = layout
        self._read = read
        self._record = record
        self._told: dict[bytes, bytes] = {}

    def sweep(self, now_ns: int) -> list[T]:
        """Everything that changed since the last sweep; runs of dead threads are taken out."""
        told, found = self._told, []
        self._told = {}
        for key, value in list(self._table.items()):
            run = self._read(key, value)
            if run is None:
                self._told[key] = b""
                continue
            item = self._record(run) if told.get(key) != value else None
            if item is not None:
                found.append(item)
            quiet = now_ns - run.end_ns > _QUIET_NS
            if quiet and not os.path.exists(f"/proc/{run.tgid}/task/{run.tid}"):
                self._table.delete(key)
            else:
                self._told[key] = value
        return found

    def end_of(self, tgid: int) -> list[T]:
        """A process ended: its runs, taken out."""
        found = []
        for key, value in list(self._table.items()):
            if self._layout.packer.unpack(value)[1] != tgid:
                continue
            self._table.delete(key)
            run, told = self._read(key, value), self._told.pop(key, None)
            item = self._record(run) if run is not None and told != value else None
            if item is not None:
                found.append(item)
        return found
