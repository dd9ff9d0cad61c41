"""Attached programs, by name."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tracer.kernel import libbpf


class Links:
    """Links are held by this process alone: killed, it leaves nothing.

    Before it takes a traced function's program off, the kernel may wait until every task has slept
    once: 0.1 s for each. So these leave one by one in a thread of their own, and whoever wants
    one back before its turn has it at once.
    """

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()
        self._leaving: dict[str, int] = {}
        self._worker: threading.Thread | None = None

    def add(self, name: str, attach: Callable[[], int]) -> None:
        """Hold what `attach` gives, or what was about to leave."""
        with self._lock:
            link = self._leaving.pop(name, None)
        self._held[name] = attach() if link is None else link

    def holds(self, name: str) -> bool:
        """Whether it is attached, and not about to leave."""
        return name in self._held

    def drop(self, name: str, *, later: bool = False) -> None:
        """Detach, if it is held; `later`: without waiting."""
        link = self._held.pop(name, None)
        if link is None:
            return
        if not later:
            libbpf.destroy_link(link)
            return
        with self._lock:
            self._leaving[name] = link
            if self._worker is None:
                self._worker = threading.Thread(target=self._see_off, name="detach")
                self._worker.start()

    def _see_off(self) -> None:
        while True:
            with self._lock:
                name = next(iter(self._leaving), None)
                if name is None:
                    self._worker = None
                    return
                link = self._leaving.pop(name)
            libbpf.destroy_link(link)

    def settle(self) -> None:
        """Wait for those that are leaving."""
        worker = self._worker
        if worker is not None:
            worker.join()

    def close(self) -> None:
        """Detach all, and wait for it."""
        self.settle()
        for name in list(self._held):
            self.drop(name)
