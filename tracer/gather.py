"""One request's evidence, picked from what the records told. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from tracer.callevents import thinned
from tracer.evidence import Evidence, Exchange, Life, Other
from tracer.exchanges import Talk
from tracer.fileevents import MIB, FileKey
from tracer.linking import serving
from tracer.processes import Proc
from tracer.records import Armed, File, Insert, Lost, Open, Span
from tracer.servers import same_model
from tracer.sites import Site
from tracer.world import World, find_runner, model_of, tree_of

LOOKBACK_NS = 10_000_000_000
LONG_LOOKBACK_NS = 600_000_000_000
AT_ONCE_NS = 20_000_000

MAX_SPANS = 2000
MAX_OPENS = 500
MAX_CALLS = 1000
MAX_LIVES = 128
#: Longest time between two drains of the rings, with room (tracer/engine.py waits 200 ms).
DRAIN_NS = 300_000_000
MAX_OTHERS = 64
MAX_POLLS = 64
#: Requests of one runner that ended just before: it may still be at work on them.
MAX_LEFT = 8


class Gatherer:
    """Collects the evidence of one request over its window [`start_ns`, `end_ns`]."""

    def __init__(self, world: World, talk: Talk, end_ns: int) -> None:
        self._world = world
        self._talk = talk
        self._end_ns = end_ns
        self._tree = tree_of(world, talk)
        self._runners: dict[int, int | None] = {}
        self._runner = find_runner(world, talk, self._tree, end_ns)
        talk.runner = self._runner.tgid if self._runner is not None else None
        world.linker.proved_ready(talk)
        self._others = self._pick_others()
        self._start_ns = self._window_start()

    def evidence(self, id_: int) -> Evidence:
        world, talk, server = self._world, self._talk, self._talk.server
        assert server is not None
        lives = self._lives()
        tgids = list(dict.fromkeys(p.tgid for p in self._tree))
        opens, spans, cut = self._file_events(tgids)
        keys = self._keys(opens, spans, tgids)
        inserts = world.events.inserts(keys, self._start_ns, self._end_ns)
        cut += max(0, len(inserts) - MAX_SPANS)
        token_ns = talk.first_token_ns if talk.streaming else None
        until_ns = self._end_ns if token_ns is None else min(token_ns, self._end_ns)
        calls = world.calls.calls(tgids, self._start_ns, until_ns)
        cut += max(0, len(calls) - MAX_CALLS)
        devices = thinned(world.calls.devices(tgids, self._start_ns, until_ns), MAX_CALLS)
        cut += max(0, len(devices) - MAX_CALLS)
        hop = serving(talk)
        return Evidence(
            id=id_,
            server=server.name,
            program=server.program,
            front=server.tgid,
            request=talk.exchange(),
            began_ns=world.ports.began_ns(server),
            wall_offset_ns=world.host.wall_offset_ns if world.host is not None else 0,
            hop=hop.exchange() if hop is not None else None,
            runner=talk.runner,
            lives=lives,
            files=tuple(self._files(keys)),
            opens=tuple(opens),
            spans=tuple(spans),
            inserts=tuple(sorted(inserts, key=_insert_order)[:MAX_SPANS]),
            resident=tuple(world.events.resident(keys, self._start_ns, self._end_ns)),
            memory=tuple(world.events.memory(tgids, self._start_ns, self._end_ns)),
            io=tuple(world.events.io(tgids, self._start_ns, self._end_ns)),
            ran=tuple(world.events.ran(tgids, self._start_ns, until_ns)),
            libraries=tuple(world.calls.libraries(tgids, self._end_ns)),
            calls=tuple(calls[:MAX_CALLS]),
            devices=tuple(devices[:MAX_CALLS]),
            cached=tuple(world.calls.cached(tgids, self._start_ns, until_ns)[:MAX_CALLS]),
            samples=world.stacks.of(frozenset(tgids), talk.arrival_ns, until_ns),
            telemetry=tuple(world.readings.of(tgids, self._start_ns, self._end_ns)),
            polls=self._polls(),
            others=tuple(self._other(r) for r in self._others),
            previous_model=self._previous_model(),
            resident_before=self._resident_before(),
            settings=world.settings,
            lost=self._lost(cut),
            armed=self._armed(),
        )

    # --- the window and the others in it ---------------------------------------

    def _site(self) -> Site:
        assert self._talk.server is not None
        return self._world.linker.site(self._talk.server)

    def _pick_others(self) -> list[Talk]:
        talk, site = self._talk, self._site()
        overlapping = [
            r for r in site.alive(talk.arrival_ns) if r is not talk and r.arrival_ns <= self._end_ns
        ]
        if len(overlapping) > MAX_OTHERS:
            overlapping.sort(key=lambda r: abs(r.arrival_ns - talk.arrival_ns))
            del overlapping[MAX_OTHERS:]
        last = []
        for tgid in self._recent():
            ended = list(islice(site.ended(tgid, talk.arrival_ns), MAX_LEFT))
            last += [r for i, r in enumerate(ended) if i == 0 or _holds_runner(r, talk.arrival_ns)]
        if len(last) > MAX_OTHERS:
            last.sort(key=lambda r: r.end_ns or r.arrival_ns)
            del last[:-MAX_OTHERS]
        retried = [r for r in site.failures() if r.arrival_ns < talk.arrival_ns]
        retried = [r for r in retried if _same_body(r, talk)][-MAX_OTHERS:]
        if retried:
            won = (r for r in site.before(talk) if r.served_ns is not None and _same_body(r, talk))
            since_ns = next((r.arrival_ns for r in won), 0)
            retried = [r for r in retried if r.arrival_ns > since_ns]
        unique = {r.xid: r for r in (*last, *overlapping, *retried)}
        unique.pop(talk.xid, None)
        return sorted(unique.values(), key=lambda r: (r.arrival_ns, r.xid))

    def _recent(self) -> list[int]:
        """Processes that may bear on this request: of those long gone nothing else is told."""
        since_ns = self._talk.arrival_ns - 2 * LONG_LOOKBACK_NS
        kept = (p for p in self._tree if p.exit is None or p.exit.ts_ns >= since_ns)
        return list(dict.fromkeys(p.tgid for p in kept))

    def _runner_of(self, one: Talk) -> int | None:
        if one.done:
            return one.runner
        if one.xid not in self._runners:
            runner = find_runner(self._world, one, self._tree, self._end_ns)
            self._runners[one.xid] = runner.tgid if runner is not None else None
        return self._runners[one.xid]

    def _other(self, one: Talk) -> Other:
        same = _same_body(one, self._talk)
        if not one.done or _holds_runner(one, self._talk.arrival_ns):
            return self._as_other(one, same)
        if one.as_other is None:
            one.as_other = (self._as_other(one, False), self._as_other(one, True))
        return one.as_other[same]

    def _as_other(self, one: Talk, same_body: bool) -> Other:
        runner = self._runner_of(one)
        hop = serving(one)
        served = hop if hop is not None else one
        seen = runner is not None and runner == served.server_tgid
        return Other(
            xid=one.xid,
            arrival_ns=one.arrival_ns,
            id=one.id,
            model=model_of(self._world, one),
            runner=runner,
            runner_arrival_ns=served.arrival_ns if seen else None,
            runner_head_ns=served.head.ts_ns if seen and served.head is not None else None,
            runner_end_ns=self._runner_end(one) if seen else None,
            first_token_ns=one.first_token_ns,
            end_ns=one.end_ns,
            status=one.head.status if one.head is not None else None,
            failed=one.failed,
            same_body=same_body,
        )

    def _runner_end(self, one: Talk) -> int | None:
        """When the runner was done with what its client had given up."""
        hop = serving(one)
        if hop is None or one.end_ns is None:
            return None
        end_ns = self._end_ns if hop.end_ns is None else hop.end_ns
        return end_ns if end_ns > one.end_ns else None

    def _window_start(self) -> int:
        """The arrival, or earlier: the start of a runner not ready yet, the arrival of a
        request that waited for the same runner."""
        arrival_ns = start_ns = self._talk.arrival_ns
        runner = self._runner
        if runner is None:
            return start_ns
        if runner.born_ns is not None and not self._ready_at(runner, arrival_ns):
            start_ns = min(start_ns, runner.born_ns)
        for one in self._others:
            waited = one.served_ns is None or one.served_ns > arrival_ns
            over = one.end_ns is not None and one.end_ns < arrival_ns
            if waited and not over and self._runner_of(one) == runner.tgid:
                start_ns = min(start_ns, one.arrival_ns)
        return max(start_ns, arrival_ns - LONG_LOOKBACK_NS)

    def _ready_at(self, runner: Proc, ts_ns: int) -> bool:
        if runner.fork is None and runner.exec is None:
            return True
        return runner.ready_ns is not None and runner.ready_ns <= ts_ns

    # --- what happened in it ---------------------------------------------------

    def _lives(self) -> tuple[Life, ...]:
        early_ns = self._start_ns - LOOKBACK_NS
        former = {r.runner for r in self._others if r.runner is not None}
        picked = [p for p in self._tree if self._bears(p, early_ns, former)]
        if len(picked) > MAX_LIVES:
            front = self._talk.server.tgid if self._talk.server is not None else 0
            vital = [p for p in picked if p is self._runner or p.tgid == front]
            rest = [p for p in picked if p not in vital]
            picked = vital + rest[len(vital) - MAX_LIVES :]
        return tuple(p.life() for p in sorted(picked, key=lambda p: (p.first_ns or 0, p.tgid)))

    def _bears(self, proc: Proc, early_ns: int, former: set[int]) -> bool:
        first = proc.first_ns
        if first is not None and first > self._end_ns:
            return False
        if proc.exit is None or proc.exit.ts_ns >= early_ns or proc is self._runner:
            return True
        is_runner = proc.tgid in former or (proc.command and proc.command.role == "runner")
        return bool(is_runner) and proc.exit.ts_ns >= self._start_ns - LONG_LOOKBACK_NS

    def _file_events(self, tgids: list[int]) -> tuple[list[Open], list[Span], int]:
        """Opens and spans in the window, and how many were left out."""
        events = self._world.events
        opens = events.opens(tgids, self._start_ns, self._end_ns)
        if self._runner is not None:
            seen = set(map(id, opens))
            opens += [
                o
                for o in events.weight_opens(self._runner.tgid)
                if id(o) not in seen and o.ts_ns < self._start_ns
            ]
        spans = events.spans(tgids, self._start_ns, self._end_ns)
        cut = max(0, len(spans) - MAX_SPANS) + max(0, len(opens) - MAX_OPENS)
        if len(spans) > MAX_SPANS:
            spans.sort(key=lambda s: s.tgid != self._talk.runner)
            del spans[MAX_SPANS:]
        if len(opens) > MAX_OPENS:
            opens.sort(key=lambda o: o.tgid != self._talk.runner)
            del opens[MAX_OPENS:]
        opens.sort(key=lambda o: (o.ts_ns, o.tid, o.token))
        spans.sort(key=lambda s: (s.ts_ns, s.tid, s.op, s.dev, s.ino))
        return opens, spans, cut

    def _keys(
        self, opens: Iterable[Open], spans: Iterable[Span], tgids: Iterable[int]
    ) -> list[FileKey]:
        keys = {(o.dev, o.ino) for o in opens} | {(s.dev, s.ino) for s in spans}
        # What was opened while nobody looked is told by the pages that came in.
        keys |= self._world.events.inserted_by(tgids, self._start_ns, self._end_ns)
        return sorted(keys)

    def _files(self, keys: Iterable[FileKey]) -> list[File]:
        files = self._world.events.files
        return [files[key] for key in keys if key in files]

    def _polls(self) -> tuple[Exchange, ...]:
        runner = self._talk.runner
        if runner is None:
            return ()
        polls = [
            p
            for p in self._site().polls
            if p.server_tgid == runner and self._start_ns <= p.arrival_ns <= self._end_ns
        ]
        polls.sort(key=lambda p: (p.arrival_ns, p.xid))
        ready = next((i for i, p in enumerate(polls) if p.answered_ns is not None), len(polls))
        half = MAX_POLLS // 2
        return tuple(p.exchange() for p in polls[max(0, ready - half) : ready + half])

    def _lost(self, cut: int) -> tuple[Lost, ...]:
        # A loss is told at the next drain: up to so much later than what it hides.
        until_ns = self._end_ns + DRAIN_NS
        lost = [r for r in self._world.lost if self._talk.arrival_ns <= r.ts_ns <= until_ns]
        if cut:
            lost.append(Lost(ts_ns=self._end_ns, kind="fold", count=cut))
        return tuple(lost)

    def _armed(self) -> tuple[Armed, ...]:
        before: dict[str, Armed] = {}
        within = []
        for record in self._world.armed:
            if record.ts_ns <= self._start_ns:
                before[record.group] = record
            elif record.ts_ns <= self._end_ns:
                within.append(record)
        return (*before.values(), *within)

    # --- what was there before -------------------------------------------------

    def _previous_model(self) -> str | None:
        """The model of the last request before this one that was or may yet be answered."""
        talk, site = self._talk, self._site()
        named: str | None = None
        for one in site.before(talk):
            over = one.end_ns is not None and one.end_ns < talk.arrival_ns
            if over and one.served_ns is None:
                continue
            named = model_of(self._world, one)
            break
        if named is None:
            named = site.last_model or self._world.linker.last_model.get(site.name)
        own = model_of(self._world, talk)
        return own if same_model(named, own) else named

    def _resident_before(self) -> bool | None:
        """Whether the runner held the model at arrival; None where it cannot be told."""
        runner, arrival_ns = self._runner, self._talk.arrival_ns
        if runner is None:
            return None
        starts = [t.ts_ns for t in (runner.fork, runner.exec) if t is not None]
        if starts and max(starts) >= arrival_ns:
            return False
        until_ns = self._talk.first_token_ns or self._end_ns
        if self._world.events.brought(runner.tgid, arrival_ns, until_ns) >= MIB:
            return False
        held_ns = self._last_served(runner, arrival_ns)
        if held_ns is None and runner.ready_ns is not None and runner.ready_ns <= arrival_ns:
            held_ns = runner.ready_ns
        if held_ns is not None:
            return not self._world.events.unmapped(runner.tgid, held_ns, arrival_ns)
        return self._answered_at_once(runner) if starts else None

    def _last_served(self, runner: Proc, ts_ns: int) -> int | None:
        """Until when the runner is known to have served before `ts_ns`."""
        site = self._site()
        for one in site.alive(ts_ns):
            since = one.served_ns
            serves = one is not self._talk and since is not None and since <= ts_ns
            if serves and self._runner_of(one) == runner.tgid:
                return ts_ns
        served = (one for one in site.ended(runner.tgid, ts_ns) if one.served_ns is not None)
        return next((one.end_ns for one in served), None)

    def _answered_at_once(self, runner: Proc) -> bool:
        """A runner loaded before, never seen ready: had it been loading, it had not got the
        request at once."""
        hop = serving(self._talk)
        read_ns = self._talk.read.ts_ns if self._talk.read else self._talk.arrival_ns
        if hop is not None:
            return hop.arrival_ns - read_ns <= AT_ONCE_NS
        loaded = (
            self._world.events.brought(runner.tgid, runner.born_ns or 0, self._talk.arrival_ns)
            >= MIB
        )
        return loaded and not self._talk.failed


def _holds_runner(one: Talk, ts_ns: int) -> bool:
    """Whether a runner was still at work on a request that is over."""
    hop = serving(one)
    return hop is not None and (hop.end_ns is None or hop.end_ns > ts_ns)


def _same_body(a: Talk, b: Talk) -> bool:
    return (
        a.body is not None
        and b.body is not None
        and (a.request.endpoint, a.body.model, a.body.bytes)
        == (b.request.endpoint, b.body.model, b.body.bytes)
    )


def _insert_order(insert: Insert) -> tuple[int, int, int]:
    return insert.ts_ns, insert.dev, insert.ino
