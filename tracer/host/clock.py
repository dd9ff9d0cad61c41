"""The clocks of the host: what time of day it is, and whether that may be believed.

All that is measured is on CLOCK_MONOTONIC, which neither a set clock nor a suspended machine
moves. The time of day beside it is the offset between the two, and changes with both.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from tracer.records import Host

#: Less than this is no step: the two clocks are not read at the same instant.
_STEP_NS = 500_000_000
_DAY_NS = 86_400_000_000_000


class Reading(msgspec.Struct, frozen=True):
    """The three clocks at one moment; `boot_ns` goes on while the machine is suspended."""

    monotonic_ns: int
    wall_ns: int
    boot_ns: int


def read() -> Reading:
    """Now."""
    return Reading(time.monotonic_ns(), time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))


class Clocks(msgspec.Struct, frozen=True):
    """What the clocks did since the daemon began. `last_step_s`: positive: set ahead."""

    steps: int = 0
    last_step_s: float | None = None
    suspensions: int = 0
    suspended_s: float = 0.0


class Clock:
    """Owned by the engine's thread; `seen`, `offset_ns` and `cautious_ns` are for any other."""

    def __init__(
        self, host: Host, reader: Callable[[], Reading] = read,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`host`: the record in effect; a step gives the same with another offset."""
        self._read, self._say = reader, say
        first = reader()
        self._host = host
        self._slept_ns = first.boot_ns - first.monotonic_ns
        self._ahead_ns = 0
        self._ahead_at_ns = first.monotonic_ns
        self.seen = Clocks()

    @property
    def offset_ns(self) -> int:
        """Time of day minus CLOCK_MONOTONIC."""
        return self._host.wall_offset_ns

    def look(self) -> list[Host]:
        """The record of the new offset where the clock was set, or the machine suspended."""
        now = self._read()
        offset = now.wall_ns - now.monotonic_ns
        slept = now.boot_ns - now.monotonic_ns - self._slept_ns
        step = offset - self._host.wall_offset_ns - slept
        if slept < _STEP_NS and abs(step) < _STEP_NS:
            return []
        seen = self.seen
        if slept >= _STEP_NS:
            self._slept_ns += slept
            self._say(f"the machine was suspended for {slept / 1e9:.0f} s")
            seen = msgspec.structs.replace(
                seen, suspensions=seen.suspensions + 1,
                suspended_s=round(seen.suspended_s + slept / 1e9, 3),
            )  # fmt: skip
        if abs(step) >= _STEP_NS:
            self._stepped(step, now.monotonic_ns)
            self._say(f"the clock was set by {step / 1e9:+.1f} s; times of day go by it from now")
            seen = msgspec.structs.replace(
                seen, steps=seen.steps + 1, last_step_s=round(step / 1e9, 3)
            )
        self.seen = seen
        self._host = msgspec.structs.replace(
            self._host, ts_ns=now.monotonic_ns, wall_offset_ns=offset
        )
        return [self._host]

    def _stepped(self, step_ns: int, now_ns: int) -> None:
        ahead = self._ahead_ns if now_ns - self._ahead_at_ns < _DAY_NS else 0
        self._ahead_ns, self._ahead_at_ns = max(0, ahead + step_ns), now_ns

    def cautious_ns(self) -> int:
        """The time of day by which the history may be shortened.

        A clock that was set ahead is believed a day later: by one wrong date all would be too old.
        """
        now = self._read()
        doubted = self._ahead_ns if now.monotonic_ns - self._ahead_at_ns < _DAY_NS else 0
        return now.wall_ns - doubted
