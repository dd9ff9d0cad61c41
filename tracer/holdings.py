"""What memory of devices processes have right now, as far as that is known. Pure.

It was read while a request waited. Since then it may have been given back: with the process, by
another program in its place, at somebody's request, or because the server was idle for as long as
it was told to. What may have changed is unknown until it is read again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tracer.arming import controls
from tracer.http.endpoints import is_inference
from tracer.records import (
    AnyRecord,
    Command,
    Exec,
    Exit,
    File,
    Fork,
    HttpEnd,
    HttpRequest,
    Listen,
    Process,
    Span,
    Telemetry,
    Unlisten,
)

_MIB = 1 << 20
_SLEEPS = "sleep-idle-seconds="
#: Requests without an end, and weight files, that are kept in mind.
_MOST = 4096


@dataclass(slots=True)
class _Proc:
    """`since_ns`: before it, what the number had was another program's. `bytes`: by device."""

    since_ns: int
    parent: int
    command: Command | None = None
    bytes: dict[str, int | None] = field(default_factory=dict)
    read_ns: int = 0


@dataclass(slots=True)
class _Asked:
    """What a server works on, and when it last ended something."""

    open: set[int] = field(default_factory=set)
    heard_ns: int = 0


class Holdings:
    """Fed with all records."""

    def __init__(self) -> None:
        self._procs: dict[int, _Proc] = {}
        self._owners: dict[tuple[int, int], int] = {}
        self._weights: dict[tuple[int, int], None] = {}
        self._servers: dict[int, _Asked] = {}
        self._talks: dict[int, int] = {}

    def of(self, tgid: int, now_ns: int) -> int | None:
        """Bytes that a process has, None where that is not known."""
        proc = self._procs.get(tgid)
        if proc is None or not proc.bytes or self._sleeps(tgid, proc, now_ns):
            return None
        sizes = [size for size in proc.bytes.values() if size is not None]
        return sum(sizes) if len(sizes) == len(proc.bytes) else None

    def feed(self, record: AnyRecord) -> None:
        """Take in one record."""
        match record:
            case Telemetry():
                self._read(record)
            case Process() | Fork() | Exec() | Exit():
                self._process(record)
            case Listen():
                self._owners[record.netns, record.port] = record.tgid
            case Unlisten():
                self._owners.pop((record.netns, record.port), None)
            case File() if record.fmt is not None:
                self._weigh((record.dev, record.ino))
            case Span():
                self._unmapped(record)
            case HttpRequest():
                self._asked(record)
            case HttpEnd():
                self._over(record.xid, record.ts_ns)
            case _:
                pass

    def _process(self, record: Process | Fork | Exec | Exit) -> None:
        match record:
            case Process():
                self._found(record)
            case Fork():
                self._procs[record.child] = _Proc(record.ts_ns, record.parent)
            case Exec():
                before = self._procs.get(record.tgid)
                parent = before.parent if before is not None else 0
                self._procs[record.tgid] = _Proc(record.ts_ns, parent, record.command)
            case Exit():
                self._procs.pop(record.tgid, None)
                self._servers.pop(record.tgid, None)
                self._owners = {k: t for k, t in self._owners.items() if t != record.tgid}

    def _found(self, record: Process) -> None:
        """One that is known already may be found again."""
        found = _Proc(min(record.start_ns, record.ts_ns), record.ppid, record.command)
        known = self._procs.get(record.tgid)
        if known is not None and known.read_ns >= record.start_ns:
            found.bytes, found.read_ns = known.bytes, known.read_ns
        self._procs[record.tgid] = found

    def _read(self, record: Telemetry) -> None:
        for holder in record.holders:
            proc = self._procs.get(holder.tgid)
            if proc is not None and record.ts_ns >= proc.since_ns:
                proc.bytes[record.device] = holder.memory_bytes
                proc.read_ns = max(proc.read_ns, record.ts_ns)

    def _weigh(self, key: tuple[int, int]) -> None:
        self._weights.pop(key, None)
        self._weights[key] = None
        while len(self._weights) > _MOST:
            del self._weights[next(iter(self._weights))]

    def _unmapped(self, span: Span) -> None:
        """Weights were put away: what went to the device may go with them."""
        if span.op == "munmap" and span.bytes >= _MIB and (span.dev, span.ino) in self._weights:
            self._doubt(span.tgid, span.ts_ns)

    def _asked(self, record: HttpRequest) -> None:
        owner = self._owners.get((record.conn.netns, record.conn.server_port))
        if owner is None:
            return
        root = self._root(owner)
        if controls(record):
            for tgid in [t for t in self._procs if self._root(t) == root]:
                self._doubt(tgid, record.ts_ns)
        elif is_inference(record.endpoint):
            self._servers.setdefault(root, _Asked()).open.add(record.xid)
            self._talks[record.xid] = root
            while len(self._talks) > _MOST:
                self._over(next(iter(self._talks)), record.ts_ns)

    def _over(self, xid: int, ts_ns: int) -> None:
        server = self._servers.get(self._talks.pop(xid, 0))
        if server is not None:
            server.open.discard(xid)
            server.heard_ns = max(server.heard_ns, ts_ns)

    def _doubt(self, tgid: int, ts_ns: int) -> None:
        proc = self._procs.get(tgid)
        if proc is not None and proc.read_ns <= ts_ns:
            proc.bytes = dict.fromkeys(proc.bytes)

    def _sleeps(self, tgid: int, proc: _Proc, now_ns: int) -> bool:
        """Whether it may have put its model away since it was last asked for something."""
        after_s = _sleeps_after(proc.command)
        server = self._servers.get(self._root(tgid))
        if after_s is None or (server is not None and server.open):
            return False
        heard_ns = max(proc.read_ns, server.heard_ns if server is not None else 0)
        return now_ns - heard_ns >= after_s * 1_000_000_000

    def _root(self, tgid: int) -> int:
        """The process at the top of its tree, as far as watched."""
        seen = {tgid}
        while (proc := self._procs.get(tgid)) and proc.parent in self._procs:
            if proc.parent in seen:
                break
            seen.add(tgid := proc.parent)
        return tgid


def _sleeps_after(command: Command | None) -> int | None:
    """Seconds without work after which a server puts its model away; None: it never does."""
    for option in command.options if command is not None else ():
        digits = option.removeprefix(_SLEEPS)
        if digits != option and digits.isascii() and digits.isdigit():
            return int(digits)
    return None
