"""Probes that come and go against probes that stay: the same requests, explained from both.

A hundred requests in random order are recorded with all probes on; what arming would not have
collected is dropped from the records; both are explained. Then how long turning on takes.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.common import MS, Asker, Plan, Row, limit_row, router, say, watching
from bench.thinned import what_arming_keeps
from tests.workloads import llama, pagecache
from tests.workloads.ttftd import Ttftd
from tests.workloads.waiting import wait_for
from tracer.arming import GROUP, Policy
from tracer.derived import Derived
from tracer.pipeline import Pipeline
from tracer.recording import Recording
from tracer.records import AnyRecord, Armed, Exec, File, HttpRequest, Open

SEED = 7
#: Longer than the probes stay on when all is quiet, and than the sleeper stays awake.
PAUSE_S = 3.6
SLEEP_S = 2
WAIT_S = 60.0
#: Phases may differ by so much of themselves, or by what is no time at all.
PART = 0.02
LEAST_NS = 1 * MS
HASTY_NS = 300 * MS
#: From what turns the probes on until they are, with room.
LATENCY_NS = 5 * MS
ALWAYS = '[probes]\narming = "always"\n'


@dataclass
class Scene:
    """What is asked: a router of two models and a server that sleeps when idle."""

    plan: Plan
    asker: Asker
    sleeper: Asker
    resident: str = "alpha"
    asked: Counter[str] = field(default_factory=Counter)

    def cold(self) -> None:
        """The other model, from the disk."""
        self._switch(drop=True)

    def switch(self) -> None:
        """The other model, from the page cache."""
        self._switch(drop=False)

    def _switch(self, *, drop: bool) -> None:
        self.resident = "beta" if self.resident == "alpha" else "alpha"
        if drop:
            pagecache.drop(self._file, WAIT_S)
        self.warm()

    def warm(self) -> None:
        """The model that is there."""
        self.asker.warm(self.resident, 4)

    def paused(self) -> None:
        """The same after a pause."""
        time.sleep(PAUSE_S)
        self.warm()

    def evicted(self) -> None:
        """The same, its weights put out of the page cache meanwhile."""
        for runner in self.asker.server.runners():
            pagecache.page_out(runner, self._file, WAIT_S)
        self.warm()

    def asleep(self) -> None:
        """A model that its server had put away."""
        time.sleep(PAUSE_S)
        self.sleeper.warm("sleeper", 4)

    @property
    def _file(self) -> Path:
        return self.plan.models / f"{self.resident}.gguf"


#: How many of a hundred.
MIX: dict[Callable[[Scene], None], int] = {
    Scene.cold: 16, Scene.switch: 16, Scene.warm: 38, Scene.paused: 12, Scene.evicted: 8,
    Scene.asleep: 10,
}  # fmt: skip


@contextmanager
def scene(plan: Plan) -> Iterator[Scene]:
    """The servers, warm. A file that two had mapped could not be put out of the page cache."""
    log, model = plan.out / "sleeper.log", plan.out / "sleeper.gguf"
    if not model.exists():
        shutil.copy(plan.models / "alpha.gguf", model)
    options = ("-np", "1", "-c", "4096", "--sleep-idle-seconds", str(SLEEP_S))
    with (
        router(plan) as asker,
        llama.alone(model, *options, log=log) as sleeper,
    ):
        made = Scene(plan, asker, Asker(sleeper))
        made.warm()
        yield made


def run(plan: Plan) -> Iterator[Row]:
    """Agreement of both, then latencies."""
    records = _recorded(plan, plan.times(100, 300, 8))
    yield from _agreement(records)
    yield from _latencies(plan, plan.times(8, 25, 1))


def _recorded(plan: Plan, count: int) -> list[AnyRecord]:
    """All that all probes tell of so many requests."""
    say(f"{count} requests in random order, all probes on")
    chance = random.Random(SEED)
    steps = [step for step, many in MIX.items() for _ in range(-(-many * count // 100))]
    chance.shuffle(steps)
    path = plan.out / "arming.ndjson"
    with (
        scene(plan) as made,
        watching(plan, made.asker.server.port, ALWAYS) as daemon,
        daemon.recording(path),
    ):
        daemon.wait_server(made.sleeper.server.port)
        for number, step in enumerate(steps[:count]):
            step(made)
            made.asked[step.__name__] += 1
            if number % 20 == 19:
                say(f"  {number + 1} of {count}")
        time.sleep(1)
        say(", ".join(f"{many} {name}" for name, many in sorted(made.asked.items())))
    return list(Recording(path))


def explained(records: Iterable[AnyRecord]) -> dict[int, Derived]:
    """The last word on each request, by id."""
    pipeline = Pipeline()
    found = {d.evidence.id: d for record in records for d in pipeline.feed(record)}
    return found | {d.evidence.id: d for d in pipeline.finish()}


def verdict(d: Derived) -> tuple[object, ...]:
    """What is concluded, figures aside."""
    s = d.spike
    return (d.outcome, s.is_spike, s.first_expanded, s.dominant, s.cause, s.why, s.switch_is_cause)


def phases_agree(one: Derived, other: Derived) -> bool:
    """Whether each phase is the same within `PART`."""
    pairs = ((n, other.phases.phases_ns[p]) for p, n in one.phases.phases_ns.items())
    return all(abs(a - b) <= max(LEAST_NS, PART * max(a, b)) for a, b in pairs)


def facts_agree(one: Derived, other: Derived) -> bool:
    """Minor faults may be unknown: what counts them comes and goes too."""
    facts = one.facts
    if other.facts.minor_faults is None:
        facts = msgspec.structs.replace(facts, minor_faults=None)
    return facts == other.facts


def _agreement(records: list[AnyRecord]) -> Iterator[Row]:
    """As the daemon has it; and with probes that go off almost at once, so that they often do."""
    whole = explained(records)
    yield Row("requests explained twice", f"{sum(d.outcome == 'ok' for d in whole.values())}")
    hasty = Policy(quiet_ns=HASTY_NS, start_ns=HASTY_NS)
    yield from _compared("arming", records, whole, Policy())
    yield from _compared(f"off after {HASTY_NS / 1e9:g} s", records, whole, hasty)


def _compared(
    name: str, records: list[AnyRecord], whole: dict[int, Derived], policy: Policy
) -> Iterator[Row]:
    kept = what_arming_keeps(records, policy, LATENCY_NS)
    thin = explained(kept)
    pairs = [(d, thin[number]) for number, d in whole.items() if d.outcome == "ok"]
    turned = Counter(r.why for r in _turns(kept) if r.on)
    said = ", ".join(f"{many} {why}" for why, many in turned.most_common())
    yield Row(f"{name}: turned on for", said or "nothing", data={"why": dict(turned)})
    yield Row(f"{name}: time on", f"{_share_on(kept):.0%} of {_length_s(kept):.0f} s")
    wrong = [d.evidence.id for d, t in pairs if verdict(d) != verdict(t)]
    yield limit_row(f"{name}: other verdicts", len(wrong), 0, "", 0)
    apart = [(d, t) for d, t in pairs if not phases_agree(d, t)]
    unmarked = [t.evidence.id for _, t in apart if t.complete]
    yield Row(f"{name}: phases more than 2 % apart", f"{len(apart)}")
    yield limit_row(f"{name}: of these not marked as estimates", len(unmarked), 0, "", 0)
    late = [t.evidence.id for d, t in pairs if d.complete and not t.complete]
    yield Row(f"{name}: marked as begun late", f"{len(late)}", data={"ids": late})
    other = [d.evidence.id for d, t in pairs if t.complete and not facts_agree(d, t)]
    yield limit_row(f"{name}: other figures as evidence", len(other), 0, "", 0)


def _length_s(records: list[AnyRecord]) -> float:
    times = [r.ts_ns for r in records if isinstance(r, HttpRequest)]
    return (max(times) - min(times)) / 1e9


def _turns(records: list[AnyRecord]) -> list[Armed]:
    return [r for r in records if isinstance(r, Armed) and r.group == GROUP]


def _share_on(records: list[AnyRecord]) -> float:
    """Part of the time between the first and the last request."""
    times = [r.ts_ns for r in records if isinstance(r, HttpRequest)]
    first, last = min(times), max(times)
    total, since = 0, first
    on = True
    for armed in _turns(records):
        at = min(max(armed.ts_ns, first), last)
        total += at - since if on else 0
        on, since = armed.on, at
    total += last - since if on else 0
    return total / max(1, last - first)


# --- how long it takes -------------------------------------------------------------------


def is_on(daemon: Ttftd) -> bool:
    """Whether the group that comes and goes is attached."""
    probes = daemon.get("/v1/status")["probes"]
    return any(p["group"] == GROUP and p["attached"] for p in probes)


def _latencies(plan: Plan, rounds: int) -> Iterator[Row]:
    """From what turns the probes on until they are, and what time there is for it."""
    say(f"probes turned on, {rounds} rounds")
    path = plan.out / "armed.ndjson"
    spawned: list[int] = []
    with (
        scene(plan) as made,
        watching(plan, made.asker.server.port) as daemon,
        daemon.recording(path),
    ):
        daemon.wait_server(made.sleeper.server.port)
        for _ in range(rounds):
            for step in (Scene.warm, Scene.switch, Scene.asleep, None):
                wait_for(lambda: not is_on(daemon), WAIT_S, "the probes to go off", 0.2)
                if step is None:
                    spawned.append(time.monotonic_ns())
                    _spawn()
                else:
                    step(made)
        time.sleep(1)
    yield from _timed(list(Recording(path)), spawned)


def _spawn() -> None:
    """A program with a server's name starts, and is gone at once."""
    binary = llama.server_binary()
    env = os.environ | {"LD_LIBRARY_PATH": str(binary.parent)}
    subprocess.run([binary, "--version"], env=env, capture_output=True, check=False)


def _timed(records: list[AnyRecord], spawned: list[int]) -> Iterator[Row]:
    turned = _turns(records)
    asked = [r.ts_ns for r in records if isinstance(r, HttpRequest) and r.method == "POST"]
    ons = {
        why: [r.ts_ns for r in turned if r.on and r.why == why] for why in ("process", "arrival")
    }
    waits = [min((t for t in ons["process"] if t >= at), default=at) - at for at in spawned]
    yield _spread("arming: on after the spawn of a server", [w for w in waits if 0 < w < 1000 * MS])
    waits = [t - max(a for a in asked if a <= t) for t in ons["arrival"]]
    yield _spread("arming: on after a request's first byte", waits)
    opens = _weight_opens(records)
    execs = {r.tgid: r.ts_ns for r in records if isinstance(r, Exec)}
    rooms = [min(opens[tgid]) - at for tgid, at in execs.items() if tgid in opens]
    yield _spread("arming: a runner's exec to the first weights opened", rooms, least=True)
    rooms = [
        next(t for t in times if t > at) - at
        for tgid, times in opens.items()
        if tgid not in execs
        for at in _wakes(times, asked)
    ]
    yield _spread("arming: a sleeper's request to the first weights opened", rooms, least=True)
    took = {on: [r.took_ns for r in turned if r.on is on and r.took_ns] for on in (True, False)}
    yield _spread("arming: attach", took[True])
    yield _spread("arming: detach", took[False])


def _weight_opens(records: list[AnyRecord]) -> dict[int, list[int]]:
    """When each process opened weights."""
    weights = {(r.dev, r.ino) for r in records if isinstance(r, File) and r.fmt}
    found: dict[int, list[int]] = {}
    for r in records:
        if isinstance(r, Open) and (r.dev, r.ino) in weights:
            found.setdefault(r.tgid, []).append(r.ts_ns)
    return {tgid: sorted(times) for tgid, times in found.items()}


def _wakes(opens: list[int], asked: list[int]) -> set[int]:
    """The requests that opens follow: the last before each."""
    return {max(a for a in asked if a < t) for t in opens if asked and min(asked) < t}


def _spread(what: str, values: list[int], *, least: bool = False) -> Row:
    """Median and the worst of some times: the longest, or the `least`."""
    if not values:
        return Row(what, "none")
    worst = min(values) if least else max(values)
    word = "least" if least else "most"
    text = f"{statistics.median(values) / MS:.2f} ms, {word} {worst / MS:.2f} (n={len(values)})"
    return Row(what, text, data={"ns": values})
