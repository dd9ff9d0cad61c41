"""What each of our programs costs, by the kernel's own count (BPF_ENABLE_STATS).

Runs for each warm request, for each cold switch, and a second of an unrelated process that does
all it can beside a quiet server. Counted are all runs on the host; the count itself takes some
20 ns of each. A program that never ran is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.common import Asker, Plan, Row, bpf_statistics, router, say, ttft_ms, watching
from bench.unrelated import attached, calm
from bench.workload import WORKS, processors, workload
from tests.workloads import bpf, pagecache
from tests.workloads.ttftd import Ttftd

#: BPF run time over TTFT, in percent.
BUDGET = 1.0
TOTAL = "all programs"
WARM, COLD, BUSY = "warm", "cold", "busy"


@dataclass(frozen=True)
class Use:
    """A program in one situation. `times`: requests, or seconds of a busy stranger."""

    runs: int
    run_ns: int
    times: float

    @property
    def ns_per_run(self) -> float:
        return self.run_ns / self.runs if self.runs else 0.0

    @property
    def runs_each(self) -> float:
        return self.runs / self.times


Table = dict[str, dict[str, Use]]


def run(plan: Plan) -> Iterator[Row]:
    """One router; requests, switches, and a stranger that does all it can."""
    table: Table = {}
    waited: dict[str, float] = {}
    own, _ = processors()
    with router(plan) as asker:
        asker.warm("alpha", 1)
        with watching(plan, asker.server.port) as daemon, bpf_statistics():
            calm(daemon)
            say("cost of each program: warm requests, cold switches, a busy stranger")
            asker.warm("alpha", 1)
            waited[WARM] = _used(
                table, WARM, daemon, plan.times(20, 100, 2), lambda: _ask(asker, "alpha")
            )
            models = iter(["beta", "alpha"] * plan.times(3, 20))
            waited[COLD] = _used(
                table, COLD, daemon, 2 * plan.times(3, 20), lambda: _cold(plan, asker, next(models))
            )
            calm(daemon)
            with workload(plan.out, own) as process:
                passes = plan.times(10, 50, 1)
                _used(table, BUSY, daemon, passes, lambda: sum(map(process.seconds, WORKS)))
            groups = sorted(attached(daemon))
    yield from rows(table, waited)
    yield Row("attached while busy", ", ".join(groups), data={"groups": groups})


def _ask(asker: Asker, model: str) -> float:
    """One token: until then is what is asked for."""
    return ttft_ms(asker.warm(model, 1)) / 1000


def _cold(plan: Plan, asker: Asker, model: str) -> float:
    pagecache.drop(plan.models / f"{model}.gguf")
    return _ask(asker, model)


def _used(table: Table, when: str, daemon: Ttftd, times: int, work: Callable[[], float]) -> float:
    """Do the work so often, note what ran meanwhile; seconds the work itself says it took."""
    ids, _ = bpf.held(daemon.pid)
    before = bpf.ran(ids)
    seconds = sum(work() for _ in range(times))
    per = seconds if when == BUSY else float(times)
    for id_, now in bpf.ran(ids).items():
        past = before[id_]
        use = Use(now.runs - past.runs, now.run_ns - past.run_ns, per)
        if use.runs:
            table.setdefault(now.name, {})[when] = use
    return seconds


def rows(table: Table, waited: dict[str, float]) -> list[Row]:
    """A row for each program, the dearest first, and the sums with their share of TTFT."""
    dearest = sorted(table, key=lambda name: -sum(use.run_ns for use in table[name].values()))
    found = [Row(name, _text(table[name]), data=_data(table[name])) for name in dearest]
    for when, times in ((WARM, waited[WARM]), (COLD, waited[COLD])):
        spent = sum(uses[when].run_ns for uses in table.values() if when in uses)
        share = 100 * spent / 1e9 / times
        found.append(
            Row(
                f"{TOTAL}: run time / TTFT, {when}",
                f"{share:.2f} %",
                f"{BUDGET:g} %",
                share <= BUDGET,
                {"percent": share, "run_ns": spent, "ttft_s": times},
            )
        )
    return found


def _text(uses: dict[str, Use]) -> str:
    each = {WARM: "", COLD: "", BUSY: "/s"}
    return ", ".join(
        f"{when} {use.runs_each:,.0f}{each[when]} x {use.ns_per_run:,.0f} ns"
        for when, use in uses.items()
    )


def _data(uses: dict[str, Use]) -> dict[str, object]:
    return {
        when: {
            "runs": use.runs,
            "run_ns": use.run_ns,
            "times": use.times,
            "runs_each": use.runs_each,
            "ns_per_run": use.ns_per_run,
        }
        for when, use in uses.items()
    }
