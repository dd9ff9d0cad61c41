"""What is known right now of servers and models, for `status` and `models`.

Fed by the engine's thread, asked by others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

from tracer.answers_state import ModelSeen, WatchedServer
from tracer.derived import Derived
from tracer.holdings import Holdings
from tracer.records import (
    AnyRecord,
    Exec,
    Exit,
    File,
    Fork,
    HttpRequest,
    HttpUnreadable,
    Listen,
    Process,
    Resident,
    Server,
    Unlisten,
    Unreadable,
)

_MODELS_LIMIT = 1000


@dataclass
class _Front:
    server: Server
    unreadable: Unreadable | None = None
    model: str | None = None
    requests: int = 0


@dataclass
class _Model:
    """`runners`: processes that hold it; None: not known, as of one that took up another since."""

    last_use_ns: int
    weights: tuple[tuple[int, int], ...] = ()
    names: tuple[str, ...] = ()
    size: int | None = None
    runners: set[int] | None = None


class Overview:
    """The present. `last_used`: (server, model) to wall clock ns, from the history."""

    def __init__(self, last_used: dict[tuple[str, str], int]) -> None:
        self._lock = threading.Lock()
        #: By where they listen, then by process; and where each process does.
        self._fronts: dict[tuple[int, int], dict[int, _Front]] = {}
        self._ports: dict[int, set[tuple[int, int]]] = {}
        self._listeners: Counter[tuple[int, int]] = Counter()
        self._cached: dict[tuple[int, int], int] = {}
        self._alive: set[int] = set()
        self._holdings = Holdings()
        self._models = {key: _Model(last_use_ns=ns) for key, ns in last_used.items()}

    def records(self, records: list[AnyRecord]) -> None:
        with self._lock:
            for record in records:
                self._record(record)

    def derived(self, derived: list[Derived]) -> None:
        with self._lock:
            for item in derived:
                self._request(item)

    def servers(self) -> tuple[WatchedServer, ...]:
        with self._lock:
            return tuple(
                WatchedServer(
                    name=f.server.name,
                    program=f.server.program,
                    pid=f.server.tgid,
                    port=f.server.port,
                    unreadable=f.unreadable,
                    model=f.model,
                    requests=f.requests,
                )
                for fronts in self._fronts.values()
                for f in fronts.values()
            )

    def models(self, now_ns: int | None = None) -> list[ModelSeen]:
        """`now_ns`: on the monotonic clock, if not the present."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        with self._lock:
            return [
                self._seen(server, model, known, now)
                for (server, model), known in sorted(self._models.items())
            ]

    def _seen(self, server: str, model: str, known: _Model, now_ns: int) -> ModelSeen:
        shares = [self._cached.get(key) for key in known.weights]
        cached = sum(s for s in shares if s is not None) if shares and None not in shares else None
        pids = None if known.runners is None else tuple(sorted(known.runners & self._alive))
        return ModelSeen(
            server=server,
            model=model,
            last_use_wall_ns=known.last_use_ns,
            weights=known.names,
            size_bytes=known.size,
            cached_bytes=cached,
            vram_bytes=self._vram(pids or (), now_ns),
            pids=pids,
        )

    def _vram(self, tgids: tuple[int, ...], now_ns: int) -> int | None:
        """Memory that these processes have of devices, where it is known of each."""
        found = [self._holdings.of(tgid, now_ns) for tgid in tgids]
        known = [size for size in found if size is not None]
        return sum(known) if known and len(known) == len(found) else None

    def _record(self, record: AnyRecord) -> None:
        self._holdings.feed(record)
        match record:
            case Server():
                key = (record.netns, record.port)
                self._fronts.setdefault(key, {})[record.tgid] = _Front(record, record.unreadable)
                self._ports.setdefault(record.tgid, set()).add(key)
            case Process():
                self._alive.add(record.tgid)
            case Fork():
                self._alive.add(record.child)
            case Exec():
                self._alive.add(record.tgid)
                self._let_go(record.tgid)
            case Listen():
                self._alive.add(record.tgid)
                self._listeners[record.netns, record.port] += 1
            case Exit():
                self._exit(record.tgid)
            case Unlisten():
                self._close(record.netns, record.port)
            case Resident():
                self._cached[record.dev, record.ino] = record.cached_bytes
            case HttpUnreadable() | HttpRequest():
                self._heard(record)
            case _:
                pass

    def _heard(self, record: HttpUnreadable | HttpRequest) -> None:
        front = self._front(record.conn.netns, record.conn.server_port)
        if front is None:
            return
        if isinstance(record, HttpRequest):
            if front.unreadable != "compressed":
                front.unreadable = None
        # One connection older than us says nothing about the server.
        elif record.why not in ("old_connection", "gap"):
            front.unreadable = record.why

    def _exit(self, tgid: int) -> None:
        self._alive.discard(tgid)
        self._let_go(tgid)
        for key in self._ports.pop(tgid, ()):
            fronts = self._fronts[key]
            del fronts[tgid]
            if not fronts:
                del self._fronts[key]
            self._listeners.pop(key, None)

    def _let_go(self, tgid: int) -> None:
        """What the process held it holds no more, whoever gets its number next."""
        for model in self._models.values():
            if model.runners is not None:
                model.runners.discard(tgid)

    def _close(self, netns: int, port: int) -> None:
        """One listening socket is gone; a port may have several, of workers or of IPv4 and 6."""
        self._listeners[netns, port] -= 1
        if self._listeners[netns, port] > 0:
            return
        del self._listeners[netns, port]
        for tgid in self._fronts.pop((netns, port), ()):
            ports = self._ports[tgid]
            ports.discard((netns, port))
            if not ports:
                del self._ports[tgid]

    def _front(self, netns: int, port: int) -> _Front | None:
        if netns:
            return next(iter(self._fronts.get((netns, port), {}).values()), None)
        places = (fronts for (_, number), fronts in self._fronts.items() if number == port)
        return next((front for fronts in places for front in fronts.values()), None)

    def _request(self, item: Derived) -> None:
        evidence = item.evidence
        front = self._front(evidence.request.conn.netns, evidence.request.conn.server_port)
        if front is not None and evidence.request.end_ns is not None:
            front.requests += 1
            front.model = item.model or front.model
        if item.model is None:
            return
        key = (evidence.server, item.model)
        known = self._models.setdefault(key, _Model(last_use_ns=0))
        known.last_use_ns = evidence.wall_offset_ns + evidence.request.arrival_ns
        self._weights(known, item)
        if evidence.runner is not None and item.ttft_ns is not None:
            self._served(key, known, evidence.runner)
        while len(self._models) > _MODELS_LIMIT:
            del self._models[min(self._models, key=lambda k: self._models[k].last_use_ns)]

    def _served(self, key: tuple[str, str], known: _Model, runner: int) -> None:
        """A process held this model just now; whether it still has one it held before is open."""
        runners = (known.runners or set()) & self._alive
        # Before the first records nobody is known to be alive.
        known.runners = runners | {runner} if runner in self._alive or not self._alive else runners
        for other, model in self._models.items():
            others = model.runners if other != key else None
            if others and runner in others and _differ(known, model):
                others.discard(runner)
                model.runners = others or None

    @staticmethod
    def _weights(known: _Model, item: Derived) -> None:
        names = {PurePosixPath(name).name for name in item.facts.weights}
        weights = [f for f in item.evidence.files if f.fmt and _name(f) in names]
        if weights:
            known.weights = tuple((f.dev, f.ino) for f in weights)
            known.names = tuple(map(_name, weights))
            known.size = sum(f.size for f in weights)


def _differ(one: _Model, other: _Model) -> bool:
    """Whether two names are of different weights: a server may give one model several."""
    return bool(one.weights and other.weights) and set(one.weights) != set(other.weights)


def _name(file: File) -> str:
    return PurePosixPath(file.path or "?").name
