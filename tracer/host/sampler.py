"""Slow facts read from time to time: page cache share of the weights, resident memory.

Read only while a request is open or a file just came up, so that an idle host is left alone.
"""

from __future__ import annotations

from tracer.host import files, proc
from tracer.host.discovery import Discovery
from tracer.records import AnyRecord, File, Memory, Resident

_MEMORY_EVERY_NS = 250_000_000
_CACHE_EVERY_NS = 1_000_000_000
#: cachestat() walks every cached page; bigger files are sampled more seldom (about 5 ms a GB).
_BYTES_A_SECOND = 8 << 30


class Sampler:
    """`sample()` gives what is due now; at most one look at a file or process per interval."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._memory_due_ns = 0
        self._cache_due_ns: dict[tuple[int, int], int] = {}

    def sample(self, now_ns: int) -> list[AnyRecord]:
        return self._memory(now_ns) + self._cache(now_ns)

    def _memory(self, now_ns: int) -> list[AnyRecord]:
        if now_ns < self._memory_due_ns:
            return []
        self._memory_due_ns = now_ns + _MEMORY_EVERY_NS
        sizes = ((tgid, proc.rss_bytes(tgid)) for tgid in self._discovery.tree)
        return [Memory(ts_ns=now_ns, tgid=t, rss_bytes=size) for t, size in sizes if size]

    def _cache(self, now_ns: int) -> list[AnyRecord]:
        records: list[AnyRecord] = []
        for file in self._discovery.files():
            key = (file.dev, file.ino)
            if file.fmt is None or now_ns < self._cache_due_ns.get(key, 0):
                continue
            pause = _CACHE_EVERY_NS * (1 + file.size // _BYTES_A_SECOND)
            self._cache_due_ns[key] = now_ns + pause
            cached = self._cached(file)
            if cached is not None:
                records.append(
                    Resident(ts_ns=now_ns, dev=file.dev, ino=file.ino, cached_bytes=cached)
                )
        return records

    def _cached(self, file: File) -> int | None:
        """Asked through any living process of the server: all see the same path."""
        for tgid in list(self._discovery.tree):
            cached = files.cached_bytes(tgid, file)
            if cached is not None:
                return cached
        return None
