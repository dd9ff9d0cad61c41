"""Tracks of a Chrome trace: processes, threads and what lies on them, valid by construction.

Perfetto wants slices of a thread to nest and tids of 32 bits that belong to one process. So
threads are handed out here, slices that would overlap are moved to a further thread, and
synthetic processes get numbers that no real task of the trace has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tracer.answers import dumps

Event = dict[str, Any]
Args = dict[str, Any]

SYNTHETIC = 1 << 30  # above the largest pid the kernel can hand out (1 << 22)
MAX_ID = (1 << 31) - 1


def microseconds(ns: int) -> orjson.Fragment:
    """Nanoseconds as a JSON number of microseconds with three decimals, exact for any uptime."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return orjson.Fragment(f"{sign}{ns // 1000}.{ns % 1000:03d}".encode())


def _text(event: Event) -> bytes:
    """An event as JSON: so it weighs a third of the objects. Copied, as the buffer it was made
    in stays as large as it was."""
    return bytes(memoryview(dumps(event)))


@dataclass(slots=True, frozen=True)
class Track:
    """A thread of the trace."""

    pid: int
    tid: int


@dataclass(slots=True, eq=False)
class Slice:
    """Work in [start_ns, end_ns) with what is inside it; `track` is set when it is placed."""

    start_ns: int
    end_ns: int
    name: str
    cat: str
    args: Args = field(default_factory=dict)
    inside: list[Slice] = field(default_factory=list)
    track: Track | None = None

    def holds(self, ns: int) -> bool:
        """Whether an arrow may point to the slice at that time."""
        return self.start_ns <= ns < self.end_ns


def clip(slices: Iterable[Slice], start_ns: int, end_ns: int) -> list[Slice]:
    """Slices cut to a window and to one another, in order: what is left can be siblings."""
    kept = []
    at = start_ns
    for piece in sorted(slices, key=lambda one: (one.start_ns, one.end_ns)):
        piece.start_ns = max(piece.start_ns, at)
        piece.end_ns = min(piece.end_ns, end_ns)
        if piece.end_ns > piece.start_ns:
            kept.append(piece)
            at = piece.end_ns
    return kept


class Trace:
    """Collects events; `events()` gives them in the order an importer wants."""

    def __init__(self, real: Iterable[int]) -> None:
        """`real`: pids of the real processes to come, first owners of the same tids."""
        self._owner: dict[int, int] = {task: task for task in real}
        self._next = SYNTHETIC
        self._arrows = 0
        self._metadata: list[bytes] = []
        self._timed: list[tuple[int, int, int, bytes]] = []
        self._named: set[tuple[int, int | None]] = set()

    def process(self, name: str, sort: int, pid: int | None = None) -> int:
        """A process, synthetic unless `pid` is given; named once."""
        if pid is None:
            pid = self._number()
            self._owner[pid] = pid
        if (pid, None) not in self._named:
            self._named.add((pid, None))
            self._meta("process_name", pid, pid, {"name": name})
            self._meta("process_sort_index", pid, pid, {"sort_index": sort})
        return pid

    def thread(self, pid: int, name: str, sort: int | None = None) -> Track:
        """A new synthetic thread of a process."""
        tid = self._number()
        self._owner[tid] = pid
        return self._name(Track(pid, tid), name, sort)

    def real_thread(self, pid: int, tid: int, name: str) -> Track:
        """The track of a real thread, or a synthetic one where the tid is another's."""
        if not 0 < tid <= MAX_ID or self._owner.setdefault(tid, pid) != pid:
            return self.thread(pid, name)
        return self._name(Track(pid, tid), name, None)

    def _number(self) -> int:
        while self._next in self._owner:
            self._next += 1
        self._next += 1
        return self._next - 1

    def _name(self, track: Track, name: str, sort: int | None) -> Track:
        if (track.pid, track.tid) not in self._named:
            self._named.add((track.pid, track.tid))
            self._meta("thread_name", track.pid, track.tid, {"name": name})
            if sort is not None:
                self._meta("thread_sort_index", track.pid, track.tid, {"sort_index": sort})
        return track

    def _meta(self, name: str, pid: int, tid: int, args: Args) -> None:
        event = {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}
        self._metadata.append(_text(event))

    def _add(self, ns: int, rank: int, tie: int, event: Event) -> None:
        self._timed.append((ns, rank, tie, _text({**event, "ts": microseconds(ns)})))

    def slice(self, piece: Slice, track: Track) -> None:
        """Put a slice and all inside it on a track where they nest."""
        piece.track = track
        length = piece.end_ns - piece.start_ns
        event = {
            "ph": "X",
            "name": piece.name,
            "cat": piece.cat,
            "pid": track.pid,
            "tid": track.tid,
            "dur": microseconds(length),
        }
        if piece.args:
            event["args"] = piece.args
        self._add(piece.start_ns, 0, -length, event)
        for inner in piece.inside:
            self.slice(inner, track)

    def instant(self, ns: int, name: str, track: Track, cat: str, args: Args | None = None) -> None:
        """A moment on a thread."""
        event: Event = {
            "ph": "i",
            "s": "t",
            "name": name,
            "cat": cat,
            "pid": track.pid,
            "tid": track.tid,
        }
        if args:
            event["args"] = args
        self._add(ns, 1, 0, event)

    def counter(self, ns: int, name: str, pid: int, values: dict[str, int | float]) -> None:
        """Values of counters of a process from `ns` on."""
        self._add(ns, 1, 0, {"ph": "C", "name": name, "pid": pid, "args": values})

    def arrow(self, name: str, source: Slice, target: Slice) -> None:
        """A flow from one placed slice to the beginning of another, or as near as both allow."""
        end = max(target.start_ns, source.start_ns)
        start = min(end, source.end_ns - 1)
        if source.track is None or target.track is None:
            return
        if not (source.holds(start) and target.holds(end)):
            return
        self._arrows += 1
        common = {"name": name, "cat": "flow", "id": self._arrows}
        for rank, ph, ns, track in ((2, "s", start, source.track), (3, "f", end, target.track)):
            event = {"ph": ph, **common, "pid": track.pid, "tid": track.tid}
            if ph == "f":
                event["bp"] = "e"
            self._add(ns, rank, 0, event)

    def events(self) -> Iterator[bytes]:
        """Metadata first, then by time; at one time parents before children before arrows."""
        self._timed.sort(key=lambda one: one[:3])
        yield from self._metadata
        for _, _, _, event in self._timed:
            yield event


def spread(
    trace: Trace,
    slices: Iterable[Slice],
    make: Callable[[int], Track],
    around: Sequence[Slice] = (),
) -> None:
    """Put slices on as many threads as they need so that no two of one thread overlap.

    `make(n)` gives the nth thread. The first one may also carry the slices `around`, which
    must enclose what is put there or lie apart from it; those that cannot be are moved too.
    """
    lanes: list[tuple[Track, int]] = []
    for piece in sorted(slices, key=lambda one: (one.start_ns, -one.end_ns)):
        for n, (_, free) in enumerate(lanes):
            if free <= piece.start_ns and (n > 0 or _fits(piece, around)):
                break
        else:
            if not lanes and not _fits(piece, around):
                lanes.append((make(0), piece.start_ns))
            n = len(lanes)
            lanes.append((make(n), piece.start_ns))
        track = lanes[n][0]
        lanes[n] = (track, piece.end_ns)
        trace.slice(piece, track)


def _fits(piece: Slice, around: Sequence[Slice]) -> bool:
    return all(
        (outer.start_ns <= piece.start_ns and piece.end_ns <= outer.end_ns)
        or piece.end_ns <= outer.start_ns
        or outer.end_ns <= piece.start_ns
        for outer in around
    )
