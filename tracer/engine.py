"""The one thread that turns what happens into explained requests.

Owns `Live` and `Pipeline`; everything else talks to it through `call()`, or is told by the
two sinks. The loop waits long while nothing is asked of the server, briefly while a
request is open.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tracer.derived import Derived
from tracer.live import Live
from tracer.pipeline import Pipeline
from tracer.records import AnyRecord

#: Explaining waits for the server's own work; the rings are drained by another thread.
_NICE = 10

T = TypeVar("T")
RecordSink = Callable[[list[AnyRecord]], None]
DerivedSink = Callable[[list[Derived]], None]


class Engine:
    """`start()`, then `stop()`. `failed` holds what ended the loop, if anything did."""

    def __init__(
        self, live: Live, pipeline: Pipeline, on_records: RecordSink, on_derived: DerivedSink
    ) -> None:
        self._live = live
        self._pipeline = pipeline
        self._on_records = on_records
        self._on_derived = on_derived
        self._taps: list[RecordSink] = []
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ttft-engine", daemon=True)
        self.failed: Future[None] = Future()
        self._open = 0

    @property
    def open_requests(self) -> int:
        """Requests without an end yet, as of the last step; from any thread."""
        return self._open

    def start(self, context: list[AnyRecord]) -> None:
        """Begin with `context` and what is running already."""
        self._take(context + self._live.begin())
        self._open = len(self._pipeline.open_requests())
        self._thread.start()

    def stop(self) -> None:
        """Take what is left in the rings, then end."""
        self._stopping.set()
        self._live.kick()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Do `work` in the engine's thread, between two drains."""
        answer: Future[T] = Future()

        def job() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(work())
            except BaseException as error:
                # Whoever asked is told; what goes on is not theirs to end.
                answer.set_exception(error)

        self._calls.put(job)
        self._live.kick()
        return answer

    def put(self, work: Callable[[], list[AnyRecord]]) -> Future[None]:
        """Do `work` in the engine's thread, and take the records that it gives."""
        return self.call(lambda: self._take(work()))

    def tap(self, sink: RecordSink) -> Future[list[AnyRecord]]:
        """From now on `sink` gets every record; the answer is the context they need."""

        def work() -> list[AnyRecord]:
            self._taps.append(sink)
            return self._pipeline.snapshot() + self._live.context()

        return self.call(work)

    def untap(self, sink: RecordSink) -> None:
        """Undo `tap`; also one that was cancelled before it began."""
        self.call(lambda: self._taps.remove(sink) if sink in self._taps else None)

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            while not self._stopping.is_set():
                self._live.wait(busy=self.open_requests > 0)
                self._step()
            self._step()
            self.failed.set_result(None)
        except BaseException as error:
            self.failed.set_exception(error)
            raise

    def _step(self) -> None:
        busy, waiting = self.open_requests > 0, self._pipeline.waiting
        for records in self._live.drain(busy=busy, waiting=waiting):
            self._take(records)
        self._open = len(self._pipeline.open_requests())
        while not self._calls.empty():
            self._calls.get()()

    def _take(self, records: list[AnyRecord]) -> None:
        if not records:
            return
        self._on_records(records)
        for tap in self._taps:
            tap(records)
        derived = [item for record in records for item in self._pipeline.feed(record)]
        if derived:
            self._on_derived(derived)
