"""Counts each thing once, though it may be told more than once."""

from __future__ import annotations

_KEPT = 8192


class Once:
    """Remembers the latest ids; a request that is told again comes soon after."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._seen: dict[int, None] = {}

    def first(self, number: int) -> bool:
        """Whether it was not asked about before."""
        if number in self._seen:
            return False
        self._seen[number] = None
        if len(self._seen) > self._kept:
            del self._seen[next(iter(self._seen))]
        return True
