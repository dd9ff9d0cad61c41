"""Reads what is still growing in the kernel: open spans and open runs of insertions."""

from __future__ import annotations

import os

from tracer.errors import RecordError
from tracer.kernel import layouts, wire
from tracer.kernel.maps import Table
from tracer.records import Insert, Span

_QUIET_NS = 1_000_000_000
#: How often threads of quiet spans are looked at.
_LOOK_EVERY_NS = 1_000_000_000
#: Spans of live threads are taken out only when the table fills up.
_CROWDED = 12_288


def provisional(key: bytes, value: bytes) -> Span | None:
    """The span as it stands; None for a copy taken during an update."""
    ino, dev, tid, op, _ = layouts.SPAN_KEY.packer.unpack(key)
    state = layouts.SPAN_STATE.packer.unpack(value)
    begin, tgid, start, end, busy, size, count, token, flags, finish = state
    if begin != finish or not count:
        return None
    try:
        return wire.span(
            start=start, end=end, busy=busy, size=size, count=count, tgid=tgid, tid=tid,
            dev=dev, ino=ino, token=token, op=op, flags=flags,
        )  # fmt: skip
    except RecordError:
        return None


class Sweeper:
    """Remembers what it told, and tells only what changed since."""

    def __init__(self, spans: Table, files: Table) -> None:
        self._spans = spans
        self._files = files
        self._told: dict[bytes, bytes] = {}
        self._seen: dict[bytes, bytes] = {}
        self._told_run: dict[bytes, tuple[int, int]] = {}
        self._looked_ns: int | None = None

    def sweep(self, now_ns: int) -> list[Span | Insert]:
        """Everything that changed since the last sweep; spans of dead threads are taken out."""
        return [*self._sweep_spans(now_ns), *self._sweep_inserts()]

    def _sweep_spans(self, now_ns: int) -> list[Span]:
        entries = list(self._spans.items())
        crowded = len(entries) > _CROWDED
        look = crowded or self._looked_ns is None or now_ns - self._looked_ns >= _LOOK_EVERY_NS
        if look:
            self._looked_ns = now_ns
        told, found = self._told, []
        self._told = {}
        for key, value in entries:
            same = told.get(key) == value
            if same and not look:
                self._told[key] = value
                continue
            span = provisional(key, value)
            if span is not None and not same:
                found.append(span)
            if look and span is not None and now_ns - span.end_ns > _QUIET_NS:
                last = self._take_out(span, key, value, crowded)
                if last is not None:
                    found.append(last)
                    continue
            self._told[key] = value if span is not None else b""
        return found

    def _take_out(self, span: Span, key: bytes, value: bytes, crowded: bool) -> Span | None:
        """Delete a quiet span whose thread is gone; the last state of it, None if it stays."""
        if not crowded and os.path.exists(f"/proc/{span.tgid}/task/{span.tid}"):
            return None
        last = self._spans.take(key)
        return provisional(key, last if last is not None else value) or span

    def end_of(self, tgid: int) -> list[Span]:
        """A process ended: its spans, taken out."""
        found = []
        for key, value in list(self._spans.items()):
            if layouts.SPAN_STATE.packer.unpack(value)[1] != tgid:
                continue
            last = self._spans.take(key)
            told = self._told.pop(key, None)
            span = provisional(key, last if last is not None else value)
            if span is not None and told != last:
                found.append(span)
        return found

    def _sweep_inserts(self) -> list[Insert]:
        found = []
        for key, value in self._files.items():
            if self._seen.get(key) == value:
                continue
            self._seen[key] = value
            _, _, run, end0, end1, pages0, pages1, tgid, *_ = layouts.FILE_STATE.packer.unpack(
                value
            )
            start, end, pages = run >> 1, (end0, end1)[run & 1], (pages0, pages1)[run & 1]
            if not start or not pages or self._told_run.get(key) == (start, pages):
                continue
            self._told_run[key] = (start, pages)
            ino, dev, _ = layouts.FILE_KEY.packer.unpack(key)
            end = max(start, end)
            found.append(Insert(ts_ns=start, end_ns=end, dev=dev, ino=ino, pages=pages, tgid=tgid))
        return found
