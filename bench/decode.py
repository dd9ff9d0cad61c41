"""What watching costs the decode rate of a server on a device: each call of its driver is probed.

The device is Mesa's software Vulkan driver. Blocks with the daemon and without it take turns, all
probes on in the former (`arming = "always"`); the server is the same all the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from unittest.mock import patch

from bench.common import (
    SETTLE_S,
    Asker,
    Plan,
    Row,
    decode_rate,
    ratio_row,
    say,
    spread,
    ttft_ms,
    watching,
)
from demo import vulkan
from tests.workloads.llama import Reply

BUDGET = 1.01
TOKENS = 32
BLOCK = 4
ON = '[probes]\narming = "always"\n'
Pairs = tuple[list[Reply], list[Reply]]


def run(plan: Plan) -> Iterator[Row]:
    """Time per token and TTFT of warm requests, with the daemon over without it."""
    refusal = vulkan.refusal()
    if refusal is not None:
        yield Row("decoding on a device", refusal)
        return
    where = {
        "MESA_SHADER_CACHE_DIR": str(plan.out / "shader-cache"), "GGML_VK_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    model = ("-m", str(plan.models / "alpha.gguf"))
    with patch.dict("os.environ", where), vulkan.serving(model, plan.out / "decode.log") as server:
        asker = Asker(server)
        say("decoding on a device: the first prompts compile")
        for _ in range(2):
            asker.warm("alpha", TOKENS)
        present, absent = pairs(plan, asker, plan.times(12, 100, 1))
    yield from rows(present, absent)


def pairs(plan: Plan, asker: Asker, count: int) -> Pairs:
    """Replies with the daemon there, and without; which of the two comes first takes turns."""
    present: list[Reply] = []
    absent: list[Reply] = []
    for number in range(-(-count // BLOCK)):
        for watched in (True, False) if number % 2 else (False, True):
            with watching(plan, asker.server.port, ON) if watched else nullcontext():
                time.sleep(SETTLE_S)  # starting and stopping is not watching
                replies = [asker.warm("alpha", TOKENS) for _ in range(min(BLOCK, count))]
            (present if watched else absent).extend(replies)
        say(f"  {len(absent)} of {count} pairs")
    return present, absent


def rows(present: list[Reply], absent: list[Reply]) -> Iterator[Row]:
    """The rate falls where time grows, so it is time per token that is held to the budget."""
    watched, alone = ([1000 / decode_rate(r) for r in replies] for replies in (present, absent))
    yield ratio_row("time per token, decoding on a device", watched, alone, BUDGET)
    for name, found in (("watched", watched), ("not watched", alone)):
        middle = statistics.median(found)
        yield Row(
            f"decoding on a device, {name}",
            f"{1000 / middle:.1f} tokens/s, spread {100 * spread(found):.1f} %",
            data={"tokens_per_s": 1000 / middle, "spread": spread(found), "requests": len(found)},
        )
    yield ratio_row(
        "TTFT warm on a device", list(map(ttft_ms, present)), list(map(ttft_ms, absent))
    )
