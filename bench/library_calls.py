"""What an entry probe costs a call, in nanoseconds of processor time by the caller's own clock.

Stand-ins for libcuda and libamdhip64 (tests/workloads/library_calls.py) whose functions return at
once, called in a loop: by a watched process, and by a stranger who maps the same file.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.common import Plan, Row, say
from tests.workloads.library_calls import Caller, make_caller, make_library
from tests.workloads.waiting import wait_for
from tracer.kernel.loader import Kernel
from tracer.kernel.wire import RawCall, RawLinked
from tracer.libs.calls import Catalogue, Library, shipped
from tracer.libs.watch import LibraryWatch
from tracer.records import Library as Mapped
from tracer.records import Process

FILES = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so.6"}
#: What is called, and how its amount is read; eight sizes of 8 bytes each in the array.
CALLS = {
    ("cuda", "no amount"): "cuInit {count} 0",
    ("cuda", "an argument"): "cuMemcpyHtoD_v2 {count} 0 0 4096",
    ("cuda", "8 sizes of an array"): "cuMemcpyBatchAsync {count} 0 0 m0 8",
    ("hip", "an argument, if another says so"): "hipMemcpy {count} 0 0 4096 1",
}
ROUNDS, EACH = 11, 20_000
_WAIT_S = 10


@dataclass
class Costs:
    """ns a call of each round."""

    free: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    stranger: list[float] = field(default_factory=list)


def run(plan: Plan) -> Iterator[Row]:
    """A row for each kind of call."""
    say("cost of a call into a library whose entry is watched")
    catalogue = Catalogue(shipped())
    libraries = {x.name: x for x in catalogue.libraries if x.name in FILES}
    with TemporaryDirectory() as name:
        folder = Path(name)
        caller = make_caller(folder)
        for (library, kind), line in CALLS.items():
            file = make_library(folder, FILES[library], libraries[library].symbols)
            costs = _measure(plan, caller, file, catalogue, libraries[library], line)
            yield row(f"{library}, {kind}", costs)


def _measure(
    plan: Plan, binary: Path, file: Path, catalogue: Catalogue, library: Library, line: str
) -> Costs:
    costs, spin = Costs(), f"spin {line.format(count=plan.times(EACH, EACH, 500))}"
    rounds = plan.times(ROUNDS, 5 * ROUNDS)
    with Caller(binary) as watched, Caller(binary) as stranger:
        for one in (watched, stranger):
            one.tell(f"open {file}")
        costs.free = [float(stranger.tell(spin)) for _ in range(rounds)]
        with Kernel.open(off=("sockets", "files", "faults")) as kernel:
            watch = LibraryWatch(kernel, catalogue, say)
            try:
                _adopt(kernel, watch, watched.pid, library.name)
                for _ in range(rounds):
                    costs.watched.append(float(watched.tell(spin)))
                    costs.stranger.append(float(stranger.tell(spin)))
                    kernel.drain()
            finally:
                watch.close()
    return costs


def _adopt(kernel: Kernel, watch: LibraryWatch, pid: int, library: str) -> None:
    """Watch the process, until its library is probed."""
    kernel.watch(pid)
    now_ns = time.monotonic_ns()
    watch.note([Process(ts_ns=now_ns, tgid=pid, ppid=0, start_ns=0, comm="calls")])

    def probed() -> bool:
        found = [r for raw in kernel.drain() if isinstance(raw, RawCall | RawLinked)
                 for r in watch.raw(raw)]  # fmt: skip
        found += watch.collect(time.monotonic_ns(), busy=True)
        return any(isinstance(r, Mapped) and r.name == library for r in found)

    wait_for(probed, _WAIT_S, f"{library} to be probed")


def row(what: str, costs: Costs) -> Row:
    """Medians; what the probe adds is the difference to the same call without it."""
    free, watched, stranger = map(statistics.median, (costs.free, costs.watched, costs.stranger))
    added = {"free": free, "watched": watched - free, "stranger": stranger - free}
    text = (
        f"+{added['watched']:,.0f} ns (call {free:,.0f}), of a stranger +{added['stranger']:,.0f}"
    )
    return Row(f"a watched call: {what}", text, data={"ns": added, "rounds": len(costs.watched)})
