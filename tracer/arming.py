"""When the dear probes have to be on: while a cold stage is possible, and no longer. Pure.

The group `files` costs every process of the host something at each of its system calls. It is on
from a process start, an arrival that may find its model gone, weights coming in, or a request
that outlasts the warm ones, until all has been quiet for a while.

An arrival may find its model gone after a pause that no request has yet come through warm: idle
timers are the server's own affair, so what a pause does to it is learned, pause by pause. What can
unload a model otherwise is seen as it happens: the end of a process, a control request.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Literal

import msgspec

from tracer.doubt import FOREVER_NS, Kind, Listener, Port, Trees
from tracer.http.endpoints import is_inference
from tracer.http.first import LOOKS
from tracer.records import (
    AnyRecord,
    Exec,
    Exit,
    File,
    Fork,
    HttpBody,
    HttpEnd,
    HttpRequest,
    HttpToken,
    Insert,
    Listen,
    Open,
    Process,
    Span,
    Unlisten,
)

#: The group that comes and goes.
GROUP = "files"
#: Goes with it: minor faults, and how long major ones take. That these were is always seen.
PAGING = "paging"

Why = Literal["start", "process", "arrival", "control", "slow", "weights", "quiet"]
WORDS: dict[Why, str] = {
    "start": "the daemon began",
    "process": "a server started a process",
    "arrival": "a request came after a pause",
    "control": "a control request came",
    "slow": "a request takes longer than is typical",
    "weights": "weights came in",
    "quiet": "all is warm and quiet",
}
"""Why the group was turned on, or (`quiet`) off."""

#: What is under way already when the group comes on.
LATE = frozenset({"control", "slow", "weights"})
#: Of those, what comes to a request that was sure of its model.
UNEXPECTED = frozenset({"slow", "weights"})
_HARMLESS = ("tokenize", "apply-template", "tokens", "health")
_USES = ("mmap", "read", "read_direct", "munmap")

_TALKS_MAX = 2048
_PORTS_MAX = 1024
_PROCESSES_MAX = 4096
_FILES_MAX = 4096
_TOOK_KEPT = 9
_TYPICAL_OF = 3
#: A pause counts as survived if the group was on this soon after the arrival that ended it.
_SOON_NS = 20_000_000


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """`quiet_ns`: how long nothing cold may happen before the group goes off.

    `start_ns`: the same where a process was started and has not answered anything yet. A request
    outlasts the warm ones above `slow_ns` and `factor` x what is typical: no spike is faster.
    """

    quiet_ns: int = 3_000_000_000
    start_ns: int = 120_000_000_000
    slow_ns: int = 250_000_000
    factor: float = 3.0


class Change(msgspec.Struct, frozen=True):
    """The group has to go on or off."""

    on: bool
    why: Why


@dataclass(slots=True, eq=False)
class _Asked:
    """A request that was not answered yet. `pause_ns` None: the first one ever.

    `cold`: something cold happened meanwhile.
    """

    at: Listener
    arrival_ns: int
    pause_ns: int | None
    endpoint: str | None
    stream: bool | None = None
    cold: bool = False

    @property
    def kind(self) -> Kind:
        return (self.endpoint, self.stream)


class Arming:
    """`feed()` every record, in any order; do what `due()` says and report it to `changed()`."""

    def __init__(self, policy: Policy, now_ns: int) -> None:
        self._policy = policy
        self.on = True
        self.why: Why = "start"
        self.since_ns = now_ns
        self._cold_ns = now_ns
        self._wanted: Why | None = None
        self._listeners: dict[Port, Listener] = {}
        self._asked: dict[int, _Asked] = {}
        self._talks: dict[int, Listener] = {}
        self._weights: dict[tuple[int, int], None] = {}
        self._parents: dict[int, int] = {}
        self._young: dict[int, int] = {}
        self._opened: dict[tuple[int, int, int], int] = {}
        self._starved: set[int] = set()

    # --- what happens ----------------------------------------------------------------

    def feed(self, record: AnyRecord) -> None:
        """Take in one record."""
        match record:
            case HttpRequest():
                self._request(record)
            case HttpBody():
                asked = self._asked.get(record.xid)
                if asked is not None:
                    asked.stream = record.stream
            case HttpToken() if record.nth == 1:
                self._answered(record.xid, record.ts_ns, good=True)
            case HttpEnd():
                good = record.why == "complete" and not record.error
                self._answered(record.xid, record.ts_ns, good=good)
                self._over(record.xid)
            case File():
                self._file(record)
            case Open() | Span() | Insert():
                self._used(record)
            case Listen() | Unlisten():
                self._port(record)
            case Fork() | Exec() | Process() | Exit():
                self._process(record)
            case _:
                pass

    def _request(self, record: HttpRequest) -> None:
        if not is_inference(record.endpoint):
            if controls(record):
                self._control(record.ts_ns)
            return
        conn, ts_ns = record.conn, record.ts_ns
        if self.doubts(conn.netns, conn.server_port, ts_ns):
            self._wanted = "arrival"
        at = self._listener(conn.netns, conn.server_port)
        pause = None if at.heard_ns is None else max(0, ts_ns - at.heard_ns)
        self._asked[record.xid] = _Asked(at, ts_ns, 0 if at.open else pause, record.endpoint)
        self._talks[record.xid] = at
        at.open.add(record.xid)
        while len(self._talks) > _TALKS_MAX:
            self._over(next(iter(self._talks)))
        self._hear(at, ts_ns)

    def _over(self, xid: int) -> None:
        self._asked.pop(xid, None)
        at = self._talks.pop(xid, None)
        if at is not None:
            at.open.discard(xid)

    def _control(self, ts_ns: int) -> None:
        """It may unload or load anything: nothing is sure of anyone."""
        for at in self._listeners.values():
            at.safe_ns = 0
        self._wanted = "control"
        self._cold_ns = max(self._cold_ns, ts_ns)

    def _hear(self, at: Listener, ts_ns: int) -> None:
        at.heard_ns = max(at.heard_ns or 0, ts_ns)

    def _answered(self, xid: int, ts_ns: int, *, good: bool) -> None:
        """The first token, or the end without one."""
        if xid in self._talks:
            self._hear(self._talks[xid], ts_ns)
        asked = self._asked.pop(xid, None)
        if asked is None or not good:
            return
        self._grown(asked.at)
        if asked.cold:
            return
        took = asked.at.took.setdefault(asked.kind, deque(maxlen=_TOOK_KEPT))
        took.append(ts_ns - asked.arrival_ns)
        if self.on and self.since_ns <= asked.arrival_ns + _SOON_NS:
            asked.at.safe_ns = max(asked.at.safe_ns, asked.pause_ns or 0)

    def _file(self, record: File) -> None:
        key = (record.dev, record.ino)
        self._weights.pop(key, None)
        if record.fmt is not None:
            self._weights[key] = None
        while len(self._weights) > _FILES_MAX:
            del self._weights[next(iter(self._weights))]

    def _used(self, record: Open | Span | Insert) -> None:
        if isinstance(record, Span) and is_untimed(record):
            self._wanted = "weights"
        if record.tgid in self._young:
            self._young[record.tgid] = max(self._young[record.tgid], record.ts_ns)
        if (record.dev, record.ino) not in self._weights:
            return
        if isinstance(record, Span) and record.op not in _USES:
            return
        if isinstance(record, Insert):
            # Told late: it may be over since before the group went off.
            if record.end_ns > self.since_ns:
                self._wanted = "weights"
            self._missed(record)
        elif isinstance(record, Open):
            self._taken_up(record)
        self._cold(record.ts_ns if isinstance(record, Open) else record.end_ns)

    def _missed(self, insert: Insert) -> None:
        """Pages come in while a request waits, not by a load: the process misses them."""
        key = (insert.tgid, insert.dev, insert.ino)
        waits_ns = min((a.arrival_ns for a in self._asked.values()), default=FOREVER_NS)
        ours = insert.tgid in self._parents and insert.tgid not in self._young
        if ours and self._opened.get(key, 0) < waits_ns <= insert.end_ns:
            self._starved.add(insert.tgid)

    def starved(self) -> set[int]:
        """Processes whose pages were gone, since last asked: their faults wait for the disk."""
        found, self._starved = self._starved, set()
        return found

    def _taken_up(self, opened: Open) -> None:
        """A process takes up weights though it seemed to hold its own."""
        self._opened[opened.tgid, opened.dev, opened.ino] = opened.ts_ns
        while len(self._opened) > _FILES_MAX:
            del self._opened[next(iter(self._opened))]
        for asked in self._asked.values():
            at = asked.at
            after = at.tgid == opened.tgid and opened.ts_ns >= asked.arrival_ns
            if after and asked.pause_ns is not None and 0 < asked.pause_ns <= at.safe_ns:
                at.fickle = True

    def _cold(self, ts_ns: int) -> None:
        self._cold_ns = max(self._cold_ns, ts_ns)
        for asked in self._asked.values():
            asked.cold = asked.cold or asked.arrival_ns <= ts_ns

    def _process(self, record: Fork | Exec | Process | Exit) -> None:
        self._cold(record.ts_ns)
        if isinstance(record, Exit):
            self._young.pop(record.tgid, None)
            self._parents.pop(record.tgid, None)
            return
        self._wanted = "process"
        tgid = record.child if isinstance(record, Fork) else record.tgid
        if not isinstance(record, Exec):
            self._parents[tgid] = record.parent if isinstance(record, Fork) else record.ppid
        if not isinstance(record, Process):
            self._young[tgid] = record.ts_ns
        for kept in (self._parents, self._young):
            while len(kept) > _PROCESSES_MAX:
                del kept[next(iter(kept))]

    def _grown(self, at: Listener) -> None:
        """Who answers has started up, and so have its helpers, but not who listens for itself."""
        listening = {other.tgid for other in self._listeners.values()}
        for tgid in list(self._young):
            one: int | None = tgid
            seen: set[int] = set()
            while one is not None and one not in listening and one not in seen:
                seen.add(one)
                one = self._parents.get(one)
            if one == at.tgid:
                del self._young[tgid]

    def _port(self, record: Listen | Unlisten) -> None:
        key = (record.netns, record.port)
        if isinstance(record, Unlisten):
            self._listeners.pop(key, None)
        elif key not in self._listeners or self._listeners[key].tgid != record.tgid:
            self._listeners[key] = Listener(record.tgid)
        while len(self._listeners) > _PORTS_MAX:
            del self._listeners[next(iter(self._listeners))]

    def _listener(self, netns: int, port: int) -> Listener:
        found = self._listeners.get((netns, port))
        if found is None:
            # Which namespace is not always known.
            alike = (at for (_, p), at in self._listeners.items() if p == port and not netns)
            found = next(alike, None) or self._listeners.setdefault((netns, port), Listener(0))
        return found

    # --- what is to be done ------------------------------------------------------------

    def sure(self) -> dict[Port, int]:
        """Until when bytes of a request leave the group off, by ports that served requests.

        At any other the first one turns the group on.
        """
        trees = self._trees()
        asked = ((port, at) for port, at in self._listeners.items() if at.heard_ns is not None)
        return {port: trees.doubted_ns(at) for port, at in asked}

    @property
    def some_never_asked(self) -> bool:
        """Whether there is such another port."""
        return any(at.heard_ns is None for at in self._listeners.values())

    def doubts(self, netns: int, port: int, ts_ns: int) -> bool:
        """Whether a request that comes now may find its model gone."""
        at = self._listener(netns, port)
        return at.heard_ns is None or ts_ns > self._trees().doubted_ns(at)

    def _trees(self) -> Trees:
        return Trees(self._listeners.values(), self._parents)

    def due(self, now_ns: int) -> Change | None:
        """What is to be done now."""
        if not self.on:
            if self._wanted is not None:
                return Change(True, self._wanted)
            return Change(True, "slow") if self._slow(now_ns) else None
        self._wanted = None
        due_ns = self.next_ns
        return Change(False, "quiet") if due_ns is not None and now_ns >= due_ns else None

    @property
    def next_ns(self) -> int | None:
        """When `due()` has to be asked again though nothing happens."""
        if not self.on or self._asked:
            return None
        quiet_ns = self._policy.quiet_ns
        due_ns = max(self._cold_ns, self.since_ns) + quiet_ns
        if self._young:
            due_ns = max(due_ns, max(self._young.values()) + self._policy.start_ns)
        # While requests keep coming, and one may find its model gone, going off is no use.
        heard = self._trees().heard_in_doubt(due_ns)
        return max(due_ns, max(heard, default=0) + quiet_ns)

    def changed(self, change: Change, ts_ns: int) -> None:
        """It was done: in effect since then."""
        self.on, self.why, self.since_ns = change.on, change.why, ts_ns
        self._wanted = None

    def _slow(self, now_ns: int) -> bool:
        return any(now_ns - a.arrival_ns > self._patience_ns(a) for a in self._asked.values())

    def _patience_ns(self, asked: _Asked) -> int:
        took = asked.at.took.get(asked.kind, ())
        if len(took) < _TYPICAL_OF:
            return self._policy.slow_ns
        return max(self._policy.slow_ns, round(self._policy.factor * median(took)))


def is_untimed(span: Span) -> bool:
    """A page was waited for while nothing took the time."""
    return span.op == "fault_major" and not span.busy_ns


def controls(record: HttpRequest) -> bool:
    """Whether it may load or unload models, without being asked for work by one."""
    return (
        not is_inference(record.endpoint)
        and record.method not in LOOKS
        and not _harmless(record.endpoint)
    )


def _harmless(endpoint: str | None) -> bool:
    """Whether it works with what is loaded, and loads nothing."""
    return endpoint is not None and endpoint.endswith(_HARMLESS)
