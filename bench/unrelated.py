"""What watching costs processes that have nothing to do with the server."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import cycle
from pathlib import Path

from bench.common import Asker, Plan, Row, ratio_row, router, say, watching
from tests.workloads import pagecache
from tests.workloads.throttle import Throttle, ThrottleError

SOURCE = Path(__file__).with_name("unrelated.c")
WORKS = {
    "empty_syscall": "empty syscall",
    "read_1": "1-byte read",
    "read_4k": "4 KiB read",
    "read_128k": "128 KiB cached read",
    "fault": "page fault",
    "tcp_message": "small TCP message, another port",
}
QUIET_BUDGET = {"empty_syscall": 1.02, "read_4k": 1.02, "fault": 1.02, "tcp_message": 1.02}
LOADING_BUDGET = {"read_128k": 1.05}
SLOW_BYTES_PER_S = 60_000_000  # so that a load outlasts many passes
BLOCK = 10
Costs = defaultdict[str, list[float]]


class Unrelated:
    """The workload process; `cost(work)` is ns per operation."""

    def __init__(self, plan: Plan) -> None:
        compiler = shutil.which("clang") or shutil.which("cc")
        if compiler is None:
            raise FileNotFoundError("a C compiler is needed: apt-get install clang")
        binary = plan.out / "unrelated"
        subprocess.run([compiler, "-O2", "-pthread", SOURCE, "-o", binary], check=True)
        file = plan.out / "cached.bin"
        file.write_bytes(b"\x5a" * (2 << 20))
        self._process = subprocess.Popen(
            [binary, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def cost(self, work: str) -> float:
        """Do it once."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{work}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()


@contextmanager
def workload(plan: Plan) -> Iterator[Unrelated]:
    """The process, ended afterwards."""
    process = Unrelated(plan)
    try:
        yield process
    finally:
        process.close()


def run(plan: Plan) -> Iterator[Row]:
    """Beside a warm quiet server, then during cold loads."""
    with workload(plan) as process:
        with router(plan) as asker:
            asker.warm("alpha")
            yield from _quiet(plan, process, asker.server.port)
        try:
            with Throttle(plan.models / "alpha.gguf", "ttft-bench") as throttle:
                yield from _loading(plan, process, throttle)
        except ThrottleError as error:
            yield Row("unrelated processes during a cold load", f"not measured: {error}")


def _quiet(plan: Plan, process: Unrelated, port: int) -> list[Row]:
    count = plan.times(100, 200)
    say(f"unrelated processes beside a quiet server: {count} pairs")
    watched, control = Costs(list), Costs(list)
    for number in range(count // BLOCK):
        for on in (True, False) if number % 2 else (False, True):
            with watching(plan, port) if on else nullcontext():
                for _ in range(BLOCK):
                    _pass(process, watched if on else control)
        say(f"  {(number + 1) * BLOCK} of {count} pairs")
    return _rows("quiet server", watched, control, QUIET_BUDGET)


def _pass(process: Unrelated, costs: Costs) -> None:
    for work in WORKS:
        costs[work].append(process.cost(work))


def _loading(plan: Plan, process: Unrelated, throttle: Throttle) -> list[Row]:
    """The control is the same load, untraced."""
    count = plan.times(100, 300)
    say(f"unrelated processes during cold loads: {count} pairs")
    watched, control = Costs(list), Costs(list)
    models = cycle(("beta", "alpha"))
    with router(plan) as asker:
        throttle.add(asker.server.pid)
        throttle.limit(SLOW_BYTES_PER_S)
        on = False
        while len(control["read_128k"]) < count or len(watched["read_128k"]) < count:
            with watching(plan, asker.server.port) if on else nullcontext():
                _during_load(plan, asker, next(models), process, watched if on else control)
            on = not on
            say(f"  {min(len(control['read_128k']), count)} of {count} pairs")
        throttle.limit(None)
    return _rows("cold load", _cut(watched, count), _cut(control, count), LOADING_BUDGET)


def _during_load(plan: Plan, asker: Asker, model: str, process: Unrelated, costs: Costs) -> None:
    """Passes while the weights come in: from the first page cached to the last."""
    path = plan.models / f"{model}.gguf"
    size = path.stat().st_size
    pagecache.drop(path)
    with ThreadPoolExecutor(1) as threads:
        reply = threads.submit(asker.warm, model, 1)
        while not reply.done():
            if 0 < pagecache.cached_bytes(path) < size:
                _pass(process, costs)
        reply.result()


def _cut(costs: Costs, count: int) -> Costs:
    return Costs(list, {work: found[:count] for work, found in costs.items()})


def _rows(when: str, watched: Costs, control: Costs, budget: dict[str, float]) -> list[Row]:
    return [
        ratio_row(f"{name}, {when}", watched[work], control[work], budget.get(work))
        for work, name in WORKS.items()
    ]
