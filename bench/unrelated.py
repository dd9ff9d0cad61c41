"""What watching costs processes that have nothing to do with the server.

Each round has four blocks of short slices: beside a warm, quiet server and during a cold load,
both with the daemon and without, the order turned round each time. A round gives one pair of
medians for each work; the ratio is the median over rounds, its interval from drawing rounds.
Server and stranger are in cgroups of their own, as two systemd units are; in some rounds segments
are seen in all cgroups, as where a server is in the root cgroup or a rule names only its port.
Time by the clock is judged, since that is what is felt; processor time, which other programs
disturb less, is printed beside it.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.common import SETTLE_S, Asker, Plan, Row, paired, say, spread, watching
from bench.workload import WORKS, Slice, Unrelated, processors, workload
from tests.workloads import llama, pagecache
from tests.workloads.cgroups import Cgroup
from tests.workloads.llama import Reply
from tests.workloads.throttle import Throttle, ThrottleError
from tests.workloads.ttftd import Ttftd
from tests.workloads.waiting import wait_for

QUIET = ("empty_syscall", "read_4k", "fault", "file_fault", "tcp_message")
BUDGET = {"quiet": dict.fromkeys(QUIET, 1.02), "cold": {"read_128k": 1.05}, "root": {}}
NAMED = {"quiet": "warm, quiet server", "cold": "during a cold load"}
WHEN = NAMED | {"root": "warm, quiet server, segments seen in all cgroups"}
SEGMENTS = "tcp_message"
#: Each so many rounds have a block with segments seen in all cgroups.
ROOT_EVERY = 2
#: Segments are seen everywhere where a rule says nothing but a port.
EVERYWHERE = '[[server]]\nname = "other"\nport = 1\n'
#: A hard disk's: a load takes about as long as the rest of the start.
DISK_BYTES_PER_S = 200_000_000
#: One thread, as the server has one processor.
OPTIONS = ("-np", "1", "-t", "1", "-c", "4096")
#: How long the daemon may take to let go of the probes it does not need beside a quiet server.
CALM_S = 6.0

#: Slices of one kind in one round, by work.
Block = defaultdict[str, list[Slice]]
#: Blocks by (quiet, cold or root, watched).
Round = dict[tuple[str, bool], Block]


@dataclass
class Seen:
    """All rounds, and what the daemon was like meanwhile."""

    rounds: list[Round] = field(default_factory=list)
    attached: set[str] = field(default_factory=set)
    cgroups: set[str] = field(default_factory=set)
    ttft_ms: list[float] = field(default_factory=list)
    load_ms: list[float] = field(default_factory=list)


def run(plan: Plan) -> Iterator[Row]:
    """All rounds on one router, then the rows."""
    count = plan.times(28, 100)
    say(f"unrelated processes: {count} rounds of some 12 s")
    own, servers = processors()
    seen = Seen()
    with contextlib.ExitStack() as stack:
        with _started_inside(stack, "ttft-bench-other"):
            process = stack.enter_context(workload(plan.out, own))
        asker, slow = stack.enter_context(_slow_router(plan, servers))
        asker.warm("alpha", 1)
        bench = _Bench(plan, process, asker, seen)
        for number in range(count):
            seen.rounds.append(bench.round(number))
            if number % 5 == 4:
                say(f"  {number + 1} of {count} rounds")
    for when in NAMED:
        yield from _rows(when, seen.rounds)
    yield _row("root", SEGMENTS, [found for found in seen.rounds if ("root", True) in found])
    yield _conditions(seen, slow)


@contextmanager
def _slow_router(plan: Plan, cpus: set[int]) -> Iterator[tuple[Asker, str]]:
    """A router on its own processors, its disk as slow as a hard disk where that can be had."""
    log = plan.out / "router.log"
    with contextlib.ExitStack() as groups, contextlib.ExitStack() as started:
        with _started_inside(groups, "ttft-bench-server"):
            router = llama.router(plan.models, 1, *OPTIONS, log=log)
            server = started.enter_context(router)
        for task in os.listdir(f"/proc/{server.pid}/task"):
            os.sched_setaffinity(int(task), cpus)
        slow = f"disk held to {DISK_BYTES_PER_S // 1_000_000} MB/s"
        try:
            throttle = groups.enter_context(Throttle(plan.models / "alpha.gguf", "ttft-bench"))
            throttle.add(server.pid)
            throttle.limit(DISK_BYTES_PER_S)
        except ThrottleError as error:
            slow = f"disk at its own speed: {error}"
        yield Asker(server), slow


@contextmanager
def _started_inside(stack: contextlib.ExitStack, name: str) -> Iterator[None]:
    """What is started meanwhile is in a cgroup of its own, where one can be made."""
    try:
        group = Cgroup(name)
    except FileNotFoundError:
        yield
        return
    with stack.enter_context(group).inside():
        yield


class _Bench:
    """Does the rounds."""

    def __init__(self, plan: Plan, process: Unrelated, asker: Asker, seen: Seen) -> None:
        self._plan = plan
        self._process = process
        self._asker = asker
        self._seen = seen
        self._loaded = "alpha"
        self._passes = plan.times(20, 20, 2)

    def round(self, number: int) -> Round:
        """One round; every second time the watched half comes first."""
        found: Round = {}
        first = number % 2 == 0
        for watched in (first, not first):
            if watched:
                with watching(self._plan, self._asker.server.port) as daemon:
                    calm(daemon)
                    found["quiet", True] = self._quiet()
                    self._seen.attached |= attached(daemon)
                    self._seen.cgroups |= cgroups(daemon)
                    found["cold", True], reply = self._cold()
                    self._note(daemon, reply)
            else:
                time.sleep(SETTLE_S / 5)
                found["quiet", False] = self._quiet()
                found["cold", False], _ = self._cold()
        if number % ROOT_EVERY == 0:
            with watching(self._plan, self._asker.server.port, EVERYWHERE) as daemon:
                calm(daemon)
                assert cgroups(daemon) == {"/"}
                found["root", True] = self._segments()
            time.sleep(SETTLE_S / 5)
            found["root", False] = self._segments()
        return found

    def _segments(self) -> Block:
        return Block(list, {SEGMENTS: [self._process.do(SEGMENTS) for _ in range(self._passes)]})

    def _quiet(self) -> Block:
        block = Block(list)
        for _ in range(self._passes):
            for work in WORKS:
                block[work].append(self._process.do(work))
        return block

    def _cold(self) -> tuple[Block, Reply]:
        """Slices that lie between the request and its first token: a switch to the other model."""
        model = {"alpha": "beta", "beta": "alpha"}[self._loaded]
        self._loaded = model
        pagecache.drop(self._plan.models / f"{model}.gguf")
        slices: list[tuple[str, Slice]] = []
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(self._asker.warm, model, 1)
            while not asked.done():
                slices += [(work, self._process.do(work)) for work in WORKS if not asked.done()]
            reply = asked.result()
        block = Block(list)
        for work, one in slices:
            assert reply.first_token_ns is not None
            if reply.sent_ns <= one.began_ns and one.ended_ns <= reply.first_token_ns:
                block[work].append(one)
        return block, reply

    def _note(self, daemon: Ttftd, reply: Reply) -> None:
        (item,) = daemon.explained([reply])
        self._seen.ttft_ms.append(item["ttft_ms"])
        self._seen.load_ms.append(item["phases_ms"]["load"])


def calm(daemon: Ttftd) -> None:
    """Wait until it has let go of what it needs for a start only, or will not."""
    began = attached(daemon)
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: attached(daemon) != began, CALM_S, "probes to go", 0.2)
    time.sleep(SETTLE_S / 5)


def attached(daemon: Ttftd) -> set[str]:
    """Groups of probes that are attached now."""
    return {probe["group"] for probe in daemon.get("/v1/status")["probes"] if probe["attached"]}


def cgroups(daemon: Ttftd) -> set[str]:
    """Where segments are seen now."""
    probes = daemon.get("/v1/status")["probes"]
    return {path for probe in probes for path in probe["cgroups"] or ()}


def _rows(when: str, rounds: list[Round]) -> list[Row]:
    return [_row(when, work, rounds) for work in WORKS]


def _row(when: str, work: str, rounds: list[Round]) -> Row:
    """Rounds in which both halves had slices of this work."""
    halves = [(r[when, True][work], r[when, False][work]) for r in rounds]
    halves = [(watched, control) for watched, control in halves if watched and control]
    budget = BUDGET[when].get(work)
    what = f"{WORKS[work][0]}, {WHEN[when]}"
    if not halves:
        return Row(what, "no slices", "-", None if budget is None else False)
    found = paired([_cost(w) for w, _ in halves], [_cost(c) for _, c in halves])
    own = paired([_cpu(w) for w, _ in halves], [_cpu(c) for _, c in halves])
    watched_all = [one for watched, _ in halves for one in watched]
    control_all = [one for _, control in halves for one in control]
    wide = spread([one.ns_per_op for one in control_all])
    return Row(
        what,
        f"{_cost(control_all):,.0f} -> {_cost(watched_all):,.0f} ns: {found}, "
        f"processor time {own.value:.3f}, spread {100 * wide:.0f} %",
        "-" if budget is None else f"{budget:.2f}",
        None if budget is None else found.low <= budget,
        {
            "ratio": found.value,
            "low": found.low,
            "high": found.high,
            "rounds": found.pairs,
            "slices": len(watched_all),
            "control_slices": len(control_all),
            "budget": budget,
            "ns": _cost(watched_all),
            "control_ns": _cost(control_all),
            "cpu_ratio": own.value,
            "cpu_low": own.low,
            "cpu_high": own.high,
            "cpu_ns": _cpu(watched_all),
            "control_cpu_ns": _cpu(control_all),
            "control_spread": wide,
        },
    )


def _cost(slices: list[Slice]) -> float:
    return statistics.median(one.ns_per_op for one in slices)


def _cpu(slices: list[Slice]) -> float:
    return statistics.median(one.cpu_ns_per_op for one in slices)


def _conditions(seen: Seen, slow: str) -> Row:
    """What the figures above were measured under; any round counts for the groups."""
    share = 100 * sum(seen.load_ms) / sum(seen.ttft_ms)
    ttft = statistics.median(seen.ttft_ms)
    return Row(
        "measured under",
        f"attached when quiet: {', '.join(sorted(seen.attached))}; cold loads: TTFT "
        f"{ttft:,.0f} ms, weights coming in {share:.0f} % of it, {slow}",
        data={
            "ttft_ms": ttft,
            "load_percent": share,
            "disk": slow,
            "attached_quiet": sorted(seen.attached),
            "cgroups_quiet": sorted(seen.cgroups),
            "order": "each round: quiet and cold, watched and not, the watched half first in turn",
        },
    )
