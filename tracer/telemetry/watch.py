"""What the daemon does with devices: has them read while a request waits, and gives records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tracer.records import AnyRecord, Exit
from tracer.telemetry.places import Places, present

if TYPE_CHECKING:
    from tracer.telemetry.worker import Worker

S = 1_000_000_000
#: A call that has not come back by then never will.
LIMIT_NS = 5 * S
_GRACE_PART = 4
#: How long what a glance at the host told is believed.
_GLANCE_NS = 10 * S
_CLOSE_S = 1.0


class TelemetryWatch:
    """Owned by the engine's thread; no thread of its own before a request waits on a host with a
    device.

    A thread that hangs is left behind and named: NVIDIA's library is then not used any more, as no
    other thread may touch it; a second one that hangs ends all of it.
    """

    def __init__(
        self, say: Callable[[str], None], places: Places | None = None, *,
        limit_ns: int = LIMIT_NS, off: bool = False,
    ) -> None:  # fmt: skip
        self._say = say
        self._places = Places() if places is None else places
        self._limit_ns = limit_ns
        self._off = off
        self._nvml = True
        self._worker: Worker | None = None
        self._glanced_ns: int | None = None
        self._there = False
        self._wanted: tuple[int, ...] = ()
        self._suspect: tuple[tuple[str, int], int] | None = None
        self._read = 0
        self._names: dict[str, str] = {}
        self._troubles: dict[str, None] = {}

    def note(self, records: Iterable[AnyRecord]) -> None:
        """A process that held a device may have ended."""
        worker = self._worker
        if worker is None or not worker.held:
            return
        if any(type(r) is Exit and r.tgid in worker.held for r in records):
            worker.look()

    def collect(self, now_ns: int, tgids: tuple[int, ...]) -> list[AnyRecord]:
        """Readings since the last call. `tgids`: of servers where a request has no first token yet,
        none where none waits."""
        if self._off:
            return []
        if tgids:
            self._want(tgids, now_ns)
        elif self._wanted:
            self._wanted = ()
            if self._worker is not None:
                self._worker.enough()
        if self._worker is None:
            return []
        what = self._hung(self._worker.step, time.monotonic_ns())
        if what is not None:
            self._abandon(what)
            return []
        found = self._worker.take()
        for reading in found:
            if any(not h.gone for h in reading.holders):
                self._names[reading.device] = reading.name or reading.source
                self._read += 1
        return list(found)

    def state(self) -> dict[str, Any]:
        """For `ttft status`: devices read so far and what they are, how often, whether one is held
        now, and what was said of what could not be read. From any thread."""
        return {
            "devices": dict(self._names),
            "readings": self._read,
            "holding": self._worker is not None and bool(self._worker.held),
            "troubles": tuple(self._troubles),
        }

    def close(self) -> None:
        """Let go of all devices."""
        self._off = True
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.leave()
            worker.join(_CLOSE_S)

    def _want(self, tgids: tuple[int, ...], now_ns: int) -> None:
        if self._worker is None:
            if not self._present(now_ns):
                return
            self._worker = self._make()
        if tgids != self._wanted:
            self._wanted = tgids
            self._worker.want(tgids, now_ns)

    def _make(self) -> Worker:
        """Most hosts have no device, and need none of this."""
        from tracer.telemetry.reader import Reader
        from tracer.telemetry.worker import Worker

        nvml = self._nvml
        return Worker(lambda step: Reader(self._places, self._trouble, step, nvml=nvml))

    def _present(self, now_ns: int) -> bool:
        if self._glanced_ns is None or now_ns - self._glanced_ns > _GLANCE_NS:
            self._glanced_ns = now_ns
            self._there = present(self._places)
        return self._there

    def _trouble(self, words: str) -> None:
        self._troubles[words] = None
        self._say(words)

    def _hung(self, step: tuple[str, int] | None, now_ns: int) -> str | None:
        """What does not come back. All of us may have stood still: so it gets some time more."""
        if step is None or now_ns - step[1] <= self._limit_ns:
            self._suspect = None
        elif self._suspect is None or self._suspect[0] is not step:
            self._suspect = (step, now_ns)
        elif now_ns - self._suspect[1] >= self._limit_ns // _GRACE_PART:
            return step[0]
        return None

    def _abandon(self, what: str) -> None:
        assert self._worker is not None
        self._worker.leave()
        self._worker, self._wanted = None, ()
        if self._nvml and what.startswith("nvml"):
            self._nvml = False
            rest = "of NVIDIA devices only what the kernel tells is known from now on"
        else:
            self._off = True
            rest = "devices are not read any more"
        self._trouble(f"{what} has not come back for {self._limit_ns / S:g} s; {rest}")
