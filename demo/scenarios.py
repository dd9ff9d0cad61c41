"""What is asked of the server, in which order, and what the client itself measured."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tests.workloads import llama, pagecache
from tests.workloads.throttle import Throttle

ALPHA, BETA = "alpha", "beta"
WARMUP = "warmup"
OPTIONS = ("-c", "4096")
# Enough warm requests of each model for a baseline, with prompts of several sizes.
WARMUP_WORDS = (4, 8, 12, 16, 24, 32)
LONG_WORDS = 600
SLOT_TOKENS = 48

NAMES = {
    "cold_first": "the first load, weights not in the page cache",
    "cold_switch": "another model, weights not in the page cache",
    "switch_back": "back at once, weights still in the page cache",
    "both_a": "both models resident: one",
    "both_b": "both models resident: the other",
    "short": "a short prompt, warm",
    "long": f"a prompt of {LONG_WORDS:,} words, warm",
    "slot_first": "a long answer on the only slot",
    "slot_second": "a second request while it is being written",
}


class Sent(msgspec.Struct, frozen=True):
    """One request as the client saw it; `prompt_eval_ms` is from the server's reply.

    `refaulted`: bytes of files that the system read again meanwhile, having put them out.
    """

    scenario: str
    model: str
    port: int
    sent_ns: int
    ttft_ms: float
    prompt_eval_ms: float
    refaulted: int = 0


class Driver:
    """Sends requests one after another from a prompt thread and keeps what it measured."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.sent: list[Sent] = []
        self._say = say
        self._number = 0
        self._threads = ThreadPoolExecutor(2, initializer=llama.be_prompt)

    def _prompt(self, words: int) -> str:
        """A prompt that no earlier one had, so that no prompt cache helps."""
        self._number += 1
        return f"Case {self._number}:" + " and then some" * (words // 3)

    def ask(self, server: llama.LlamaServer, scenario: str, model: str, words: int = 12) -> None:
        """One request, and its answer of four tokens."""
        before = pagecache.refaulted_bytes()
        reply = self._threads.submit(_ask, server, model, self._prompt(words), 4).result()
        self._keep(scenario, model, reply, pagecache.refaulted_bytes() - before)

    def _keep(self, scenario: str, model: str, reply: llama.Reply, refaulted: int = 0) -> None:
        if reply.status != 200 or reply.ttft_ms is None or reply.prompt_eval_ms is None:
            raise RuntimeError(f"{scenario}: the server answered {reply.status} without a token")
        self.sent.append(
            Sent(
                scenario,
                model,
                reply.port,
                reply.sent_ns,
                reply.ttft_ms,
                reply.prompt_eval_ms,
                refaulted,
            )
        )
        if scenario != WARMUP:
            self._say(f"{scenario:<12} {model:<6} {reply.ttft_ms:8.0f} ms   {NAMES[scenario]}")

    def warm_up(self, server: llama.LlamaServer, model: str) -> None:
        """Warm requests, so that there is something typical to compare with."""
        for words in WARMUP_WORDS:
            self.ask(server, WARMUP, model, words)

    def slot(self, server: llama.LlamaServer, model: str) -> None:
        """Two at once on one slot: the second is sent when the first has begun to answer."""
        began = threading.Event()
        first = self._threads.submit(_ask, server, model, self._prompt(12), SLOT_TOKENS, began.set)
        began.wait(60)
        second = self._threads.submit(_ask, server, model, self._prompt(12), 4)
        self._keep("slot_first", model, first.result())
        self._keep("slot_second", model, second.result())


def _ask(
    server: llama.LlamaServer,
    model: str,
    prompt: str,
    max_tokens: int,
    on_first: Callable[[], None] | None = None,
) -> llama.Reply:
    with server.client(keep_alive=False) as client:
        return client.chat(model, prompt, max_tokens, on_first=on_first, ignore_eos=True)


def drive(
    models: Path,
    logs: Path,
    throttle: Throttle | None,
    bytes_per_s: int,
    say: Callable[[str], None],
) -> list[Sent]:
    """All scenarios on two routers; returns what the client measured, in order of sending."""
    driver = Driver(say)

    def cold(server: llama.LlamaServer, scenario: str, model: str) -> None:
        pagecache.drop(models / f"{model}.gguf")
        if throttle is not None:
            throttle.limit(bytes_per_s)
        driver.ask(server, scenario, model)
        if throttle is not None:
            throttle.limit(None)

    with llama.router(models, 1, *OPTIONS, log=logs / "router-1.log", calm=True) as server:
        if throttle is not None:
            throttle.add(server.pid)
        cold(server, "cold_first", ALPHA)
        driver.warm_up(server, ALPHA)
        cold(server, "cold_switch", BETA)
        driver.warm_up(server, BETA)
        driver.ask(server, "switch_back", ALPHA)
    with llama.router(models, 2, *OPTIONS, log=logs / "router-2.log", calm=True) as server:
        for model in (ALPHA, BETA):
            server.load(model)
        for model in (ALPHA, BETA):
            driver.warm_up(server, model)
        driver.ask(server, "both_a", ALPHA)
        driver.ask(server, "both_b", BETA)
        driver.ask(server, "short", ALPHA)
        driver.ask(server, "long", ALPHA, LONG_WORDS)
        driver.slot(server, ALPHA)
    return driver.sent
