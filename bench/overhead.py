"""What watching costs the watched server: TTFT and decode rate, traced against untraced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import cycle

from bench import peers
from bench.common import (
    MS,
    SETTLE_S,
    Asker,
    Plan,
    Row,
    bpf_statistics,
    decode_rate,
    limit_row,
    ratio_row,
    router,
    say,
    ttft_ms,
    watching,
)
from bench.peers import Observer
from tests.workloads import pagecache
from tests.workloads.llama import Reply

BUDGET = 1.01
WARM_BLOCK = 10
COLD_BLOCK = 2
Ask = Callable[[], Reply]
Pairs = tuple[list[Reply], list[Reply]]


def run(plan: Plan) -> Iterator[Row]:
    """Our own rows, then the peers'."""
    with router(plan) as asker:
        ours = peers.ttftd(plan)
        yield from _warm_rows("", _warm(plan, asker, ours, plan.times(100, 200)), BUDGET)
        yield from _cold_rows("", _cold(plan, asker, ours, plan.times(10, 100)), BUDGET)
        yield from _bpf_time(plan, asker)
        for name, peer in (("strace", peers.strace(plan)), ("bpftrace", peers.bpftrace(plan))):
            if peer is None:
                yield Row(f"{name} in our place", "not installed")
                continue
            say(f"{name} in our place")
            yield from _warm_rows(f"{name}: ", _warm(plan, asker, peer, plan.times(10, 30)), None)
            yield from _cold_rows(f"{name}: ", _cold(plan, asker, peer, plan.times(4, 10)), None)


def _warm_rows(prefix: str, pairs: Pairs, budget: float | None) -> list[Row]:
    observed, control = pairs
    return [
        ratio_row(f"{prefix}TTFT warm", _ttfts(observed), _ttfts(control), budget),
        # the rate falls where time grows, so its ratio is turned round
        ratio_row(f"{prefix}time per token, decoding", _gaps(observed), _gaps(control), budget),
    ]


def _cold_rows(prefix: str, pairs: Pairs, budget: float | None) -> list[Row]:
    return [ratio_row(f"{prefix}TTFT cold load", _ttfts(pairs[0]), _ttfts(pairs[1]), budget)]


def _ttfts(replies: list[Reply]) -> list[float]:
    return [ttft_ms(reply) for reply in replies]


def _gaps(replies: list[Reply]) -> list[float]:
    return [1000 / decode_rate(reply) for reply in replies]


def _warm(plan: Plan, asker: Asker, observer: Observer, count: int) -> Pairs:
    say(f"warm requests: {count} pairs")
    asker.warm("alpha")
    return _pairs(asker, observer, lambda: asker.warm("alpha"), count, WARM_BLOCK)


def _cold(plan: Plan, asker: Asker, observer: Observer, count: int) -> Pairs:
    say(f"cold loads: {count} pairs")
    models = _others()

    def ask() -> Reply:
        model = next(models)
        pagecache.drop(plan.models / f"{model}.gguf")
        return asker.warm(model, tokens=2)

    asker.warm("alpha")
    return _pairs(asker, observer, ask, count, COLD_BLOCK)


def _others() -> Iterator[str]:
    """The model that is not loaded, alpha being so at first."""
    return cycle(("beta", "alpha"))


def _pairs(asker: Asker, observer: Observer, ask: Ask, count: int, block: int) -> Pairs:
    """Blocks with and without the observer, each first in turn."""
    observed: list[Reply] = []
    control: list[Reply] = []
    for number in range(-(-count // block)):
        for watched in (True, False) if number % 2 else (False, True):
            with observer(asker.server) if watched else nullcontext():
                time.sleep(SETTLE_S)  # starting and stopping is not watching
                (observed if watched else control).extend(ask() for _ in range(block))
        say(f"  {len(control)} of {count} pairs")
    return observed, control


def _bpf_time(plan: Plan, asker: Asker) -> list[Row]:
    """Run time of all our programs from request to first token, over TTFT."""
    say("BPF run time")
    models = _others()

    def cold() -> Reply:
        model = next(models)
        pagecache.drop(plan.models / f"{model}.gguf")
        return asker.warm(model, tokens=1)

    asker.warm("alpha")
    with watching(plan, asker.server.port) as daemon, bpf_statistics():

        def share(ask: Ask, times: int) -> float:
            spent = waited = 0.0
            for _ in range(times):
                before = daemon.get("/v1/status")["cost"]["bpf_ns"]
                waited += ttft_ms(ask()) * MS
                spent += daemon.get("/v1/status")["cost"]["bpf_ns"] - before
            return 100 * spent / waited

        return [
            limit_row("BPF run time / TTFT, cold load", share(cold, 4), 1.0, "%", 3),
            limit_row(
                "BPF run time / TTFT, warm", share(lambda: asker.warm("alpha", 1), 20), 1.0, "%", 3
            ),
        ]
