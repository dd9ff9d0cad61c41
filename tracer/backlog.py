"""Hands explained requests to the history in a thread of its own.

A slow disk must not keep the rings from being drained.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from tracer.derived import Derived

#: How long the end waits for a disk that does not answer.
_PATIENCE_S = 10.0
#: Requests put at a time: encoded they take some kilobytes each.
_AT_ONCE = 50


class Backlog:
    """`put` gets all that was added since its last call, in order, one call at a time.

    `failed` holds what ended the thread, if anything did.
    """

    def __init__(self, put: Callable[[Sequence[Derived]], None]) -> None:
        self._put = put
        self._waiting: list[Derived] = []
        self._wake = threading.Condition()
        self._closing = False
        self.failed: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="ttft-history", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests that were not put yet."""
        return len(self._waiting)

    def add(self, derived: Sequence[Derived]) -> None:
        """Returns at once."""
        with self._wake:
            self._waiting.extend(derived)
            self._wake.notify()

    def close(self) -> None:
        """Write what waits, then end; a disk that hangs is not waited for much longer."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        try:
            while self._put_next():
                pass
            self.failed.set_result(None)
        except BaseException as error:
            self.failed.set_exception(error)
            raise

    def _put_next(self) -> bool:
        """Put what waits, some at a time, and keep none of it; False at the end."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closing)
            batch = self._waiting[:_AT_ONCE]
            del self._waiting[:_AT_ONCE]
        if batch:
            self._put(batch)
        return bool(batch)
