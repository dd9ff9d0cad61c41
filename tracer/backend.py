"""The daemon: wires kernel, pipeline, history and interface, and answers for them."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import asdict, replace

from tracer import __version__
from tracer.ahead import Ahead
from tracer.answers import answer, dumps
from tracer.answers_state import Clocks, Cost, History, ModelSeen, Probe, Status, Telemetry
from tracer.api import ApiServer
from tracer.api_metrics import Metrics
from tracer.api_socket import Place
from tracer.api_streams import events_fanout, records_fanout
from tracer.armer import Armer
from tracer.arming import GROUP, PAGING, WORDS, Arming, Policy
from tracer.backlog import Backlog
from tracer.chores import Chores, Tasks
from tracer.config import Config
from tracer.derive import derive
from tracer.derived import Derived
from tracer.devices.facts import facts as driver_facts
from tracer.devices.table import table as driver_calls
from tracer.devices.watch import DeviceWatch
from tracer.doubt import FOREVER_NS
from tracer.engine import Engine
from tracer.errors import TtftError
from tracer.exports import Exports
from tracer.host.clock import Clock
from tracer.host.discovery import Discovery
from tracer.host.own import cpu_ns, pss_bytes
from tracer.host.place import place_of
from tracer.host.recognise import Rule
from tracer.http import HttpReader
from tracer.kernel import features
from tracer.kernel.features import Fact
from tracer.kernel.loader import GroupState, Kernel
from tracer.kernel.probes import ON_DEMAND
from tracer.kernel.runstats import RunStats
from tracer.libs.calls import Catalogue, shipped
from tracer.libs.watch import LibraryWatch
from tracer.live import Live
from tracer.log import log
from tracer.overview import Overview
from tracer.pipeline import Pipeline
from tracer.recording import header, line
from tracer.records import AnyRecord, Armed, Host, Start
from tracer.service.notify import keep_alive, notify, reloading, watchdog_s
from tracer.service.reload import changed, said, taken
from tracer.stacks.names import fact as names_fact
from tracer.stacks.sampling import Sampling
from tracer.store import Store
from tracer.telemetry.watch import TelemetryWatch

_MODELS_SHOWN = 20
_PATIENCE_S = 5.0


def rules(config: Config) -> list[Rule]:
    """The configuration's servers as discovery wants them."""
    return [
        Rule(
            name=entry.name,
            exe=entry.exe,
            command=entry.command,
            port=entry.port,
            program=entry.program or "custom",
        )
        for entry in config.server
    ]


@dataclass
class _Began:
    monotonic_ns: int
    wall_ns: int
    cpu_ns: int


class Daemon:
    """Backend of the interface, and owner of the engine."""

    def __init__(
        self,
        config: Config,
        store: Store,
        kernel: Kernel,
        btf: str | None = None,
        reread: Callable[[], Config] | None = None,
    ) -> None:
        self._config = config
        self._reread = reread
        self._btf = btf
        self._kernel = kernel
        self.store = store
        self.metrics = Metrics()
        self._began = _Began(time.monotonic_ns(), time.time_ns(), cpu_ns())
        self._host = self._this_host()
        self._clock = Clock(self._host, say=log)
        self._overview = Overview(store.models())
        self._overview.derived(_latest(store))
        self._discovery = Discovery(kernel, rules(config))
        probes = kernel.probes
        ahead = Ahead(kernel, self._discovery.serves, probes.placement, probes.takes.stir)
        kernel.rings.hear = ahead.hear
        self._armer = self._make_armer()
        catalogue = Catalogue(shipped(), config.library)
        self._libraries = LibraryWatch(kernel, catalogue, log, off="libs" in config.probes.off)
        self._devices = DeviceWatch(
            kernel, driver_calls(), config.devices.nodes, off="devices" in config.probes.off
        )
        self._stacks = Sampling(kernel, config, lambda n: self._engine.put(lambda: [n]), log)
        self._telemetry = TelemetryWatch(log, off=not config.devices.telemetry)
        self._live = Live(
            kernel, self._discovery, HttpReader(), self._armer, self._libraries,
            devices=self._devices, stacks=self._stacks.watch, telemetry=self._telemetry,
            clock=self._clock,
        )  # fmt: skip
        self._next_id = store.next_id()
        self._pipeline = Pipeline()
        self._exports = Exports(config, lambda: self.metrics.text(self.status()))
        self._backlog = Backlog(self._put)
        self._engine = Engine(self._live, self._pipeline, self._overview.records, self._explained)
        self._events = events_fanout()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._chores = Chores(store, self._clock.cautious_ns, self._state)

    def _make_armer(self) -> Armer | None:
        """None where the probes that could come and go cannot be had, or not whole."""
        attached = {g.group for g in self._kernel.groups() if g.attached}
        whole = GROUP in attached
        if not whole:
            self._kernel.detach(GROUP)  # what is there of it tells nothing, and costs
            return None
        spike = self._config.spike
        policy = Policy(slow_ns=round(spike.min_ms * 1e6), factor=spike.factor)
        if self._config.probes.arming == "always":
            policy = replace(policy, quiet_ns=FOREVER_NS)
        arming = Arming(policy, self._began.monotonic_ns)
        return Armer(self._kernel, self._kernel.rings, arming, attached & {PAGING})

    def next_id(self) -> int:
        """The first id not given to any request."""
        return self._next_id

    # --- life ----------------------------------------------------------------------

    async def serve(self, place: Place) -> None:
        """Watch and answer until a signal, or until the engine fails."""
        self._loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, stop.set)
        tasks = Tasks(stop.set)
        self._loop.add_signal_handler(signal.SIGHUP, lambda: tasks.add(self._reload()))
        self._engine.start(self._context())
        self._kernel.follow_servers(stays=self._config.probes.arming == "always")
        # A thread that died is worth a restart, not half a daemon.
        threads = (self._engine.failed, self._backlog.failed)
        for failed in threads:
            failed.add_done_callback(
                lambda _: self._loop and self._loop.call_soon_threadsafe(stop.set)
            )
        api = ApiServer(place)
        await api.start(self)
        await self._exports.start()
        notify("READY=1", self._state())
        log(f"watching; answers at {self._config.socket}")
        tasks.add(self._chores.run())
        if period_s := watchdog_s():
            tasks.add(keep_alive(period_s, self._lives))
        await stop.wait()
        notify("STOPPING=1")
        tasks.cancel()
        self._events.close()
        self._engine.stop()
        await asyncio.to_thread(self._libraries.close)
        self._stacks.close()
        await asyncio.to_thread(self._telemetry.close)
        await asyncio.to_thread(self._backlog.close)
        await self._exports.stop()
        await api.stop()
        tasks.check()
        for failed in threads:
            if failed.done():
                failed.result()

    def _this_host(self) -> Host:
        now, uname = self._began.monotonic_ns, platform.uname()
        return Host(
            ts_ns=now,
            wall_offset_ns=self._began.wall_ns - now,
            machine=uname.machine,
            kernel=uname.release,
            version=__version__,
            began_ns=now,
        )

    def _context(self) -> list[AnyRecord]:
        now, offset = self._began.monotonic_ns, self._host.wall_offset_ns
        start = Start(ts_ns=now, next_id=self._next_id, last_model=self.store.last_models())
        warm = self.store.warm_context(wall_offset_ns=offset)
        return [self._host, self._config.settings(now), start, *self._not_there(now), *warm]

    def _not_there(self, now_ns: int) -> list[Armed]:
        """Probe groups that are off for good: what they would see is unknown, not nothing."""
        groups = (g for g in self._kernel.groups() if g.group not in ON_DEMAND)
        return [Armed(ts_ns=now_ns, group=g.group, on=False) for g in groups if not g.attached]

    async def _lives(self) -> None:
        """Comes back once the engine has answered."""
        await asyncio.wrap_future(self._engine.call(lambda: None))

    def _state(self) -> str:
        servers = len(self._overview.servers())
        return f"STATUS=watching {servers} server{'' if servers == 1 else 's'}"

    async def _reload(self) -> None:
        """The configuration again; one that is wrong changes nothing."""
        if self._reread is None:
            return
        reloading()
        told = self._state
        try:
            fresh = await asyncio.to_thread(self._reread)
            await asyncio.wrap_future(self._engine.put(lambda: self._take_over(fresh)))
            self.store.limit(fresh.history.max_age_days, fresh.history.max_mb)
        except TtftError as error:
            log(f"configuration not taken, all stays as it was: {error.message}")
            told = _not_taken
        finally:  # systemd waits for it, whatever became of it
            notify("READY=1", told())

    def _take_over(self, fresh: Config) -> list[AnyRecord]:
        """In the engine's thread."""
        now = time.monotonic_ns()
        found = self._discovery.change(rules(fresh), now)
        log(said(*changed(self._config, fresh)))
        self._config = taken(self._config, fresh)
        return [self._config.settings(now), *found]

    def _put(self, derived: Sequence[Derived]) -> None:
        """In the history's thread."""
        self.store.put(derived)
        self._exports.add(derived)

    # --- sinks of the engine (its thread) --------------------------------------------

    def _explained(self, derived: list[Derived]) -> None:
        self._backlog.add(derived)
        fresh = [item for item in derived if item.evidence.names is None]  # others were told before
        self._overview.derived(fresh)
        self._stacks.over(fresh)
        for item in fresh:
            self._next_id = max(self._next_id, item.evidence.id + 1)
            if item.over:
                self.metrics.observe(item)
        if (on := self.store.go_on_at(self._next_id)) is not None:
            self._next_id = on
            self._engine.put(lambda: [Start(ts_ns=time.monotonic_ns(), next_id=on)])
        if self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._chores.stirred.set)
        if self._events.readers:
            for item in fresh:
                self._loop.call_soon_threadsafe(self._events.publish, dumps(answer(item)))

    # --- Backend (tracer/api.py) -------------------------------------------------------

    def status(self) -> Status:
        trouble = self.store.trouble
        return Status(
            version=__version__,
            pid=os.getpid(),
            began_wall_ns=self._began.monotonic_ns + self._clock.offset_ns,
            kernel=platform.release(),
            machine=platform.machine(),
            history=History(
                path=str(self._config.database),
                size_bytes=self.store.size_bytes(),
                pending=self.store.pending + self._backlog.waiting,
                dropped=self.store.dropped,
                trouble=trouble.message if trouble else None,
                hint=trouble.hint if trouble else None,
                set_aside=tuple(self.store.set_aside),
            ),
            servers=tuple(replace(s, place=place_of(s.pid)) for s in self._overview.servers()),
            probes=tuple(map(self._probe, map(self._devices.state, self._kernel.groups()))),
            lost=self._live.lost,
            cost=self._cost(),
            open_requests=self._engine.open_requests,
            exports=self._exports.states(),
            clock=Clocks(**asdict(self._clock.seen)),
            telemetry=Telemetry(**self._telemetry.state()),
        )

    def _probe(self, group: GroupState) -> Probe:
        comes = self._armer is not None and group.group in self._armer.groups
        goes = comes and self._config.probes.arming == "auto"
        armed = self._armer.state if self._armer and goes else None
        if armed is None:
            return Probe(
                group=group.group,
                attached=group.attached,
                required=group.required,
                off_because=group.off_because,
                unseen=group.unseen,
                cgroups=None if group.places is None else group.places.groups,
                root_because=None if group.places is None else group.places.because,
            )
        return Probe(
            group=group.group,
            attached=armed.on,
            required=group.required,
            off_because=None if armed.on else WORDS["quiet"],
            why=armed.why,
            since_s=round((time.monotonic_ns() - armed.ts_ns) / 1e9, 3),
        )

    def _cost(self) -> Cost:
        used = cpu_ns() - self._began.cpu_ns
        lived = max(1, time.monotonic_ns() - self._began.monotonic_ns)
        bpf_ns, bpf_runs = _bpf_runs(self._kernel.run_stats())
        return Cost(
            pss_bytes=pss_bytes(),
            cpu_ns=used,
            cpu_share=round(used / lived, 6),
            bpf_ns=bpf_ns,
            bpf_runs=bpf_runs,
        )

    def models(self) -> list[ModelSeen]:
        return [
            replace(seen, places=tuple(dict.fromkeys(filter(None, map(place_of, seen.pids or ())))))
            for seen in self._overview.models()
        ]

    def open_now(self) -> list[Derived]:
        now = time.monotonic_ns()
        asked = self._engine.call(lambda: self._pipeline.explain_open(now))
        try:
            return asked.result(_PATIENCE_S)
        except TimeoutError:
            raise TtftError("ttftd is too busy to say", "try again in a moment") from None

    def doctor(self) -> list[Fact]:
        from tracer.telemetry.facts import facts as device_facts

        facts = features.facts(self._btf, self._kernel.probes.selection)
        driven = driver_facts(self._config.devices.nodes)
        places = Fact("requests", f"seen in sockets {self._kernel.probes.placement.places}")
        return [*facts, places, names_fact(), *driven, *device_facts()]

    def export(self, ids: list[int]) -> Iterator[bytes]:
        from tracer.export.gathered import traced

        return traced(self.store.evidences(ids))

    def events(self) -> AsyncIterator[bytes]:
        return self._events.subscribe()

    async def records(self) -> AsyncIterator[bytes]:
        """A recording: the context, then every record as it comes."""
        loop = asyncio.get_running_loop()
        fanout = records_fanout()
        items = fanout.subscribe()
        first = asyncio.ensure_future(anext(items))

        def tap(records: list[AnyRecord]) -> None:
            loop.call_soon_threadsafe(fanout.publish, b"".join(map(line, records)))

        try:
            context = await asyncio.wrap_future(self._engine.tap(tap))
            yield header() + b"".join(map(line, context))
            yield await first
            async for item in items:
                yield item
        finally:
            self._engine.untap(tap)
            first.cancel()


def _not_taken() -> str:
    return "STATUS=configuration not taken; see the log"


def _latest(store: Store) -> list[Derived]:
    """The last request of each of the models used lately: what is known of their weights."""
    names = {model for _, model in list(store.models())[-_MODELS_SHOWN:]}
    ids = sorted({number for model in names for number in store.find(last=1, model=model)})
    return [derive(evidence) for evidence in store.evidences(ids)]


def _bpf_runs(stats: list[RunStats]) -> tuple[int, int] | tuple[None, None]:
    """Run time (ns) and runs of all programs; None while the kernel does not count."""
    runs = sum(s.runs for s in stats)
    return (sum(s.run_ns for s in stats), runs) if runs else (None, None)
