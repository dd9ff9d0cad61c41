"""Watched processes, their ports and servers, as records tell of them. Pure and bounded.

Process ids are reused, so a tgid has incarnations; records may arrive out of order and are
put to the incarnation they fit in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tracer.evidence import Life
from tracer.records import (
    AnyRecord,
    Command,
    Exec,
    Exit,
    Fork,
    Listen,
    Process,
    Server,
    Signal,
    Unlisten,
)

MAX_PROCESSES = 2048
MAX_INCARNATIONS = 4
MAX_SIGNALS = 16
MAX_PER_PORT = 8
MAX_PORTS = 1024
MAX_DEPTH = 64


def same_netns(a: int, b: int) -> bool:
    """Whether two network namespaces may be the same; 0 is unknown."""
    return a == b or 0 in (a, b)


@dataclass(slots=True, eq=False)
class Proc:
    """One incarnation of a process. `ready_ns`: first proof that it can serve a prompt."""

    tgid: int
    found: Process | None = None
    fork: Fork | None = None
    exec: Exec | None = None
    exit: Exit | None = None
    signals: list[Signal] = field(default_factory=list)
    listen_ns: int | None = None
    ready_ns: int | None = None

    @property
    def born_ns(self) -> int | None:
        """When it began, as far as known (seen fork, or what /proc says)."""
        if self.fork is not None:
            return self.fork.ts_ns
        return self.found.start_ns if self.found is not None else None

    @property
    def first_ns(self) -> int | None:
        """The earliest time at which it is known to have existed."""
        times = [
            t
            for t in (
                self.born_ns,
                self.found.ts_ns if self.found else None,
                self.exec.ts_ns if self.exec else None,
                self.exit.ts_ns if self.exit else None,
            )
            if t is not None
        ]
        return min(times) if times else None

    @property
    def ppid(self) -> int:
        if self.fork is not None:
            return self.fork.parent
        return self.found.ppid if self.found is not None else 0

    @property
    def command(self) -> Command | None:
        if self.exec is not None:
            return self.exec.command
        return self.found.command if self.found is not None else None

    @property
    def comm(self) -> str:
        for source in (self.exec, self.found, self.fork):
            if source is not None:
                return source.comm
        return ""

    def alive_at(self, ts_ns: int) -> bool:
        born = self.born_ns
        return (born is None or born <= ts_ns) and (self.exit is None or self.exit.ts_ns > ts_ns)

    def life(self) -> Life:
        """The process as evidence."""
        exe = self.exec.exe if self.exec else self.found.exe if self.found else None
        return Life(
            tgid=self.tgid,
            ppid=self.ppid,
            comm=self.comm,
            exe=exe,
            command=self.command,
            start_ns=self.born_ns,
            fork_ns=self.fork.ts_ns if self.fork else None,
            exec_ns=self.exec.ts_ns if self.exec else None,
            listen_ns=self.listen_ns,
            exit_ns=self.exit.ts_ns if self.exit else None,
            exit_code=self.exit.code if self.exit else None,
            exit_signal=self.exit.signal if self.exit else None,
            signals=tuple(self.signals),
        )

    def records(self) -> Iterator[AnyRecord]:
        """The records this incarnation can be rebuilt from."""
        for record in (self.found, self.fork, self.exec):
            if record is not None:
                yield record
        yield from self.signals
        if self.exit is not None:
            yield self.exit


class Processes:
    """All incarnations of all watched processes."""

    def __init__(self) -> None:
        self._by_tgid: dict[int, list[Proc]] = {}
        self.dropped = 0

    def __iter__(self) -> Iterator[Proc]:
        for procs in self._by_tgid.values():
            yield from procs

    def at(self, tgid: int | None, ts_ns: int) -> Proc | None:
        """The incarnation that had this tgid at `ts_ns`, else the one nearest in time."""
        procs = self._by_tgid.get(tgid) if tgid is not None else None
        if not procs:
            return None
        for proc in reversed(procs):
            born = proc.born_ns
            if born is None or born <= ts_ns:
                return proc
        return procs[0]

    def latest(self, tgid: int) -> Proc | None:
        procs = self._by_tgid.get(tgid)
        return procs[-1] if procs else None

    def parent(self, proc: Proc) -> Proc | None:
        return self.at(proc.ppid, proc.first_ns or 0)

    def lineage(self, proc: Proc) -> Iterator[Proc]:
        """The process, its parent, and so on, as far as known."""
        seen: Proc | None = proc
        for _ in range(MAX_DEPTH):
            if seen is None:
                return
            yield seen
            seen = self.parent(seen)

    def under(self, proc: Proc, front: int) -> bool:
        """Whether `proc` is the process `front` or a descendant of it."""
        return any(one.tgid == front for one in self.lineage(proc))

    def feed(self, record: Process | Fork | Exec | Exit | Signal) -> None:
        match record:
            case Process():
                self._found(record)
            case Fork():
                self._fork(record)
            case Exec():
                self._exec(record)
            case Exit():
                proc = self._fitting(record.tgid, record.ts_ns)
                if proc.exit is None:
                    proc.exit = record
            case Signal():
                target = self.at(record.target, record.ts_ns)
                if target is not None:
                    target.signals.append(record)
                    del target.signals[:-MAX_SIGNALS]

    def _found(self, record: Process) -> None:
        proc = self.latest(record.tgid)
        if proc is None or (proc.exit is not None and proc.exit.ts_ns < record.start_ns):
            proc = self._new(record.tgid)
        proc.found = record

    def _fork(self, record: Fork) -> None:
        proc = self.latest(record.child)
        if proc is not None and proc.fork is not None and record.ts_ns <= proc.fork.ts_ns:
            return
        first = proc.first_ns if proc is not None else None
        # Its own exec, exit or discovery may have been read before the fork.
        late = (
            proc is not None
            and proc.fork is None
            and (
                first is None
                or record.ts_ns <= (proc.found.ts_ns if proc.found is not None else first)
            )
        )
        if proc is None or not late:
            proc = self._new(record.child)
        proc.fork = record

    def _exec(self, record: Exec) -> None:
        proc = self._fitting(record.tgid, record.ts_ns)
        if proc.exec is None or record.ts_ns >= proc.exec.ts_ns:
            proc.exec = record

    def _fitting(self, tgid: int, ts_ns: int) -> Proc:
        proc = self.at(tgid, ts_ns)
        if proc is None or (proc.exit is not None and proc.exit.ts_ns < ts_ns):
            return self._new(tgid)
        return proc

    def _new(self, tgid: int) -> Proc:
        procs = self._by_tgid.setdefault(tgid, [])
        procs.append(Proc(tgid))
        if len(procs) > MAX_INCARNATIONS:
            del procs[0]
        return procs[-1]

    def prune(self, horizon_ns: int) -> list[int]:
        """Forget what died before `horizon_ns` and is nobody's ancestor; gone tgids."""
        living = [p for p in self if p.exit is None or p.exit.ts_ns >= horizon_ns]
        over = len(living) - MAX_PROCESSES
        if over > 0:
            living = living[over:]
            self.dropped += over
        keep = {id(one) for proc in living for one in self.lineage(proc)}
        gone = []
        for tgid, procs in list(self._by_tgid.items()):
            procs[:] = [p for p in procs if id(p) in keep]
            if not procs:
                del self._by_tgid[tgid]
                gone.append(tgid)
        return gone

    def records(self) -> Iterator[AnyRecord]:
        for proc in self:
            yield from proc.records()


def _owner(record: Listen | Unlisten) -> int | None:
    """Who listens; None: nobody any more."""
    return record.tgid if isinstance(record, Listen) else None


def _make_room(kept: dict[int, Any], owners: dict[int, int | None]) -> None:
    """Forget some ports: those closed, the oldest first, then of who has most: one that opens very
    many is not to make others' forgotten."""
    count = Counter(owners.values())
    ages = {port: age for age, port in enumerate(kept)}
    order = sorted(kept, key=lambda port: (
        owners[port] is not None, -count[owners[port]], ages[port],
    ))  # fmt: skip
    for port in order[: MAX_PORTS // 8]:
        del kept[port]


class Ports:
    """Who listens where, and which ports are the fronts of servers."""

    def __init__(self, procs: Processes) -> None:
        self._procs = procs
        self._listens: dict[int, list[Listen | Unlisten]] = {}
        self._servers: dict[int, list[Server]] = {}

    def feed(self, record: Listen | Unlisten | Server) -> None:
        match record:
            case Listen() | Unlisten():
                self._listens.setdefault(record.port, []).append(record)
                self._trim_port(record.port)
                if isinstance(record, Listen):
                    self._note_listen(record)
            case Server():
                self._server(record)

    def _trim_port(self, port: int) -> None:
        known = self._listens[port]
        if len(known) > MAX_PER_PORT:
            del known[0]
        if len(self._listens) > MAX_PORTS:
            owners = {port: _owner(known[-1]) for port, known in self._listens.items()}
            _make_room(self._listens, owners)

    def _note_listen(self, record: Listen) -> None:
        proc = self._procs.at(record.tgid, record.ts_ns)
        if proc is not None and (proc.listen_ns is None or record.ts_ns < proc.listen_ns):
            proc.listen_ns = record.ts_ns

    def _server(self, record: Server) -> None:
        known = self._servers.setdefault(record.port, [])
        same = [
            i
            for i, s in enumerate(known)
            if (s.name, s.tgid, s.netns) == (record.name, record.tgid, record.netns)
        ]
        if len(same) > 1:  # the first says since when it is watched, the last what it is
            del known[same[-1]]
        known.append(record)
        if len(known) > MAX_PER_PORT:
            del known[0]
        if len(self._servers) > MAX_PORTS:
            owners = {port: self._front(servers[-1]) for port, servers in self._servers.items()}
            _make_room(self._servers, owners)

    def _front(self, server: Server) -> int | None:
        """Whose port it is; None: nobody's any more."""
        proc = self._procs.latest(server.tgid)
        told = self._listens.get(server.port)
        over = bool(told) and told is not None and _owner(told[-1]) is None
        return None if over or (proc is not None and proc.exit is not None) else server.tgid

    def prune(self, gone: Iterable[int]) -> None:
        """Forget what processes listened on that are forgotten themselves."""
        tgids = set(gone)
        if not tgids:
            return
        for port, known in list(self._listens.items()):
            if all(isinstance(r, Unlisten) or r.tgid in tgids for r in known):
                del self._listens[port]

    def listener(self, netns: int, port: int, ts_ns: int) -> int | None:
        """The process that listened on a port at `ts_ns`, else the nearest known in time."""
        owner: int | None = None
        later: int | None = None
        for record in self._listens.get(port, ()):
            if not isinstance(record, Listen) or not same_netns(record.netns, netns):
                continue
            if record.ts_ns <= ts_ns:
                owner = record.tgid
            elif later is None:
                later = record.tgid
        return owner if owner is not None else later

    def server_at(self, netns: int, port: int, ts_ns: int) -> Server | None:
        """The server whose front owns a port, as of `ts_ns`."""
        fits = [s for s in self._servers.get(port, ()) if same_netns(s.netns, netns)]
        exact = [s for s in fits if s.netns == netns]
        if not exact and len({s.netns for s in fits}) > 1:
            return None
        best: Server | None = None
        for server in exact or fits:
            front = self._procs.at(server.tgid, ts_ns)
            if best is None or front is None or front.alive_at(ts_ns):
                best = server
        return best

    def top(self, server: Server, ts_ns: int) -> Server:
        """The server in whose tree this one is after all: it was found while the other did not yet
        say what it is."""
        front = self._procs.at(server.tgid, ts_ns)
        line = () if front is None else self._procs.lineage(front)
        above = [one.tgid for one in line if one is not front and one.alive_at(ts_ns)]
        fronts = {s.tgid: s for known in self._servers.values() for s in known} if above else {}
        return next((fronts[tgid] for tgid in reversed(above) if tgid in fronts), server)

    def server_of(self, proc: Proc, ts_ns: int) -> Server | None:
        """The server in whose tree a process is; the nearest front wins."""
        fronts = {s.tgid: s for servers in self._servers.values() for s in servers}
        for one in self._procs.lineage(proc):
            if one.tgid in fronts:
                return fronts[one.tgid]
        return None

    def began_ns(self, server: Server) -> int:
        """Since when the server is watched: its discovery, or its start where that was seen."""
        times = [
            s.ts_ns
            for s in self._servers.get(server.port, ())
            if s.tgid == server.tgid and s.netns == server.netns
        ]
        front = self._procs.at(server.tgid, server.ts_ns)
        if front is not None and front.fork is not None:
            times.append(front.fork.ts_ns)
        elif front is not None and front.exec is not None:
            times.append(front.exec.ts_ns)
        return min(times, default=server.ts_ns)

    def records(self) -> Iterator[AnyRecord]:
        for listens in self._listens.values():
            yield from listens
        for servers in self._servers.values():
            yield from servers
