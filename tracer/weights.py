"""Which accesses bring weights in, and how much of that came from the disk or the network."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from tracer.derived import Interval
from tracer.records import Insert, Open, Span
from tracer.scene import Key, Range, Scene, off_for_good, union

PAGE = 4096
#: An open brings the bulk when it maps or reads this much, and this share of its file's best open.
BULK_BYTES = 1 << 20
BULK_SHARE = 4
#: Reads of at least this size bring weights; smaller ones parse the header before.
BULK_READ_BYTES = 32 << 10
#: Pages are inserted when a read is sent off; then the disk works on them. How long it may take
#: until the next ones: this, and their time on a disk of 5 MB/s.
BRIDGE_NS = 250_000_000
SLOW_NS_PER_BYTE = 200
#: A page that is there is mapped in microseconds; one that takes this long is still on its way.
WAITED_NS = 200_000
READS = ("read", "read_direct")
FAULTS = ("fault_minor", "fault_major")
_NETWORK = ("nfs", "cifs", "smb", "9p", "ceph", "fuse.sshfs", "fuse.rclone", "glusterfs", "afs")


@dataclass(frozen=True, slots=True)
class Bulk:
    """One open() whose descriptor brought weights: `first_ns` .. `end_ns` are its bulk accesses."""

    key: Key
    open_ns: int
    first_ns: int
    end_ns: int
    spans: tuple[Span, ...]


@dataclass(slots=True)
class _Opened:
    key: Key
    open_ns: int | None
    spans: list[Span] = field(default_factory=list)

    def bytes(self, ops: tuple[str, ...]) -> int:
        return sum(max(0, s.bytes) for s in self.spans if s.op in ops)

    @property
    def populated(self) -> bool:
        return any(s.op == "mmap" and s.populate for s in self.spans)

    def weight(self, size: int) -> int:
        """Bytes it mapped or read; small reads parse a header, unless they read half the file."""
        large = sum(s.bytes for s in self.spans if s.op in READS and _is_large(s))
        small = self.bytes(READS) - large
        return max(self.bytes(("mmap",)), large + (small if small * 2 >= size else 0))


def _is_large(s: Span) -> bool:
    return s.bytes >= BULK_READ_BYTES * s.count


def is_network(fs: str | None) -> bool:
    return fs is not None and fs.startswith(_NETWORK)


def _opened(scene: Scene, spans: Iterable[Span], tgids: frozenset[int]) -> list[_Opened]:
    """Accesses grouped by the open() they went through; a token may be used again."""
    opens: dict[tuple[int, int, int], list[Open]] = {}
    for o in sorted(scene.e.opens, key=lambda o: o.ts_ns):
        if o.tgid in tgids and (o.dev, o.ino) in scene.weights:
            opens.setdefault((o.dev, o.ino, o.token), []).append(o)
    found: dict[tuple[int, int, int, int], _Opened] = {}
    for s in spans:
        if s.op in FAULTS or s.op == "munmap":
            continue
        known = opens.get((s.dev, s.ino, s.token), [])
        nth = bisect_right(known, s.ts_ns, key=lambda o: o.ts_ns)
        at = known[nth - 1].ts_ns if nth else None
        group = found.setdefault((s.dev, s.ino, s.token, nth), _Opened((s.dev, s.ino), at))
        group.spans.append(s)
    return list(found.values())


def bulks(scene: Scene, tgids: frozenset[int], since_ns: int, until_ns: int) -> list[Bulk]:
    """The opens that bring weights, of accesses that began in [since_ns, until_ns)."""
    spans = [s for s in scene.spans_of(tgids) if since_ns <= s.ts_ns < until_ns]
    by_file: dict[Key, list[tuple[int, _Opened]]] = {}
    for opened in _opened(scene, spans, tgids):
        weight = opened.weight(scene.weights[opened.key].size)
        if weight >= BULK_BYTES:
            by_file.setdefault(opened.key, []).append((weight, opened))
    found = []
    for candidates in by_file.values():
        best = max(weight for weight, _ in candidates)
        populated = [
            c for c in candidates if any(s.op == "mmap" and s.populate for s in c[1].spans)
        ]
        found += [_bulk(c) for weight, c in populated or candidates if weight * BULK_SHARE >= best]
    return sorted(found, key=lambda b: (b.open_ns, b.first_ns, b.key))


def _bulk(opened: _Opened) -> Bulk:
    maps = [s for s in opened.spans if s.op == "mmap" and s.bytes >= BULK_BYTES]
    reads = [s for s in opened.spans if s.op in READS and _is_large(s)]
    first = min((maps or reads or opened.spans), key=lambda s: s.ts_ns).ts_ns
    bulk = tuple(s for s in opened.spans if s.ts_ns >= first)
    return Bulk(
        key=opened.key,
        open_ns=min(first, first if opened.open_ns is None else opened.open_ns),
        first_ns=first,
        end_ns=max(first, *(s.end_ns for s in bulk)),
        spans=bulk,
    )


class Disk:
    """Where in time pages of each file came into the page cache."""

    def __init__(self, inserts: Iterable[Insert]) -> None:
        self._runs: dict[Key, list[Insert]] = {}
        for i in sorted(inserts, key=lambda i: (i.ts_ns, i.end_ns)):
            self._runs.setdefault((i.dev, i.ino), []).append(i)
        # The latest end so far, so that a search can skip what is over.
        self._over = {
            key: list(accumulate((i.end_ns for i in runs), max)) for key, runs in self._runs.items()
        }

    def _touching(self, key: Key, start: int, end: int) -> Iterator[Insert]:
        runs = self._runs.get(key, [])
        first = bisect_left(self._over.get(key, []), start)
        for i in runs[first : bisect_left(runs, end, key=lambda i: i.ts_ns)]:
            if i.end_ns >= start:
                yield i

    def ranges(self, key: Key, start: int, end: int) -> list[Range]:
        """Times in [start, end) of one access during which the disk was at work for this file."""
        out: list[Range] = []
        busy_until = start
        for i in self._touching(key, start, end):
            begin, stop = max(i.ts_ns, start), min(max(i.end_ns, i.ts_ns + 1), end)
            if out and begin <= busy_until:
                out[-1] = (out[-1][0], max(out[-1][1], stop))
            elif stop > begin:
                out.append((begin, stop))
            busy_until = max(busy_until, stop + BRIDGE_NS + i.pages * PAGE * SLOW_NS_PER_BYTE)
        if out and end <= busy_until:
            out[-1] = (out[-1][0], end)
        return out

    def bytes(self, key: Key, start: int, end: int) -> int:
        """Bytes inserted in [start, end); a run across its edge counts by its share of time."""
        return sum(
            share(i.pages * PAGE, i.ts_ns, i.end_ns, start, end)
            for i in self._touching(key, start, end)
        )


def share(amount: int, ts_ns: int, end_ns: int, start: int, end: int) -> int:
    """The part of an amount spread evenly over [ts_ns, end_ns] that falls into [start, end]."""
    if end_ns <= ts_ns:
        return amount if start <= ts_ns <= end else 0
    inside = min(end_ns, end) - max(ts_ns, start)
    return amount * inside // (end_ns - ts_ns) if inside > 0 else 0


def far_stage(scene: Scene, key: Key) -> str:
    file = scene.weights.get(key)
    return "load.network" if file and is_network(file.fs) else "load.disk"


def _near_stage(scene: Scene, span: Span) -> str:
    """Of an access without pages from the disk; where these cannot be known, only a fault tells."""
    told = span.op == "fault_minor" or not off_for_good(scene.e, "cache")
    return "load.cache" if told else "load.rest"


def bulk_claims(scene: Scene, bulk: Bulk, disk: Disk) -> Iterator[Interval]:
    """Header parsing, then each access as disk, network or cache; what lies between is copying."""
    yield from scene.claim("load.meta", bulk.open_ns, bulk.first_ns)
    yield from scene.claim("load.rest", bulk.first_ns, bulk.end_ns)
    far = far_stage(scene, bulk.key)
    for s in bulk.spans:
        if s.op == "read_direct":
            yield from scene.claim(far, s.ts_ns, s.end_ns, tgid=s.tgid, tid=s.tid)
            continue
        yield from scene.claim(_near_stage(scene, s), s.ts_ns, s.end_ns, tgid=s.tgid, tid=s.tid)
        for start, end in disk.ranges(bulk.key, s.ts_ns, s.end_ns):
            yield from scene.claim(far, start, end, tgid=s.tgid, tid=s.tid)


def inserted_by(scene: Scene, tgids: frozenset[int], since_ns: int, until_ns: int) \
        -> Iterator[Interval]:  # fmt: skip
    """Insertions in these processes' own context: they wait for the disk, whatever asked for it.

    Locking a mapping, for one, reads the file with no call that is watched.
    """
    for i in scene.e.inserts:
        key = (i.dev, i.ino)
        if i.tgid in tgids and key in scene.weights:
            start, end = max(i.ts_ns, since_ns), min(i.end_ns, until_ns)
            yield from scene.claim(far_stage(scene, key), start, end, tgid=i.tgid)


def _waited(span: Span, disk: Disk) -> bool:
    """Whether these faults waited for pages that read-ahead had sent for just before."""
    waited = span.op == "fault_minor" and span.busy_ns >= span.count * WAITED_NS
    since = span.ts_ns - BRIDGE_NS
    return waited and bool(disk.bytes((span.dev, span.ino), since, span.end_ns))


def lazy_claims(
    scene: Scene, taken: frozenset[Span], disk: Disk, since_ns: int, until_ns: int
) -> Iterator[Interval]:  # fmt: skip
    """Faults and reads of weights outside a load proper: their busy time, an estimate.

    A run of events that was coalesced has idle time in it; its busy time is laid at its end.
    """
    seen: dict[Key, list[Range]] = {}
    for s in scene.spans_of(scene.tree):
        if s in taken or s.op == "munmap" or s.end_ns <= since_ns or s.ts_ns >= until_ns:
            continue
        start, end = max(s.ts_ns, since_ns), min(s.end_ns, until_ns)
        busy = share(min(s.busy_ns, s.end_ns - s.ts_ns), s.ts_ns, s.end_ns, start, end)
        key = (s.dev, s.ino)
        far = s.op in ("fault_major", "read_direct") or (
            disk.bytes(key, s.ts_ns, s.end_ns) * 10 >= max(s.bytes, PAGE)
        )
        far = far or _waited(s, disk)
        stage = far_stage(scene, key) if far else _near_stage(scene, s)
        seen.setdefault(key, []).append((s.ts_ns, s.end_ns))
        part = busy < end - start or s.busy_ns < s.end_ns - s.ts_ns
        yield from scene.claim(stage, end - busy, end, estimate=part, tgid=s.tgid, tid=s.tid)
    yield from _unseen_inserts(scene, seen, since_ns, until_ns)


def _unseen_inserts(
    scene: Scene, seen: dict[Key, list[Range]], since_ns: int, until_ns: int
) -> Iterator[Interval]:
    """Insertions where no access of ours explains them: the faults were not watched then."""
    for key, file_runs in seen.items():
        seen[key] = union(file_runs)
    for i in scene.e.inserts:
        key = (i.dev, i.ino)
        if i.tgid not in scene.tree or key not in scene.weights:
            continue
        runs = seen.get(key, [])
        nth = bisect_right(runs, i.ts_ns, key=lambda r: r[1])
        if nth < len(runs) and runs[nth][0] < i.end_ns:
            continue
        start, end = max(i.ts_ns, since_ns), min(i.end_ns, until_ns)
        yield from scene.claim(far_stage(scene, key), start, end, estimate=True, tgid=i.tgid)
