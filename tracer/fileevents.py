"""What watched processes did to large files, as records tell of it. Pure and bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tracer.records import AnyRecord, File, Insert, Io, Memory, Open, Ran, Resident, Span

MIB = 1 << 20
MAX_FILES = 4096
MAX_EVENTS = 20_000
MAX_SAMPLES = 64

BULK_OPS = frozenset({"mmap", "read", "read_direct"})
KEPT_OPS = BULK_OPS | {"munmap"}

FileKey = tuple[int, int]
_Sample = TypeVar("_Sample", Resident, Memory, Io, Ran)
SpanKey = tuple[int, int, int, str, int]


@dataclass(slots=True, eq=False)
class Doings:
    """Opens and spans of one tgid; `last_ns` is the latest end."""

    opens: list[Open] = field(default_factory=list)
    spans: dict[SpanKey, Span] = field(default_factory=dict)
    last_ns: int = 0


class FileEvents:
    """Files, and opens, spans and page cache insertions on them."""

    def __init__(self) -> None:
        self.files: dict[FileKey, File] = {}
        self._doings: dict[int, Doings] = {}
        self._inserts: dict[FileKey, dict[int, Insert]] = {}
        self._resident: dict[FileKey, list[Resident]] = {}
        self._memory: dict[int, list[Memory]] = {}
        self._io: dict[int, list[Io]] = {}
        self._ran: dict[int, list[Ran]] = {}
        self.dropped = 0

    def feed(self, record: File | Open | Span | Insert | Resident | Memory | Io | Ran) -> None:
        match record:
            case File():
                self.files.pop((record.dev, record.ino), None)
                self.files[(record.dev, record.ino)] = record
            case Open():
                doings = self._doings.setdefault(record.tgid, Doings())
                doings.opens.append(record)
                doings.last_ns = max(doings.last_ns, record.ts_ns)
            case Span():
                doings = self._doings.setdefault(record.tgid, Doings())
                key = (record.tid, record.dev, record.ino, record.op, record.ts_ns)
                doings.spans[key] = record
                doings.last_ns = max(doings.last_ns, record.end_ns)
            case Insert():
                self._inserts.setdefault((record.dev, record.ino), {})[record.ts_ns] = record
            case Resident():
                samples = self._resident.setdefault((record.dev, record.ino), [])
                samples.append(record)
                del samples[:-MAX_SAMPLES]
            case Memory():
                sizes = self._memory.setdefault(record.tgid, [])
                sizes.append(record)
                del sizes[:-MAX_SAMPLES]
            case Io():
                counts = self._io.setdefault(record.tgid, [])
                counts.append(record)
                del counts[:-MAX_SAMPLES]
            case Ran():
                ran = self._ran.setdefault(record.tgid, [])
                ran.append(record)
                del ran[:-MAX_SAMPLES]

    def is_weights(self, key: FileKey) -> bool:
        file = self.files.get(key)
        return file is not None and file.fmt is not None

    def large(self, key: FileKey) -> bool:
        """Whether the file may be 1 MiB or more (unknown counts as it may)."""
        file = self.files.get(key)
        return file is None or file.size >= MIB

    def opens(self, tgids: Iterable[int], start_ns: int, end_ns: int) -> list[Open]:
        return [
            o
            for doings in self._of(tgids, start_ns)
            for o in doings.opens
            if start_ns <= o.ts_ns <= end_ns and self.large((o.dev, o.ino))
        ]

    def spans(self, tgids: Iterable[int], start_ns: int, end_ns: int) -> list[Span]:
        return [
            s
            for doings in self._of(tgids, start_ns)
            for s in doings.spans.values()
            if s.end_ns >= start_ns and s.ts_ns <= end_ns and self.large((s.dev, s.ino))
        ]

    def inserts(self, keys: Iterable[FileKey], start_ns: int, end_ns: int) -> list[Insert]:
        return [
            i
            for key in keys
            for i in self._inserts.get(key, {}).values()
            if i.end_ns >= start_ns and i.ts_ns <= end_ns
        ]

    def resident(self, keys: Iterable[FileKey], start_ns: int, end_ns: int) -> list[Resident]:
        """Per file the last sample before `start_ns` and all up to `end_ns`."""
        return [r for key in keys for r in _around(self._resident.get(key, []), start_ns, end_ns)]

    def memory(self, tgids: Iterable[int], start_ns: int, end_ns: int) -> list[Memory]:
        return [m for t in tgids for m in _around(self._memory.get(t, []), start_ns, end_ns)]

    def io(self, tgids: Iterable[int], start_ns: int, end_ns: int) -> list[Io]:
        return [i for t in tgids for i in _around(self._io.get(t, []), start_ns, end_ns)]

    def ran(self, tgids: Iterable[int], start_ns: int, end_ns: int) -> list[Ran]:
        """Of each process the last before the window, all in it, and the first after it."""
        found = []
        for tgid in tgids:
            samples = self._ran.get(tgid, [])
            after = [s for s in samples if s.ts_ns > end_ns]
            found += _around(samples, start_ns, end_ns) + after[:1]
        return found

    def inserted_by(self, tgids: Iterable[int], start_ns: int, end_ns: int) -> set[FileKey]:
        """Files whose pages some of these processes brought into the page cache."""
        ours = frozenset(tgids)
        return {
            key
            for key, runs in self._inserts.items()
            if any(i.tgid in ours and i.end_ns >= start_ns and i.ts_ns <= end_ns
                   for i in runs.values())
        }  # fmt: skip

    def weight_opens(self, tgid: int) -> list[Open]:
        """The last open of each weights file by a process, whenever it was."""
        doings = self._doings.get(tgid)
        last: dict[FileKey, Open] = {}
        for one in doings.opens if doings else ():
            if self.is_weights((one.dev, one.ino)):
                last[(one.dev, one.ino)] = one
        return list(last.values())

    def brought(self, tgid: int, start_ns: int, end_ns: int) -> int:
        """Bytes of weights mapped or read by a process in spans that began in the window."""
        doings = self._doings.get(tgid)
        return sum(
            s.bytes
            for s in (doings.spans.values() if doings else ())
            if s.op in BULK_OPS
            and start_ns <= s.ts_ns <= end_ns
            and self.is_weights((s.dev, s.ino))
        )

    def unmapped(self, tgid: int, start_ns: int, end_ns: int) -> bool:
        """Whether a process unmapped 1 MiB or more of weights in the window."""
        doings = self._doings.get(tgid)
        return any(
            s.op == "munmap"
            and s.bytes >= MIB
            and start_ns <= s.ts_ns <= end_ns
            and self.is_weights((s.dev, s.ino))
            for s in (doings.spans.values() if doings else ())
        )

    def _of(self, tgids: Iterable[int], start_ns: int) -> Iterator[Doings]:
        for tgid in tgids:
            doings = self._doings.get(tgid)
            if doings is not None and doings.last_ns >= start_ns:
                yield doings

    def prune(self, horizon_ns: int, gone: Iterable[int]) -> None:
        """Forget events that ended before `horizon_ns`, but each process's last per file and
        kind, which tell what it holds; and all of processes that are `gone`."""
        for tgid in gone:
            self._doings.pop(tgid, None)
            self._memory.pop(tgid, None)
            self._io.pop(tgid, None)
            self._ran.pop(tgid, None)
        for doings in self._doings.values():
            doings.opens = _kept_opens(doings.opens, horizon_ns)
            _prune_spans(doings.spans, horizon_ns)
        for key, inserts in list(self._inserts.items()):
            for ts_ns in [t for t, i in inserts.items() if i.end_ns < horizon_ns]:
                del inserts[ts_ns]
            if not inserts:
                del self._inserts[key]
        for resident in self._resident.values():
            _prune_samples(resident, horizon_ns)
        for memory in self._memory.values():
            _prune_samples(memory, horizon_ns)
        for io in self._io.values():
            _prune_samples(io, horizon_ns)
        for ran in self._ran.values():
            _prune_samples(ran, horizon_ns)
        self._cap()

    def _cap(self) -> None:
        while len(self.files) > MAX_FILES:
            key = next(iter(self.files))
            del self.files[key]
            self._resident.pop(key, None)
        over = sum(len(d.spans) + len(d.opens) for d in self._doings.values()) - MAX_EVENTS
        for doings in self._doings.values():
            cut = min(max(0, over), len(doings.spans))
            for span_key in list(doings.spans)[:cut]:
                del doings.spans[span_key]
            opens = min(max(0, over - cut), len(doings.opens))
            del doings.opens[:opens]
            self.dropped += cut + opens
            over -= cut + opens
        over = sum(map(len, self._inserts.values())) - MAX_EVENTS
        for runs in self._inserts.values():
            cut = min(max(0, over), len(runs))
            for ts_ns in list(runs)[:cut]:
                del runs[ts_ns]
            self.dropped += cut
            over -= cut

    def records(self) -> Iterator[AnyRecord]:
        yield from self.files.values()
        for samples in self._resident.values():
            yield from samples
        for sizes in self._memory.values():
            yield from sizes
        for counts in self._io.values():
            yield from counts
        for ran in self._ran.values():
            yield from ran
        for doings in self._doings.values():
            yield from doings.opens
            yield from doings.spans.values()
        for inserts in self._inserts.values():
            yield from inserts.values()


def _around(samples: list[_Sample], start_ns: int, end_ns: int) -> list[_Sample]:
    before = [s for s in samples if s.ts_ns <= start_ns]
    within = [s for s in samples if start_ns < s.ts_ns <= end_ns]
    return before[-1:] + within


def _prune_samples(samples: list[_Sample], horizon_ns: int) -> None:
    while len(samples) > 1 and samples[1].ts_ns < horizon_ns:
        del samples[0]


def _kept_opens(opens: list[Open], horizon_ns: int) -> list[Open]:
    last = {(o.dev, o.ino): o for o in opens}
    return [o for o in opens if o.ts_ns >= horizon_ns or last[(o.dev, o.ino)] is o]


def _prune_spans(spans: dict[SpanKey, Span], horizon_ns: int) -> None:
    old = [(k, s) for k, s in spans.items() if s.end_ns < horizon_ns]
    if not old:
        return
    last: dict[tuple[int, int, str], Span] = {}
    for span in spans.values():
        kind = (span.dev, span.ino, span.op)
        if span.op in KEPT_OPS and (kind not in last or span.ts_ns >= last[kind].ts_ns):
            last[kind] = span
    for key, span in old:
        if last.get((span.dev, span.ino, span.op)) is not span:
            del spans[key]
