"""What all benches share: rows of the table, ratios with their interval, what is measured on."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from tests.workloads import llama
from tests.workloads.llama import LlamaServer, Reply
from tests.workloads.ttftd import Ttftd

T = TypeVar("T")
MS = 1_000_000
#: Between start or stop of what watches and the first thing measured, seconds.
SETTLE_S = 2.5
SERVER_OPTIONS = ("-np", "1", "-c", "4096")
RESAMPLES = 2000
_BPF = {"x86_64": 321, "aarch64": 280}
_BPF_ENABLE_STATS = 32


@dataclass(frozen=True)
class Row:
    """One line of the table. `ok` None: no budget, only reported; `data` goes to the JSON."""

    what: str
    measured: str
    budget: str = "-"
    ok: bool | None = None
    data: dict[str, Any] = field(default_factory=dict)


Size = Literal["quick", "normal", "full"]


@dataclass(frozen=True)
class Plan:
    """How much to do; `models` holds alpha.gguf and beta.gguf.

    `quick` only shows that a bench runs: its figures mean nothing.
    """

    size: Size
    models: Path
    out: Path

    def times(self, normal: int, full: int, quick: int = 1) -> int:
        """How often, by plan."""
        return {"quick": min(quick, normal), "normal": normal, "full": full}[self.size]


def say(text: str) -> None:
    """Progress, to stderr at once."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Ratio:
    """Ratio of medians of `pairs` pairs with the 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] n={self.pairs}"


def ratio(observed: Sequence[float], control: Sequence[float], seed: int = 1) -> Ratio:
    """Median of `observed` over that of `control`; whole pairs are drawn again and again."""
    pairs = list(zip(observed, control, strict=True))
    chance = random.Random(seed)  # same data, same interval
    drawn = sorted(_of_medians(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    low, high = drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES) - 1]
    return Ratio(_of_medians(pairs), low, high, len(pairs))


def _of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    below = statistics.median(pair[1] for pair in pairs)
    return statistics.median(pair[0] for pair in pairs) / below if below else math.nan


def ratio_row(
    what: str, observed: Sequence[float], control: Sequence[float], budget: float | None = None
) -> Row:
    """A row that is missed when even the lower bound is above the budget."""
    found = ratio(observed, control)
    return Row(
        what,
        str(found),
        "-" if budget is None else f"{budget:.2f}",
        None if budget is None else found.low <= budget,
        {
            "ratio": found.value,
            "low": found.low,
            "high": found.high,
            "pairs": found.pairs,
            "budget": budget,
            "median": statistics.median(observed),
            "control_median": statistics.median(control),
        },
    )


def paired(observed: Sequence[float], control: Sequence[float], seed: int = 1) -> Ratio:
    """Median of the pairs' own ratios: what drifts from pair to pair cancels out."""
    ratios = [one / other for one, other in zip(observed, control, strict=True)]
    chance = random.Random(seed)
    drawn = sorted(
        statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    low, high = drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES) - 1]
    return Ratio(statistics.median(ratios), low, high, len(ratios))


def spread(values: Sequence[float]) -> float:
    """Middle half of the values over their median."""
    if len(values) < 2:
        return 0.0
    first, middle, third = statistics.quantiles(values, n=4)
    return (third - first) / middle


def limit_row(what: str, value: float, budget: float, unit: str, digits: int = 1) -> Row:
    """A row that is missed when the value is above the budget."""
    return Row(
        what,
        f"{value:.{digits}f} {unit}".strip(),
        f"{budget:g} {unit}".strip(),
        value <= budget,
        {"value": value, "budget": budget, "unit": unit},
    )


@contextmanager
def bpf_statistics() -> Iterator[None]:
    """The kernel counts run time of BPF programs while the block runs."""
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = ctypes.create_string_buffer(128)
    fd = libc.syscall(_BPF[platform.machine()], _BPF_ENABLE_STATS, attributes, 4)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "BPF_ENABLE_STATS")
    try:
        yield
    finally:
        os.close(fd)


def task_cpu_ns(pid: int) -> int:
    """CPU time of a process's live threads, to the nanosecond."""
    return sum(
        int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


def pss_mb(pid: int) -> float:
    """Proportional memory of a process in 10^6 bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"no Pss of {pid}")


@dataclass
class Asker:
    """Sends requests to one router from a thread that wakes as soon as data comes."""

    server: LlamaServer
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, initializer=llama.be_prompt)
    )

    def warm(self, model: str, tokens: int = 16) -> Reply:
        """One request that does the same work every time."""
        return self._do(lambda: self._chat(model, tokens))

    def _chat(self, model: str, tokens: int) -> Reply:
        with self.server.client(keep_alive=False) as client:
            reply = client.chat(
                model, "Why is the sky blue?", tokens, cache_prompt=False, ignore_eos=True
            )
        if reply.status != 200 or reply.first_token_ns is None:
            raise RuntimeError(f"the server answered {reply.status} without a token")
        return reply

    def _do(self, work: Callable[[], T]) -> T:
        return self._threads.submit(work).result()


def ttft_ms(reply: Reply) -> float:
    """The client's own TTFT."""
    assert reply.ttft_ms is not None
    return reply.ttft_ms


def decode_rate(reply: Reply) -> float:
    """Tokens a second after the first one."""
    assert reply.first_token_ns is not None
    return (reply.tokens - 1) / ((reply.end_ns - reply.first_token_ns) / 1e9)


@contextmanager
def router(plan: Plan, models_max: int = 1) -> Iterator[Asker]:
    """A real router on the two models."""
    log = plan.out / "router.log"
    with llama.router(plan.models, models_max, *SERVER_OPTIONS, log=log) as server:
        yield Asker(server)


@contextmanager
def watching(plan: Plan, port: int, config: str = "") -> Iterator[Ttftd]:
    """The daemon, with the server on this port found."""
    with Ttftd(plan.out / "ttftd", config) as daemon:
        daemon.wait_server(port)
        yield daemon


def median_s(work: Callable[[], object], times: int) -> float:
    """Median wall time of a piece of work in seconds."""
    taken = []
    for _ in range(times):
        began = time.monotonic()
        work()
        taken.append(time.monotonic() - began)
    return statistics.median(taken)
