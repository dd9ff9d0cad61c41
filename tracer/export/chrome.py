"""Requests to Chrome trace JSON, to be opened in Perfetto.

One synthetic process per server carries its requests and the counters of its weights; each
process of the server has its own with its threads and what they did to files, and beside it
a synthetic one with its hops and its work as the timeline claims it. Times are absolute
CLOCK_MONOTONIC, in microseconds with three decimals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tracer.answers import dumps
from tracer.derived import Derived, Interval
from tracer.evidence import Life
from tracer.export import counters
from tracer.export.requests import hop_slice, marks, request_slice, union, work_of
from tracer.export.shared import Shared, began, merge
from tracer.export.tracks import MAX_ID, Slice, Trace, Track, spread
from tracer.records import DeviceCall, Open, Span

SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    6: "SIGABRT",
    7: "SIGBUS",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    17: "SIGCHLD",
    18: "SIGCONT",
    19: "SIGSTOP",
}


PIECE = 64 << 10


def pieces(items: Sequence[Derived]) -> Iterator[bytes]:
    """Requests as a trace file, which is put together before the first piece is asked for."""
    return _pieces(items, _build(items))


def dump(items: Sequence[Derived]) -> bytes:
    """Requests as the bytes of a trace file."""
    return b"".join(pieces(items))


def _pieces(items: Sequence[Derived], whole: Trace) -> Iterator[bytes]:
    about = {
        "displayTimeUnit": "ms",
        "otherData": {
            "schema": 1,
            "producer": "ttft",
            "clock": "CLOCK_MONOTONIC",
            "wall_offset_ns": items[-1].evidence.wall_offset_ns if items else None,
            "requests": [item.evidence.id for item in items],
        },
    }
    piece = bytearray(dumps(about)[:-1] + b',"traceEvents":[')
    for n, event in enumerate(whole.events()):
        piece += b"," + event if n else event
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece + b"]}")


def _build(items: Sequence[Derived]) -> Trace:
    shared = merge(items)
    tgids = _tgids(shared)
    whole = Trace(tgids)
    by_server: defaultdict[str, list[Derived]] = defaultdict(list)
    for item in items:
        by_server[item.evidence.server].append(item)
    requests: dict[int, Slice] = {}
    for n, (server, mine) in enumerate(by_server.items()):
        pid = whole.process(f"requests of {server}", n)
        requests |= _requests(whole, pid, mine)
        counters.of_weights(whole, merge(mine), pid)
    for n, tgid in enumerate(tgids):
        _process(whole, len(by_server) + 2 * n, tgid, shared)
    counters.of_memory(whole, shared, tgids)
    last = len(by_server) + 2 * len(tgids)
    _work(whole, last, items, requests, shared)
    counters.of_devices(whole, shared, tgids, last + 1)
    return whole


def _tgids(shared: Shared) -> list[int]:
    """The real processes, fronts first, that can have tracks."""
    seen = {*shared.lives, *shared.threads}
    return sorted(
        (tgid for tgid in seen if 0 < tgid <= MAX_ID),
        key=lambda tgid: (not shared.roles.get(tgid, "").startswith("front"), tgid),
    )


def _requests(whole: Trace, pid: int, items: Sequence[Derived]) -> dict[int, Slice]:
    """The requests of a server on as many tracks as were served at once, by id() of the item."""
    slices = {id(item): request_slice(item) for item in items}
    spread(whole, slices.values(), lambda n: whole.thread(pid, f"requests {n + 1}", n))
    for item in items:
        track = slices[id(item)].track
        if track is not None:
            marks(whole, item, track)
    return slices


def _process(whole: Trace, sort: int, tgid: int, shared: Shared) -> None:
    """A real process: its life, its threads, what they did to files."""
    lives = shared.lives.get(tgid, [])
    comm = lives[-1].comm if lives else "process"
    role = shared.roles.get(tgid)
    whole.process(f"{comm} ({role})" if role else comm, sort, tgid)
    overflow = _Overflow(whole, f"{comm} {tgid}: further tracks", sort + 1)
    around = _lives(whole, tgid, comm, lives, shared)
    for tid, did in sorted(shared.threads.get(tgid, {}).items()):
        main = tid == tgid
        track = whole.real_thread(tgid, tid, comm if main else f"thread {tid}")
        spans = [_span_slice(one, shared) for one in did if isinstance(one, Span)]
        spans += [_driver_slice(one) for one in did if isinstance(one, DeviceCall)]
        further = partial(overflow.lane, track, tid)
        spread(whole, spans, further, around if main else ())
        for one in did:
            if isinstance(one, Open):
                label = shared.label(one.dev, one.ino)
                whole.instant(one.ts_ns, f"open {label}", track, "file", {"inode": one.ino})


class _Overflow:
    """The synthetic process for slices that overlap on a real thread; made when needed."""

    def __init__(self, whole: Trace, name: str, sort: int) -> None:
        self._whole, self._name, self._sort = whole, name, sort
        self._pid: int | None = None

    def lane(self, first: Track, tid: int, n: int) -> Track:
        """The nth track of a real thread whose own track is `first`."""
        if n == 0:
            return first
        if self._pid is None:
            self._pid = self._whole.process(self._name, self._sort)
        return self._whole.thread(self._pid, f"thread {tid}")


def _span_slice(span: Span, shared: Shared) -> Slice:
    file = shared.files.get((span.dev, span.ino))
    args = {
        "file": file.path if file is not None else None,
        "inode": span.ino,
        "count": span.count,
        "bytes": span.bytes,
        "busy_ms": round(span.busy_ns / 1e6, 6),
    }
    if span.op == "mmap":
        args["populate"] = span.populate
    if span.advice is not None:
        args["advice"] = span.advice
    name = f"{span.op} {shared.label(span.dev, span.ino)}"
    return Slice(span.ts_ns, max(span.end_ns, span.ts_ns), name, "file", args)


def _driver_slice(call: DeviceCall) -> Slice:
    """A call into a driver that took long, or a run of like ones."""
    args = {
        "driver": call.driver,
        "count": call.count,
        "failed": call.failed,
        "bytes": call.bytes,
        "busy_ms": round(call.busy_ns / 1e6, 6),
        "number": None if call.number is None else hex(call.number),
    }
    name = f"{call.what} {call.device}"
    return Slice(call.ts_ns, max(call.end_ns, call.ts_ns), name, "driver", args)


def _lives(whole: Trace, tgid: int, comm: str, lives: list[Life], shared: Shared) -> list[Slice]:
    """Lifetimes on the main thread, cut to the time of the trace; gives the slices placed."""
    placed: list[Slice] = []
    if not lives:
        return placed
    track = whole.real_thread(tgid, tgid, comm)
    at = shared.start_ns
    for life in lives:
        begin = began(life)
        start = max(at, begin if begin is not None else at)
        end = life.exit_ns if life.exit_ns is not None else max(shared.end_ns, start)
        if end < start:
            continue
        args = {
            "exe": life.exe,
            "parent": life.ppid,
            "program": life.command.program if life.command is not None else None,
            "model": life.command.model if life.command is not None else None,
            "exit_code": life.exit_code,
            "exit_signal": life.exit_signal,
            "began_before": begin is None or begin < start,
        }
        piece = Slice(start, end, f"process {life.comm}", "process", args)
        whole.slice(piece, track)
        placed.append(piece)
        at = end
        _moments(whole, life, track, shared.start_ns)
    return placed


def _moments(whole: Trace, life: Life, track: Track, start_ns: int) -> None:
    moments: list[tuple[int | None, str, dict[str, Any]]] = [
        (life.fork_ns, "fork", {"parent": life.ppid}),
        (life.exec_ns, "exec", {"exe": life.exe}),
        (life.listen_ns, "listen", {}),
        (life.exit_ns, "exit", {"code": life.exit_code, "signal": life.exit_signal}),
    ]
    for signal in life.signals:
        name = SIGNALS.get(signal.signal, f"signal {signal.signal}")
        moments.append((signal.ts_ns, name, {"sender": signal.sender}))
    for ns, name, args in moments:
        if ns is not None and ns >= start_ns:
            whole.instant(ns, name, track, "process", args)


def _work(
    whole: Trace,
    sort: int,
    items: Sequence[Derived],
    requests: dict[int, Slice],
    shared: Shared,
) -> None:
    """Hops and claimed work on tracks of their own, and the arrows that lead there."""
    hops: defaultdict[int, list[Slice]] = defaultdict(list)
    claims: defaultdict[tuple[int, str], list[Interval]] = defaultdict(list)
    arrows: list[tuple[str, Slice, Slice]] = []
    for item in items:
        hop = hop_slice(item)
        if hop is not None and item.evidence.runner is not None:
            hops[item.evidence.runner].append(hop)
            arrows.append(("hop", requests[id(item)], hop))
        for tgid, phase, claim in work_of(item):
            claims[tgid, phase].append(claim)
    work = {key: union(mine) for key, mine in claims.items()}
    for item in items:
        for phase in ("load", "prefill"):
            target = _first_work(item, phase, work)
            if target is not None:
                arrows.append((phase, requests[id(item)], target))
    for tgid in sorted({*hops, *(tgid for tgid, _ in work)}):
        role = shared.roles.get(tgid, "process")
        pid = whole.process(f"work of {tgid} ({role})", sort)
        mine = {phase: pieces for (owner, phase), pieces in work.items() if owner == tgid}
        for n, (name, pieces) in enumerate([("hops", hops[tgid]), *sorted(mine.items())]):
            _lanes(whole, pid, name, n, pieces)
    for name, source, goal in arrows:
        whole.arrow(name, source, goal)


def _first_work(
    item: Derived, phase: str, work: dict[tuple[int, str], list[Slice]]
) -> Slice | None:
    """The slice in which the first work of a phase for a request lies."""
    mine = [(claim.start_ns, tgid, claim) for tgid, kind, claim in work_of(item) if kind == phase]
    if not mine:
        return None
    start, tgid, claim = min(mine, key=lambda one: one[0])
    pieces = work[tgid, phase]
    return next((one for one in pieces if one.name == claim.stage and one.holds(start)), None)


def _lanes(whole: Trace, pid: int, name: str, sort: int, pieces: Sequence[Slice]) -> None:
    spread(whole, pieces, lambda _: whole.thread(pid, name, sort))
