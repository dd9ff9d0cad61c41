"""All that the fold knows, and what can be told from it about a request. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracer.callevents import CallEvents
from tracer.exchanges import Exchanges, Talk
from tracer.fileevents import MIB, FileEvents
from tracer.linking import Linker, serving
from tracer.processes import Ports, Proc, Processes
from tracer.readings import Readings
from tracer.records import (
    Armed,
    Cached,
    Call,
    DeviceCall,
    Exec,
    Exit,
    File,
    Fork,
    Host,
    Insert,
    Io,
    Library,
    Lost,
    Memory,
    Open,
    Process,
    Ran,
    Resident,
    Samples,
    Settings,
    Signal,
    Span,
    Telemetry,
)
from tracer.servers import name_model, same_model
from tracer.stacks.kept import Stacks

FOREVER_NS = 1 << 63


@dataclass(slots=True, eq=False)
class World:
    """All that the fold knows."""

    procs: Processes = field(default_factory=Processes)
    events: FileEvents = field(default_factory=FileEvents)
    calls: CallEvents = field(default_factory=CallEvents)
    readings: Readings = field(default_factory=Readings)
    stacks: Stacks = field(default_factory=Stacks)
    exchanges: Exchanges = field(default_factory=Exchanges)
    lost: list[Lost] = field(default_factory=list)
    armed: list[Armed] = field(default_factory=list)
    host: Host | None = None
    settings: Settings = field(default_factory=lambda: Settings(ts_ns=0))
    ports: Ports = field(init=False)
    linker: Linker = field(init=False)

    def processes(self, record: Process | Fork | Exec | Exit | Signal) -> None:
        """A process began, changed or ended."""
        if isinstance(record, Exec):
            self.calls.restart(record.tgid, record.ts_ns)
        self.procs.feed(record)

    def happened(
        self,
        record: File
        | Open
        | Span
        | Insert
        | Resident
        | Memory
        | Io
        | Ran
        | Library
        | Call
        | Cached
        | DeviceCall
        | Samples
        | Telemetry,
    ) -> None:
        """What a process did, or had, of files, libraries and devices, and where it ran."""
        if isinstance(record, Library | Call | Cached | DeviceCall):
            self.calls.feed(record)
        elif isinstance(record, Samples):
            self.stacks.feed(record)
        elif isinstance(record, Telemetry):
            self.readings.feed(record)
        else:
            self.events.feed(record)

    def __post_init__(self) -> None:
        self.ports = Ports(self.procs)
        self.linker = Linker(self.procs, self.ports, self.exchanges)


def find_runner(world: World, talk: Talk, tree: list[Proc], end_ns: int) -> Proc | None:
    """The process that served a request, or was to serve it. `tree`: its server's."""
    hop = serving(talk)
    if hop is not None:
        return world.procs.at(hop.server_tgid, hop.arrival_ns)
    if talk.server is None:
        return None
    if talk.request.conn.server_port != talk.server.port:
        return world.procs.at(talk.server_tgid, talk.arrival_ns)
    front = world.procs.at(talk.server.tgid, talk.arrival_ns)
    role = front.command.role if front is not None and front.command is not None else None
    if role == "single":
        return front
    return _unseen_runner(world, talk, front, [p for p in tree if _ran_in(p, talk, end_ns)])


def _unseen_runner(world: World, talk: Talk, front: Proc | None, tree: list[Proc]) -> Proc | None:
    """The runner of a request that no hop was seen of."""
    runners = [p for p in tree if p.command is not None and p.command.role == "runner"]
    if runners:
        return _expected(runners, talk)
    if front is not None and front.command is not None and front.command.role == "front":
        return None
    holders = [p for p in tree if world.events.brought(p.tgid, p.born_ns or 0, FOREVER_NS) >= MIB]
    return front if front in holders or not holders else holders[-1]


def _ran_in(proc: Proc, talk: Talk, end_ns: int) -> bool:
    born = proc.born_ns
    return (born is None or born <= end_ns) and (
        proc.exit is None or proc.exit.ts_ns >= talk.arrival_ns
    )


def _expected(runners: list[Proc], talk: Talk) -> Proc | None:
    """The runner a request without a hop was waiting for."""
    fits = [p for p in runners if p.command is not None and same_model(p.command.model, talk.model)]
    fresh = [p for p in runners if (p.born_ns or 0) >= talk.arrival_ns]
    unnamed = [p for p in fresh if p.command is None or p.command.model is None]
    if not fits and len(fresh) == 1 and (unnamed or talk.model is None):
        fits = fresh
    if not fits and len(runners) == 1 and talk.served_ns is not None:
        only = runners[0].command  # who else could have
        fits = runners if only is None or only.model is None else []
    return max(fits, key=lambda p: (p.born_ns or 0, p.tgid), default=None)


def tree_of(world: World, talk: Talk) -> list[Proc]:
    """The processes of a request's server."""
    front = talk.server.tgid if talk.server is not None else 0
    return [p for p in world.procs if world.procs.under(p, front)]


def model_of(world: World, talk: Talk) -> str | None:
    """The model a request was for: as it says, its hop, the reply or its runner's command."""
    hop = serving(talk)
    asked = talk.body.model if talk.body is not None else None
    if asked is None and hop is not None:
        asked = hop.model
    runner = None if talk.runner is None else world.procs.at(talk.runner, talk.arrival_ns)
    return name_model(asked, talk.model, runner.command if runner is not None else None)
