"""What the daemon does beside its work, some seconds after there was any: an idle host is left
alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine

from tracer.host.own import give_back
from tracer.log import log
from tracer.service.notify import notify
from tracer.store import Store

TRIM_EVERY_S = 600.0
AFTER_S = 5.0
IDLE_S = 600.0


class Chores:
    """Retry what the disk refused; keep the history, and our memory, to their size.

    `now_ns`: wall clock to go by, `state`: what to tell systemd while all is well.
    """

    def __init__(self, store: Store, now_ns: Callable[[], int], state: Callable[[], str]) -> None:
        self._store = store
        self._now_ns = now_ns
        self._state = state
        self._trouble: str | None = None
        self.stirred = asyncio.Event()
        """Set where requests came."""

    async def run(self) -> None:
        """For as long as the daemon lives."""
        last_trim: float | None = None
        while True:
            await asyncio.to_thread(self._store.flush)
            if last_trim is None or time.monotonic() - last_trim >= TRIM_EVERY_S:
                last_trim = time.monotonic()
                await asyncio.to_thread(self._store.trim, self._now_ns())
            self._tell()
            await asyncio.to_thread(give_back)
            if not self._store.pending:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stirred.wait(), IDLE_S)
            self.stirred.clear()
            await asyncio.sleep(AFTER_S)

    def _tell(self) -> None:
        found = str(self._store.trouble) if self._store.trouble else None
        if found and found != self._trouble:
            log(f"history: {found}; kept in memory, will be tried again")
        self._trouble = found
        notify(f"STATUS=history: {found}" if found else self._state())


class Tasks:
    """What runs beside the daemon: one that fails ends it, as a thread does."""

    def __init__(self, failed: Callable[[], object]) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[None]] = set()
        self._broken: list[asyncio.Task[None]] = []

    def add(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._broken.append(task)
            self._failed()

    def cancel(self) -> None:
        for task in list(self._running):
            task.cancel()

    def check(self) -> None:
        """Raises what ended the first that failed."""
        for task in self._broken:
            task.result()
