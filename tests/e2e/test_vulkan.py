"""A software Vulkan device: real uploads and real compilation, without a GPU.

Each test of compilation starts the server twice: with an empty shader cache, and with the one
that the first has filled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import Ask
from tests.workloads import llama
from tests.workloads.ttftd import Json, Ttftd
from tracer.recording import Recording
from tracer.records import Call

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
MIB = 1 << 20
READY_S = 900.0  # two idle processors compile for half a minute; busy ones for many
#: `-lv 4` prints sizes; `--no-repack` leaves what stays on the host where it is mapped.
ARGS = (
    "-c", "512", "-ngl", "99", "--device", "Vulkan0", "-fa", "off", "--no-repack", "-lv", "4",
    *llama.CALM,
)  # fmt: skip
PROMPT = "What is the capital of France? Answer in one short sentence, please."


@dataclass
class Run:
    """One start of the server and its first request."""

    reply: llama.Reply
    answer: Json
    calls: list[Call]
    log: str


@contextmanager
def server(weights: Path, log: Path) -> Iterator[llama.LlamaServer]:
    started = llama.LlamaServer(
        ["-m", weights / "alpha.gguf", *ARGS], log=log, nice=llama.CALM_NICE
    )
    started.start()
    try:
        started.wait_ready(READY_S)
        yield started
    finally:
        started.stop()


def first_request(daemon: Ttftd, weights: Path, folder: Path, name: str, ask: Ask) -> Run:
    log, records = folder / f"{name}.log", folder / f"{name}.ndjson.gz"
    with daemon.recording(records), server(weights, log) as running:
        with llama.Client(running.host, running.port) as client:
            reply = ask(lambda: client.chat("alpha", PROMPT, max_tokens=4))
        (answer,) = daemon.explained([reply], 60)
        pid = running.pid
    latest = {}
    for record in Recording(records):
        if isinstance(record, Call) and record.tgid == pid:
            latest[record.tid, record.library, record.symbol, record.ts_ns] = record
    return Run(reply, answer, sorted(latest.values(), key=lambda c: c.ts_ns), log.read_text())


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, weights: Path, ask: Ask
) -> Iterator[dict[str, Run]]:
    """The first request with an empty shader cache, and with a full one."""
    folder = tmp_path_factory.mktemp("vulkan")
    with pytest.MonkeyPatch.context() as patch, Ttftd(folder / "ttftd") as daemon:
        patch.setenv("MESA_SHADER_CACHE_DIR", str(folder / "cache"))
        patch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
        yield {
            name: first_request(daemon, weights, folder, name, ask) for name in ("empty", "full")
        }


def test_first_prompt_with_an_empty_shader_cache(runs: dict[str, Run]) -> None:
    """Compilation holds nearly all of what the full cache saves, and is the cause."""
    empty, full = runs["empty"], runs["full"]
    excess_ms = empty.answer["ttft_ms"] - full.answer["ttft_ms"]
    stages, spike = empty.answer["stages_ms"], empty.answer["spike"]
    assert excess_ms > full.answer["ttft_ms"], "nothing was compiled"
    assert 0.8 * excess_ms <= stages["init.compile"] <= empty.answer["ttft_ms"], stages
    assert spike["is_spike"]
    assert (spike["first_expanded"], spike["dominant"]) == ("init", "init")
    assert (spike["cause"], spike["why"]) == ("init.compile", ["cache.missing"])
    assert "/cache" in spike["because"]
    assert spike["switch_is_cause"] is False


def test_first_prompt_with_a_full_shader_cache(runs: dict[str, Run]) -> None:
    answer = runs["full"].answer
    assert "init.compile" not in answer["stages_ms"], answer["stages_ms"]
    assert answer["spike"]["cause"] != "init.compile"


@pytest.mark.parametrize("name", ["empty", "full"])
def test_uploads_are_the_servers_own_buffer(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    found = re.findall(r"Vulkan0 model buffer size = *([\d.]+) MiB", run.log)
    size = float(found[-1]) * MIB
    first_decode = next(c.ts_ns for c in run.calls if c.what == "decode")
    sent = sum(
        c.bytes or 0 for c in run.calls if c.what == "upload" and c.ts_ns < first_decode
    )  # fmt: skip
    assert abs(sent - size) <= 0.01 * size


@pytest.mark.parametrize("name", ["empty", "full"])
def test_decoded_tokens_are_the_prompts(runs: dict[str, Run], name: str) -> None:
    """From prompt start to the first token; the second may be under way by then."""
    run = runs[name]
    marks = run.answer["at_ns"]
    decoded = [
        c for c in run.calls
        if c.what == "decode" and marks["prompt_start"] <= c.ts_ns < marks["first_token"]
    ]  # fmt: skip
    assert decoded[0].ts_ns == marks["prompt_start"]
    tokens = sum(c.tokens or 0 for c in decoded)
    assert tokens - run.reply.timings["prompt_n"] in (0, 1)
