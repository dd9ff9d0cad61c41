"""Requests as the JSON of the interface."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.answer_cases import ARRIVAL, MS, RUNNER, spike, warm
from tests.unit.fake_daemon import FACTS, MODELS, STATUS
from tests.unit.trace_cases import arbitrary
from tracer import answers, answers_state
from tracer.codes import UNREADABLE_CODES
from tracer.derived import PHASES, Derived

SPIKE_17 = {
    "schema": 1,
    "id": 17,
    "server": "llama-server:8080",
    "model": "beta",
    "weights": ["beta.gguf"],
    "endpoint": "/v1/chat/completions",
    "stream": True,
    "status": 200,
    "outcome": "ok",
    "died_in": None,
    "complete": True,
    "incomplete_because": None,
    "wall_time": "2026-01-31T12:00:00.123Z",
    "at_ns": {
        "arrival": ARRIVAL,
        "read": ARRIVAL + 200_000,
        "first_byte": ARRIVAL + 1900 * MS,
        "prompt_start": ARRIVAL + 1710 * MS,
        "first_token": ARRIVAL + 1912 * MS + 400_001,
        "second_token": ARRIVAL + 1926 * MS,
        "end": ARRIVAL + 2012 * MS,
    },
    "ttft_ms": 1912.400001,
    "prompt_bytes": 103,
    "prompt_tokens": 26,
    "cached_tokens": 0,
    "tokens": 8,
    "first_decode_ms": 13.599999,
    "first_answer_ms": None,
    "phases_ms": {
        "queue": 0.2,
        "evict": 58.8,
        "spawn": 266.0,
        "load": 1110.0,
        "transfer": 0.0,
        "init": 270.0,
        "prefill": 207.400001,
        "other": 0.0,
    },
    "stages_ms": {
        "queue.socket": 0.2,
        "evict.stop": 49.8,
        "evict.wait": 9.0,
        "spawn.exec": 41.0,
        "spawn.fit": 225.0,
        "load.meta": 210.0,
        "load.disk": 900.0,
        "init.context": 270.0,
        "prefill.tokenize": 5.0,
        "prefill.prompt": 202.400001,
    },
    "overlaps_ms": {"transfer+load": 120.0},
    "triggered_by": 17,
    "waited_for": [],
    "retry_of": [],
    "evidence": {
        "weights_bytes": 253113024,
        "weights_bytes_from_disk": 253116416,
        "major_faults": 0,
        "minor_faults": 2062,
        "gpu_calls": None,
        "processes_started": 1,
        "processes_exited": 1,
        "reclaim_ms": None,
        "resident_before": False,
        "switched_from": "alpha",
    },
    "server_says": {"prompt_ms": 201.6, "prompt_n": 26, "cache_n": 0, "load_ms": None},
    "spike": {
        "is_spike": True,
        "typical_ms": 31.0,
        "first_expanded": "spawn",
        "dominant": "load",
        "cause": "load.disk",
        "why": [],
        "because": "253 MB of beta.gguf came from disk at 281 MB/s after the switch from alpha.",
        "advice": "Keep both models resident (--models-max 2), or keep the file in the page cache.",
        "switch_is_cause": True,
        "confidence": 0.97,
    },
}


def test_a_spike() -> None:
    assert answers.answer(spike()) == SPIKE_17


def test_key_order_is_the_contracts() -> None:
    assert list(answers.answer(spike())) == list(SPIKE_17)
    assert list(answers.answer(spike())["phases_ms"]) == list(PHASES)


def test_what_is_not_a_spike_has_null_for_the_verdict() -> None:
    found = answers.answer(warm(3))["spike"]
    assert found == dict.fromkeys(found) | {"is_spike": False, "typical_ms": 31.0}


def test_no_first_token() -> None:
    found = answers.answer(replace(spike(), ttft_ns=None, outcome="client_gone", died_in="load"))
    assert (found["ttft_ms"], found["at_ns"]["first_token"]) == (None, None)
    assert (found["outcome"], found["died_in"]) == ("client_gone", "load")


def test_the_servers_own_figures_come_from_the_hop_where_the_reply_has_none() -> None:
    item = spike()
    request = replace(item.evidence.request, says=None)
    assert item.evidence.hop is not None
    hop = replace(item.evidence.hop, says=item.evidence.request.says)
    moved = replace(item, evidence=replace(item.evidence, request=request, hop=hop))
    assert answers.answer(moved)["server_says"] == SPIKE_17["server_says"]
    nothing = replace(item, evidence=replace(item.evidence, request=request))
    assert set(answers.answer(nothing)["server_says"].values()) == {None}


def test_detail_sums_spans_by_process_and_file() -> None:
    found = answers.detail(spike())
    assert found["intervals"][5] == {
        "stage": "load.meta",
        "start_ns": ARRIVAL + 325 * MS,
        "end_ns": ARRIVAL + 535 * MS,
        "duration_ms": 210.0,
        "estimate": False,
        "tgid": RUNNER,
        "tid": RUNNER,
    }
    detail = found["evidence_detail"]
    assert detail["spans"] == [
        {
            "tgid": RUNNER,
            "file": "beta.gguf",
            "op": "read",
            "count": 200,
            "bytes": 253_113_024,
            "first_ns": ARRIVAL + 535 * MS,
            "last_ns": ARRIVAL + 1435 * MS,
            "busy_ms": 800.0,
        }
    ]
    assert detail["files"][0]["inserted_bytes"] == 61_796 * 4096
    assert detail["files"][0]["cached_bytes"] == 0
    assert detail["opens"][0]["file"] == "beta.gguf"
    assert [item["tgid"] for item in detail["processes"]] == [100, 101, 102]
    assert detail["processes"][1]["signals"] == [
        {"signal": 15, "sender": 100, "at_ns": ARRIVAL + 300_000}
    ]
    assert detail["hop"]["server_tgid"] == RUNNER
    assert detail["others"][0]["id"] == 16


@given(st.integers(-(10**14), 10**15))
def test_milliseconds_are_exact_to_the_nanosecond(ns: int) -> None:
    text = orjson.dumps(answers.ms(ns)).decode()
    assert round(float(text) * 1e6) == ns
    assert "e" in text or len(text.partition(".")[2]) <= 6


@pytest.mark.parametrize(
    ("wall_ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_769_860_800_123_999_999, "2026-01-31T12:00:00.123Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (10**30, "1970-01-01T00:00:00.000Z"),
    ],
)
def test_wall_time(wall_ns: int, text: str) -> None:
    assert answers.wall_time(wall_ns) == text


@settings(max_examples=60, deadline=None)
@given(arbitrary)
def test_any_request_has_an_answer_whose_sums_hold(item: Derived) -> None:
    found = orjson.loads(answers.dumps({**answers.answer(item), **answers.detail(item)}))
    assert set(SPIKE_17) | {"intervals", "evidence_detail"} == set(found)
    sums = {phase: round(value * 1e6) for phase, value in found["phases_ms"].items()}
    assert sums == {phase: item.phases.phases_ns.get(phase, 0) for phase in PHASES}


def test_status() -> None:
    found = answers_state.status(STATUS)
    assert (found["schema"], found["began"]) == (1, "2026-01-31T12:00:00.123Z")
    assert found["servers"][0]["unreadable_means"] is None
    assert found["servers"][1]["unreadable_means"] == "the connection is encrypted"
    assert found["servers"][1]["advice"].startswith("End TLS in a proxy")
    assert found["lost"] == {"span": 0, "packet": 3}


def test_every_way_of_being_unreadable_has_advice() -> None:
    codes = {code.code for code in UNREADABLE_CODES}
    assert set(answers_state.UNREADABLE_ADVICE) == codes


def test_models() -> None:
    found = orjson.loads(answers.dumps([answers_state.model(item) for item in MODELS]))
    assert found == [
        {
            "schema": 1,
            "server": "llama-server:8080",
            "model": "beta",
            "weights": ["beta.gguf"],
            "size_bytes": 253113024,
            "cached_bytes": 253113024,
            "vram_bytes": None,
            "pids": [102],
            "places": [],
            "last_use": "2026-01-31T12:00:00.123Z",
            "cached_share": 1.0,
        },
        {
            "schema": 1,
            "server": "llama-server:8080",
            "model": "alpha",
            "weights": [],
            "size_bytes": None,
            "cached_bytes": None,
            "vram_bytes": None,
            "pids": None,
            "places": [],
            "last_use": None,
            "cached_share": None,
        },
    ]


def test_doctor_is_fine_unless_something_is_missing() -> None:
    assert answers_state.doctor(FACTS[:2], daemon=True)["ok"] is True
    found = answers_state.doctor(FACTS, daemon=False)
    assert (found["ok"], found["daemon"]) == (False, False)
    assert found["facts"][2]["advice"] == "mount -t cgroup2 none /mnt"
