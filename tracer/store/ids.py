"""Ids of requests: counted as far as they could be reserved on disk, else told by the clock.

A run counts on from what earlier ones reserved, and a clean end gives back what it did not use. A
run that can reserve nothing knows neither what is in a log that it may not read, nor will it leave
word of the ids that it gives: so it takes those that no counting reaches, and no other run has, as
each begins at the millisecond (since 1970) it is taken at. Whatever of them reaches the disk later,
none is given twice, unless the clock was put back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

BLOCK = 1000
"""Ids are reserved in blocks of this size; a killed daemon's next run begins after its block."""

CLOCKED = 1 << 40
"""The lowest id that may be told by the clock; those counted are below."""

COUNTED_MAX = CLOCKED >> 1
"""The highest that counting can have reached: what says more is damaged."""

CLOCKED_MAX = 1 << 48
"""The same of the clock: millennia from now."""


def is_counted(number: int) -> bool:
    """Whether it is one that was counted."""
    return number < CLOCKED


def by_clock(highest: int) -> int:
    """The first id of those that begin now. `highest`: of such ids, the highest known, or 0."""
    return max(time.time_ns() // 1_000_000, CLOCKED, highest + 1)


def to_reserve(wanted: int, given: Iterable[int], reserved: int) -> int | None:
    """Up to where to reserve now, None: enough is. `wanted`: the next id, as far as known."""
    used = max(wanted, *(number + 1 for number in given if is_counted(number)), 0)
    return used + BLOCK if used and used + BLOCK // 2 > reserved else None
