"""The fold: records in, one `Evidence` per request out. Pure: no clock, no file, no socket.

A request is reported at the first `Tick` past its first token (streaming only, and where its end
is not known by then) and again, for good, at the first past its end. State is bounded: by age, and
by hard caps whose drops are told as `Lost` of kind `fold`.
"""

from __future__ import annotations

from tracer.evidence import Evidence
from tracer.exchanges import Talk
from tracer.gather import Gatherer
from tracer.records import (
    AnyRecord,
    Armed,
    Cached,
    Call,
    Connect,
    DeviceCall,
    Exec,
    Exit,
    File,
    Fork,
    Host,
    HttpBody,
    HttpEnd,
    HttpHead,
    HttpRequest,
    HttpToken,
    HttpUnreadable,
    Insert,
    Io,
    Library,
    Listen,
    Lost,
    Memory,
    Names,
    Open,
    Process,
    Ran,
    Resident,
    Samples,
    Server,
    Settings,
    Signal,
    Span,
    Start,
    Take,
    Telemetry,
    Tick,
    Unlisten,
    Warm,
)
from tracer.sites import Site
from tracer.world import FOREVER_NS, World, model_of

KEEP_NS = 600_000_000_000
KEEP_EVENTS_NS = 60_000_000_000
PRUNE_EVERY_NS = 1_000_000_000

MAX_OPEN = 2048
MAX_CLOSED = 1024
MAX_POLLS = 1024
MAX_NOTES = 256


class Fold:
    """Folds records, in any order, to evidence."""

    def __init__(self) -> None:
        self._world = World()
        self._now_ns = 0
        self._ticked = False

    def feed(self, record: AnyRecord) -> list[Evidence]:
        """Take in one record; the requests that may be reported because of it."""
        world = self._world
        match record:
            case Tick():
                return self._tick(record.ts_ns)
            case Process() | Fork() | Exec() | Exit() | Signal():
                world.processes(record)
            case Listen() | Unlisten() | Server():
                world.ports.feed(record)
            case (
                File()
                | Open()
                | Span()
                | Insert()
                | Resident()
                | Memory()
                | Io()
                | Ran()
                | Library()
                | Call()
                | Cached()
                | DeviceCall()
                | Samples()
                | Telemetry()
            ):
                world.happened(record)
            case HttpRequest():
                talk = world.exchanges.feed(record)
                if talk is not None:
                    world.linker.arrived(talk)
            case HttpHead():
                talk = world.exchanges.feed(record)
                if talk is not None:
                    world.linker.proved_ready(talk)
            case HttpBody() | HttpToken() | HttpEnd() | HttpUnreadable() | Connect() | Take():
                world.exchanges.feed(record)
            case _:
                self._note(record)
        return []

    def _note(self, record: Lost | Armed | Host | Settings | Start | Warm | Names) -> None:
        world = self._world
        match record:
            case Lost():
                world.lost.append(record)
                del world.lost[:-MAX_NOTES]
            case Armed():
                world.armed.append(record)
                del world.armed[:-MAX_NOTES]
            case Host():
                world.host = record
            case Settings():
                world.settings = record
            case Start():
                world.linker.start(record)
                for tgid, ready_ns in record.ready_ns.items():
                    proc = world.procs.latest(tgid)
                    if proc is not None:
                        proc.ready_ns = ready_ns
            case Warm() | Names():
                pass  # the history, and what is over, are the pipeline's

    def open_requests(self, now_ns: int) -> list[Evidence]:
        """Evidence so far of the requests that are not over, in order of id."""
        return [self._gather(talk, now_ns) for talk in self._open()]

    def open_ids(self) -> tuple[int, ...]:
        """Ids of the requests that are not over."""
        return tuple(talk.id or 0 for talk in self._open())

    def waiting(self) -> frozenset[int]:
        """Fronts of servers where a request has not got its first token yet."""
        waits = (t for t in self._open() if t.end_ns is None and t.first_token_ns is None)
        return frozenset(t.server.tgid for t in waits if t.server is not None)

    def finish(self) -> list[Evidence]:
        """Evidence of all requests not reported for good; to call when no more records come."""
        self._world.linker.settle(FOREVER_NS)
        found = []
        for talk in self._open():
            found.append(self._gather(talk, talk.end_ns or max(self._now_ns, talk.arrival_ns)))
            talk.done = True
        return found

    def _open(self) -> list[Talk]:
        talks = [t for s in self._world.linker.sites.values() for t in s.open.values()]
        return sorted(talks, key=lambda t: t.id or 0)

    def _gather(self, talk: Talk, end_ns: int) -> Evidence:
        return Gatherer(self._world, talk, end_ns).evidence(talk.id or 0)

    def _tick(self, now_ns: int) -> list[Evidence]:
        before_ns, self._now_ns = self._now_ns, max(self._now_ns, now_ns)
        self._ticked = True
        self._world.linker.settle(self._now_ns)
        found = []
        for talk in self._open():
            if talk.end_ns is not None and talk.end_ns <= self._now_ns:
                found.append(self._gather(talk, talk.end_ns))
                talk.told = True
                assert talk.server is not None
                self._world.linker.site(talk.server).close(talk)
            elif talk.end_ns is None and not talk.told and talk.streaming and self._has_token(talk):
                found.append(self._gather(talk, self._now_ns))
                talk.told = True
        if self._now_ns // PRUNE_EVERY_NS != before_ns // PRUNE_EVERY_NS:
            self._prune()
        return found

    def _has_token(self, talk: Talk) -> bool:
        return talk.first_token_ns is not None and talk.first_token_ns <= self._now_ns

    # --- bounds ----------------------------------------------------------------

    def _prune(self) -> None:
        world, now_ns = self._world, self._now_ns
        waiting = self._open()
        for talk in waiting[: max(0, len(waiting) - MAX_OPEN)]:
            self._drop_open(talk)
        first_ns = min((t.arrival_ns for t in self._open()), default=now_ns)
        horizon_ns = min(now_ns, first_ns) - KEEP_NS
        for site in world.linker.sites.values():
            self._prune_site(site, horizon_ns)
        gone = world.procs.prune(horizon_ns)
        world.ports.prune(gone)
        events_ns = self._events_horizon(first_ns)
        world.events.prune(events_ns, gone)
        world.calls.prune(events_ns, gone)
        world.readings.prune(events_ns)
        world.stacks.prune(events_ns)
        world.exchanges.prune(horizon_ns)
        world.lost[:] = [r for r in world.lost if r.ts_ns >= horizon_ns]
        dropped = world.events.dropped + world.procs.dropped + world.calls.dropped
        world.events.dropped = world.procs.dropped = world.calls.dropped = 0
        if dropped:
            self._note(Lost(ts_ns=now_ns, kind="fold", count=dropped))

    def _drop_open(self, talk: Talk) -> None:
        assert talk.server is not None
        site = self._world.linker.site(talk.server)
        self._forget(site, talk)
        self._note(Lost(ts_ns=self._now_ns, kind="fold", count=1))

    def _events_horizon(self, first_ns: int) -> int:
        """File events are needed from the start of runners that were not ready yet when the
        earliest request that is not over arrived."""
        early_ns = min(first_ns, self._now_ns - KEEP_EVENTS_NS)
        early_ns = min([early_ns, *(t.since_ns for t in self._open())])
        horizon_ns = early_ns
        for proc in self._world.procs:
            born = proc.born_ns
            starting = proc.ready_ns is None or proc.ready_ns >= early_ns
            if born is not None and starting and born >= early_ns - KEEP_NS:
                horizon_ns = min(horizon_ns, born)
        return horizon_ns

    def _prune_site(self, site: Site, horizon_ns: int) -> None:
        closed = site.closed()
        surplus = len(closed) - MAX_CLOSED
        for i, talk in enumerate(closed):
            old = (talk.end_ns or 0) < horizon_ns
            if not old and i >= surplus:
                break
            # Each live runner's last request tells until when it served.
            pinned = site.is_last(talk) and self._runs(talk, horizon_ns)
            if not pinned or i < surplus:
                self._forget(site, talk)
        for kept in (site.polls, site.loose):
            for talk in [t for t in kept if (t.end_ns or t.arrival_ns) < horizon_ns]:
                self._world.exchanges.forget(talk)
            kept[:] = [t for t in kept if (t.end_ns or t.arrival_ns) >= horizon_ns]
            for talk in kept[: max(0, len(kept) - MAX_POLLS)]:
                self._world.exchanges.forget(talk)
            del kept[: max(0, len(kept) - MAX_POLLS)]

    def _runs(self, talk: Talk, horizon_ns: int) -> bool:
        proc = self._world.procs.at(talk.runner, talk.arrival_ns)
        return proc is not None and (proc.exit is None or proc.exit.ts_ns >= horizon_ns)

    def _forget(self, site: Site, talk: Talk) -> None:
        if talk.served_ns is not None and talk.arrival_ns >= site.last_arrival_ns:
            site.last_model = model_of(self._world, talk) or site.last_model
            site.last_arrival_ns = talk.arrival_ns
        site.forget(talk)
        for hop in list(talk.hops):
            self._world.exchanges.forget(hop)
        self._world.exchanges.forget(talk)

    # --- context ---------------------------------------------------------------

    def snapshot(self) -> list[AnyRecord]:
        """Records from which a new fold continues as this one would."""
        world = self._world
        context: list[AnyRecord] = []
        if world.host is not None:
            context.append(world.host)
        context.append(world.settings)
        context += world.procs.records()
        context += world.ports.records()
        context.append(self._start())
        context += world.events.records()
        context += world.calls.records()
        context += world.readings.records()
        context += world.stacks.records()
        context += world.exchanges.records()
        context += world.lost
        context += world.armed
        if self._ticked:
            context.append(Tick(ts_ns=self._now_ns))
        return context

    def _start(self) -> Start:
        linker = self._world.linker
        models = dict(linker.last_model)
        for site in linker.sites.values():
            if site.last_model is not None:
                models[site.name] = site.last_model
        return Start(
            ts_ns=self._now_ns,
            next_id=linker.next_id,
            last_model=models,
            known=linker.known(),
            ready_ns={
                p.tgid: p.ready_ns
                for p in self._world.procs
                if p.ready_ns is not None and self._world.procs.latest(p.tgid) is p
            },
        )
