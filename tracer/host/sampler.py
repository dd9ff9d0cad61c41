"""Slow facts read from time to time: page cache share of the weights, resident memory.

cachestat() walks every page of a file, milliseconds for a small model: it is asked while a model
loads, and after an answer, never while a resident model works on a prompt.
"""

from __future__ import annotations

from tracer.host import files, proc
from tracer.host.discovery import Discovery
from tracer.host.processors import Processors
from tracer.http.endpoints import is_inference
from tracer.records import AnyRecord, File, HttpRequest, Insert, Io, Memory, Resident

_MEMORY_EVERY_NS = 250_000_000
_CACHE_EVERY_NS = 1_000_000_000
#: Processor time while a request waits: so often, then at a part of how long it has waited.
_PROCESSOR_EVERY_NS = 250_000_000
_PROCESSOR_PART = 8
#: And when a request came, or ended: what was before is not its own. Not more often than this.
_PROCESSOR_LEAST_NS = 100_000_000
#: cachestat() walks every cached page; bigger files are sampled more seldom (about 5 ms a GB).
_BYTES_A_SECOND = 8 << 30


class Sampler:
    """At most one look at a file or process per interval, and none at a model that only answers."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._memory_due_ns = 0
        self._cache_due_ns: dict[tuple[int, int], int] = {}
        self._loading: set[tuple[int, int]] = set()
        self._processors = Processors()
        self._processors_due_ns = 0
        self._processors_last_ns = -_PROCESSOR_LEAST_NS
        self._asked = False
        self._waiting_since_ns: int | None = None

    def note(self, records: list[AnyRecord]) -> None:
        """Files whose pages come in are worth a look, and processes where a request comes in."""
        self._loading.update((r.dev, r.ino) for r in records if isinstance(r, Insert))
        asked = (r.endpoint for r in records if isinstance(r, HttpRequest))
        self._asked = self._asked or any(map(is_inference, asked))

    def during(self, now_ns: int) -> list[AnyRecord]:
        """While a request is open: memory, and the files that are being loaded."""
        return self._memory(now_ns) + self._cache(now_ns, self._loading)

    def after(self, now_ns: int) -> list[AnyRecord]:
        """When the last request is over and the processor is free: all weights."""
        keys = {(file.dev, file.ino) for file in self._discovery.files() if file.fmt}
        return self._cache(now_ns, keys)

    def read(self, now_ns: int) -> list[AnyRecord]:
        """What each watched process has read so far."""
        counts = ((tgid, proc.read_counts(tgid)) for tgid in self._discovery.tree)
        return [
            Io(ts_ns=now_ns, tgid=tgid, read_chars=found[0], read_bytes=found[1])
            for tgid, found in counts
            if found is not None
        ]

    def processors(self, now_ns: int, *, waiting: bool, ended: bool) -> list[AnyRecord]:
        """While a request waits for its first token, and once when it does no more, when one came
        or one `ended`: processor time, and what was waited for it."""
        since_ns, asked = self._waiting_since_ns, self._asked
        self._asked = False
        if waiting and since_ns is None:
            self._waiting_since_ns = now_ns
        elif not waiting:
            self._waiting_since_ns = None
        over = since_ns is not None and not waiting
        due = waiting and now_ns >= self._processors_due_ns
        soon = (asked or ended) and now_ns - self._processors_last_ns >= _PROCESSOR_LEAST_NS
        if not over and not due and not soon:
            return []
        # What a long wait was looked at seldom for is over with it.
        waited_ns = now_ns - since_ns if waiting and since_ns is not None else 0
        pause_ns = max(_PROCESSOR_EVERY_NS, waited_ns // _PROCESSOR_PART)
        self._processors_last_ns, self._processors_due_ns = now_ns, now_ns + pause_ns
        return [*self._processors.look(list(self._discovery.tree), now_ns)]

    def _memory(self, now_ns: int) -> list[AnyRecord]:
        if now_ns < self._memory_due_ns:
            return []
        self._memory_due_ns = now_ns + _MEMORY_EVERY_NS
        sizes = ((tgid, proc.rss_bytes(tgid)) for tgid in self._discovery.tree)
        return [Memory(ts_ns=now_ns, tgid=t, rss_bytes=size) for t, size in sizes if size]

    def _cache(self, now_ns: int, keys: set[tuple[int, int]]) -> list[AnyRecord]:
        records: list[AnyRecord] = []
        for file in self._discovery.files():
            key = (file.dev, file.ino)
            if file.fmt is None or key not in keys or now_ns < self._cache_due_ns.get(key, 0):
                continue
            self._loading.discard(key)
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
