"""Streams to several readers, none of which can make memory grow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from tracer.errors import TtftError

MAX_READERS = 8
MAX_BYTES = 512 << 10


class SlowReader(Exception):
    """A reader fell behind further than may be kept for it."""


class _Reader:
    def __init__(self) -> None:
        self.queue: deque[bytes] = deque()
        self.bytes = 0
        self.lost = 0
        self.ready = asyncio.Event()


class Fanout:
    """Everything published goes to all who read at that time.

    A reader that is `max_bytes` behind loses the oldest items, and is told how many by what
    `gap` makes of the number; without `gap` its stream breaks off with `SlowReader`.
    Use it from one event loop; from another thread through `call_soon_threadsafe`.
    """

    def __init__(
        self,
        gap: Callable[[int], bytes] | None = None,
        max_readers: int = MAX_READERS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._gap = gap
        self._max_readers = max_readers
        self._max_bytes = max_bytes
        self._readers: set[_Reader] = set()
        self._closed = False

    @property
    def readers(self) -> int:
        """How many read now: nothing need be made for none."""
        return len(self._readers)

    def publish(self, item: bytes) -> None:
        """Hand `item` to all readers, without waiting for any."""
        for reader in self._readers:
            reader.queue.append(item)
            reader.bytes += len(item)
            while reader.bytes > self._max_bytes and len(reader.queue) > 1:
                reader.bytes -= len(reader.queue.popleft())
                reader.lost += 1
            reader.ready.set()

    def close(self) -> None:
        """End all streams once what is queued has been read."""
        self._closed = True
        for reader in self._readers:
            reader.ready.set()

    def subscribe(self) -> AsyncIterator[bytes]:
        """Items from the first `anext` on; TtftError when there are too many readers."""
        if self._full():
            raise TtftError(
                f"already {self._max_readers} readers of this stream", "close one and try again"
            )
        return self._items(_Reader())

    def _full(self) -> bool:
        return len(self._readers) >= self._max_readers

    async def _items(self, reader: _Reader) -> AsyncIterator[bytes]:
        # Counted only here: a generator that is never begun never comes to its `finally`.
        if self._full():
            return
        self._readers.add(reader)
        try:
            while True:
                while reader.queue or reader.lost:
                    yield self._take(reader)
                if self._closed:
                    return
                reader.ready.clear()
                await reader.ready.wait()
        finally:
            self._readers.discard(reader)

    def _take(self, reader: _Reader) -> bytes:
        if reader.lost:
            lost, reader.lost = reader.lost, 0
            if self._gap is None:
                raise SlowReader(lost)
            return self._gap(lost)
        item = reader.queue.popleft()
        reader.bytes -= len(item)
        return item


def events_fanout() -> Fanout:
    """For `/v1/events`: a slow reader misses events and is told how many."""
    return Fanout(gap=lambda lost: b'{"schema":1,"lost":%d}' % lost)


def records_fanout() -> Fanout:
    """For `/v1/records`: a recording has no holes, so a slow reader's ends instead."""
    return Fanout(max_readers=2, max_bytes=4 << 20)


async def with_heartbeat(
    items: AsyncIterator[bytes], every_s: float, beat: bytes
) -> AsyncIterator[bytes]:
    """`items`, and `beat` whenever none came for `every_s` seconds."""
    pending: asyncio.Future[bytes] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(items))
            done, _ = await asyncio.wait({pending}, timeout=every_s)
            if not done:
                yield beat
                continue
            try:
                item = pending.result()
            except StopAsyncIteration:
                return
            pending = None
            yield item
    finally:
        if pending is not None:
            pending.cancel()
        if isinstance(items, AsyncGenerator) and pending is None:
            await items.aclose()
