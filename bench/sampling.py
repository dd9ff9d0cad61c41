"""What sampling a server's code costs: by the kernel's count, in our own time, to the server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.common import Plan, Row, limit_row, paired, say
from tests.workloads.spin import Spin, compiled
from tests.workloads.waiting import wait_for
from tracer.kernel.loader import Kernel
from tracer.kernel.probes import PROBES, SAMPLER
from tracer.records import Conn, HttpBody, HttpEnd, HttpRequest, Samples
from tracer.stacks.clock import processors
from tracer.stacks.watch import StackWatch
from tracer.stacks.when import When

#: Percent of one processor, and of the server's time.
BUDGET = 0.5
#: How often the engine looks while a request is open.
LOOK_S = 0.2
OTHERS = sorted({probe.group for probe in PROBES} - {"stacks", "lifecycle"})
CONN = Conn(0, "127.0.0.1", 8080, "127.0.0.1", 40000)


def run(plan: Plan) -> Iterator[Row]:
    """Cost while all processors are sampled; then pairs of short runs."""
    program = compiled(plan.out)
    with Kernel.open(off=OTHERS) as kernel:
        watch = StackWatch(kernel, When(), say)
        yield from _busy(plan, kernel, watch, program)
        yield _server(plan, kernel, watch, program)
        watch.close()


@contextmanager
def sampled(watch: StackWatch) -> Iterator[None]:
    """A request waits."""
    now = time.monotonic_ns()
    watch.note(
        [
            HttpRequest(ts_ns=now, xid=1, conn=CONN, method="POST", endpoint="/v1/completions"),
            HttpBody(ts_ns=now, xid=1, bytes=1),
        ]
    )
    watch.collect(now)
    yield
    watch.note([HttpEnd(ts_ns=time.monotonic_ns(), xid=1, why="client_gone")])
    watch.collect(time.monotonic_ns())


def _busy(plan: Plan, kernel: Kernel, watch: StackWatch, program: Path) -> Iterator[Row]:
    cpus = len(processors())
    length_ms = plan.times(20_000, 60_000, 1000)
    say(f"cost of sampling {cpus} busy processors for {length_ms // 1000} s")
    found = own = 0
    with ExitStack() as stack:
        spins = [stack.enter_context(Spin(program, length_ms)) for _ in range(cpus)]
        for spin in spins:
            kernel.watch(spin.pid)
        kernel.enable_stats()
        before, began = _sampler(kernel), time.monotonic_ns()
        with sampled(watch):
            for spin in spins:
                spin.go()
            while not all(spin.done(0) for spin in spins):
                since = time.thread_time_ns()
                records = watch.collect(time.monotonic_ns())
                own += time.thread_time_ns() - since
                found += sum(s[0] for r in records if isinstance(r, Samples) for s in r.stacks)
                time.sleep(LOOK_S)
        took = time.monotonic_ns() - began
        after = _sampler(kernel)
    runs, run_ns = after[0] - before[0], after[1] - before[1]
    data = {"runs": runs, "samples": found, "cpus": cpus, "left_out": watch.left_out}
    yield Row("sampling: a run", f"{run_ns / max(1, runs):,.0f} ns, {runs} runs", data=data)
    yield Row("sampling: BPF run time", f"{100 * run_ns / took:.2f} % of a processor")
    yield Row("sampling: the daemon's part", f"{100 * own / took:.2f} % of a processor")
    share = 100 * (run_ns + own) / took
    yield limit_row("sampling: both", share, BUDGET, "%", 2)


def _sampler(kernel: Kernel) -> tuple[int, int]:
    (mine,) = (s for s in kernel.run_stats() if s.program == SAMPLER)
    return mine.runs, mine.run_ns


def _server(plan: Plan, kernel: Kernel, watch: StackWatch, program: Path) -> Row:
    """Processor time of the same work, sampled and not, the order turned round each time."""
    pairs = plan.times(60, 200, 2)
    say(f"processor time of a program, sampled and not: {pairs} pairs")
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(pairs):
        for on in (number % 2 == 0, number % 2 != 0):
            with Spin(program, 200) as spin:
                os.sched_setaffinity(spin.pid, {processors()[0]})
                kernel.watch(spin.pid)
                if on:
                    with sampled(watch):
                        times[on].append(_once(spin))
                else:
                    times[on].append(_once(spin))
    found = paired(times[True], times[False])
    ok = found.low <= 1 + BUDGET / 100
    return Row("sampling: the server's own time", str(found), "1.005", ok, {"ratio": found.value})


def _once(spin: Spin) -> float:
    spin.go()
    wait_for(lambda: spin.done(1), 60, "the work")
    return spin.spent().ns_per_turn
