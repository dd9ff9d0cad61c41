"""What the daemon itself takes, and how soon it answers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from bench.common import (
    SETTLE_S,
    Asker,
    Plan,
    Row,
    limit_row,
    median_s,
    pss_mb,
    router,
    say,
    task_cpu_ns,
    watching,
)
from tests.workloads import pagecache
from tests.workloads.llama import Reply
from tests.workloads.ttftd import Ttftd, ttft
from tests.workloads.waiting import wait_for

#: What a command may take from Enter to its answer.
COMMAND_S = 0.12


def run(plan: Plan) -> Iterator[Row]:
    """All rows on one router."""
    with router(plan) as asker:
        asker.warm("alpha")
        yield _start(plan)
        with watching(plan, asker.server.port) as daemon:
            yield from _idle(plan, daemon)
            yield from _cold(plan, asker, daemon)
            yield from _commands(plan, daemon)


def _start(plan: Plan) -> Row:
    """From fork to an answering socket with all probes attached."""
    say("start of the daemon")
    taken = []
    for _ in range(plan.times(5, 20)):
        daemon = Ttftd(plan.out / "ttftd")
        began = time.monotonic()
        with daemon:
            taken.append(time.monotonic() - began)
    return limit_row("start to all probes attached", statistics.median(taken), 0.5, "s", 2)


def _idle(plan: Plan, daemon: Ttftd) -> list[Row]:
    """Nobody asks the server anything, nobody asks us."""
    seconds = plan.times(15, 120)
    say(f"idle for {seconds} s")
    time.sleep(2 * SETTLE_S)  # starting is not idling
    share = cpu_percent(daemon.pid, lambda: time.sleep(seconds))
    return [
        limit_row("daemon CPU, idle", share, 0.3, "% of a core", 2),
        limit_row("daemon memory (PSS), idle", pss_mb(daemon.pid), 40, "MB"),
    ]


def cpu_percent(pid: int, work: Callable[[], object]) -> float:
    """CPU of a process while some work is done, in percent of one core."""
    before, began = task_cpu_ns(pid), time.monotonic_ns()
    work()
    return 100 * (task_cpu_ns(pid) - before) / (time.monotonic_ns() - began)


def _cold(plan: Plan, asker: Asker, daemon: Ttftd) -> list[Row]:
    """CPU during a cold switch, and the time from its first token to our verdict."""
    times = plan.times(6, 20)
    say(f"{times} cold switches")
    shares: list[float] = []
    loads: list[float] = []
    delays: list[float] = []
    memory = 0.0
    for number in range(times):
        model = ("beta", "alpha")[number % 2]
        pagecache.drop(plan.models / f"{model}.gguf")
        known = _newest_spike(daemon)
        before, began = task_cpu_ns(daemon.pid), time.monotonic_ns()
        reply = asker.warm(model, 1)
        spent, took = task_cpu_ns(daemon.pid) - before, time.monotonic_ns() - began
        shares.append(100 * spent / took)
        loads.append(took / 1e9)
        delays.append(_delay(reply, daemon, known))
        memory = max(memory, pss_mb(daemon.pid))
    return [
        limit_row("daemon memory (PSS), under load: cold switches", memory, 55, "MB"),
        limit_row(
            f"daemon CPU, cold loads of {statistics.median(loads):.1f} s each",
            statistics.median(shares),
            3.0,
            "% of a core",
            2,
        ),
        limit_row("first token to spike answered", statistics.median(delays), 0.5, "s", 3),
    ]


def _newest_spike(daemon: Ttftd) -> int:
    """Id of the newest spike, 0 where there is none."""
    return max((item["id"] for item in daemon.get("/v1/spikes", last=1)), default=0)


def _delay(reply: Reply, daemon: Ttftd, known: int) -> float:
    """Seconds from the first token at the client to the spike at our socket."""
    wait_for(lambda: _newest_spike(daemon) > known, 30, "the spike to be answered")
    assert reply.first_token_ns is not None
    return (time.monotonic_ns() - reply.first_token_ns) / 1e9


def _commands(plan: Plan, daemon: Ttftd) -> Iterator[Row]:
    """Whole processes, interpreter start included."""
    newest = max(item["id"] for item in daemon.requests(1))
    for command in ("spikes", f"show {newest}", "status", "requests", "--help"):
        taken = median_s(partial(run_command, daemon, command), plan.times(10, 50))
        name = f"`ttft {command.split()[0]}`, whole process"
        yield limit_row(name, taken, COMMAND_S, "s", 3)


def run_command(daemon: Ttftd, command: str) -> None:
    """Run a command against a daemon."""
    done = ttft(*command.split(), socket=daemon.socket)
    if done.returncode:
        raise RuntimeError(f"ttft {command}: {done.stderr}")


def spikes(daemon: Ttftd) -> None:
    """Run `ttft spikes` against a daemon."""
    run_command(daemon, "spikes")
