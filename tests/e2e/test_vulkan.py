"""A software Vulkan device: real uploads and real compilation, without a GPU.

The scenarios are those of `make demo-vulkan`: the first prompt with an empty shader cache, with the
one that it has filled, with the cache gone again, and a cold switch between two models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo import vulkan
from demo.vulkan import Asked
from tests.workloads.ttftd import Json, Ttftd
from tracer.recording import Recording
from tracer.records import Call

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]


@dataclass
class Run:
    """A request, what was explained of it, and its server's calls into libraries."""

    asked: Asked
    answer: Json
    calls: list[Call]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, weights: Path) -> Iterator[dict[str, Run]]:
    """All scenarios, by name."""
    folder = tmp_path_factory.mktemp("vulkan")
    records = folder / "records.ndjson.gz"
    with Ttftd(folder / "ttftd") as daemon:
        with daemon.recording(records):
            asked = list(vulkan.drive(weights, folder, print))
        answers = daemon.explained([a.sent for a in asked], 60)
        details = [daemon.get(f"/v1/requests/{answer['id']}") for answer in answers]
    calls = calls_in(records)
    yield {
        a.sent.scenario: Run(a, detail, [c for c in calls if c.tgid == a.pid])
        for a, detail in zip(asked, details, strict=True)
    }


def calls_in(records: Path) -> list[Call]:
    """Runs of calls in order, the latest of each."""
    latest = {}
    for record in Recording(records):
        if isinstance(record, Call):
            latest[record.tid, record.library, record.symbol, record.ts_ns] = record
    return sorted(latest.values(), key=lambda c: c.ts_ns)


def test_what_the_demo_checks(runs: dict[str, Run]) -> None:
    """Causes, caches, sums, and the bytes of the switch."""
    found = vulkan.checks([r.asked for r in runs.values()], [r.answer for r in runs.values()])
    assert [(check.name, check.wrong) for check in found if check.wrong] == []


def test_first_prompt_with_an_empty_shader_cache(runs: dict[str, Run]) -> None:
    """Compilation holds nearly all of what the full cache saves, and grew first."""
    empty, full = runs["empty"].answer, runs["full"].answer
    assert empty["ttft_ms"] - full["ttft_ms"] > full["ttft_ms"], "nothing was compiled"
    assert empty["stages_ms"]["init.compile"] <= empty["ttft_ms"]
    assert (empty["spike"]["first_expanded"], empty["spike"]["switch_is_cause"]) == ("init", False)
    compiled = empty["evidence_detail"]["compiled"]
    assert compiled["missed"] > 0 and compiled["found"] == 0
    assert all("shader-cache" in cache for cache in compiled["caches"])


def test_what_ran_in_it_is_the_shader_compiler(runs: dict[str, Run]) -> None:
    told = {stage["stage"]: stage for stage in runs["empty"].answer["evidence_detail"]["stacks"]}
    compiling = told["init.compile"]
    most = compiling["modules"][0]
    assert most["module"].rpartition("/")[2].startswith(("libLLVM", "libvulkan_lvp")), told
    assert most["share"] > 0.3
    names = [one["function"] for one in compiling["functions"] if one["function"]]
    assert any(name.startswith(("llvm::", "nir_", "spirv_", "lp_")) for name in names), told


def test_first_prompt_with_a_full_shader_cache(runs: dict[str, Run]) -> None:
    compiled = runs["full"].answer["evidence_detail"]["compiled"]
    assert (compiled["missed"], compiled["found"] > 0) == (0, True)


@pytest.mark.parametrize("name", ["empty", "full"])
def test_uploads_are_the_servers_own_buffer(runs: dict[str, Run], name: str) -> None:
    """At the start of a server, before any request."""
    run = runs[name]
    first_decode = next(c.ts_ns for c in run.calls if c.what == "decode")
    sent = sum(
        c.bytes or 0 for c in run.calls if c.what == "upload" and c.ts_ns < first_decode
    )  # fmt: skip
    assert abs(sent - run.asked.buffer_bytes) <= 0.01 * run.asked.buffer_bytes


def test_a_cold_switch_loads_and_transfers(runs: dict[str, Run]) -> None:
    """Inside one request: all of the file from the disk, the device's part from host to device."""
    answer = runs["switch"].answer
    transfer, phases = answer["evidence_detail"]["transfer"], answer["phases_ms"]
    assert answer["evidence"]["switched_from"] == "alpha"
    assert answer["evidence"]["weights_bytes_from_disk"] >= answer["evidence"]["weights_bytes"]
    shown = phases["transfer"] + transfer["hidden_ms"]
    assert shown == pytest.approx(transfer["took_ms"], abs=0.001)
    rate = transfer["bytes"] / (transfer["took_ms"] / 1000)
    assert transfer["bytes_per_s"] == pytest.approx(rate, rel=0.001)
    hidden = sum(ms for pair, ms in answer["overlaps_ms"].items() if pair == "transfer+load")
    assert hidden == pytest.approx(transfer["hidden_ms"], abs=0.001)
    order = [item["stage"] for item in answer["intervals"]]
    assert order.index("load.disk") < order.index("transfer.h2d") < order.index("prefill.prompt")


@pytest.mark.parametrize("name", ["empty", "full"])
def test_decoded_tokens_are_the_prompts(runs: dict[str, Run], name: str) -> None:
    """From prompt start to the first token; the next ones may be under way by then."""
    run = runs[name]
    marks = run.answer["at_ns"]
    decoded = [
        c for c in run.calls
        if c.what == "decode" and marks["prompt_start"] <= c.ts_ns < marks["first_token"]
    ]  # fmt: skip
    assert decoded[0].ts_ns == marks["prompt_start"]
    later = sum(c.tokens or 0 for c in decoded) - run.asked.reply.timings["prompt_n"]
    # A token is sent by another thread, and more are decoded until it runs: one in each call.
    assert 0 <= later < min(4, sum(c.count for c in decoded))
