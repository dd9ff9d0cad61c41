"""What a real server's code did while a request waited; warm requests are left alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import orjson
import pytest

from tests.e2e.conftest import Ask
from tests.workloads import llama
from tests.workloads.ttftd import UNIT_NICE, Json, Ttftd, ttft
from tests.workloads.waiting import wait_for
from tracer.http.endpoints import is_inference
from tracer.kernel.layouts import SLOT_NS
from tracer.recording import Recording
from tracer.records import (
    AnyRecord,
    Exec,
    Fork,
    HttpEnd,
    HttpRequest,
    HttpToken,
    Insert,
    Listen,
    Samples,
)

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
OPTIONS = ("-c", "512")
#: Of the first loading of a model's vocabulary, by this server.
LOADING = "libllama.so"
MADE_READY = ("spawn.fit", "load.meta")
#: Of each model, at most.
LOADS = 15


@contextmanager
def router(weights: Path, folder: Path, daemon: Ttftd) -> Iterator[llama.LlamaServer]:
    log = folder / "server.log"
    with llama.router(weights, 1, *OPTIONS, log=log, calm=True) as server:
        daemon.wait_server(server.port)
        yield server


def named(daemon: Ttftd, id_: int) -> Json:
    """A request in detail, once functions have names; without, where there is little to name."""
    found: list[Json] = []

    def has_names() -> bool:
        found[:] = [daemon.get(f"/v1/requests/{id_}")]
        stages = found[0]["evidence_detail"]["stacks"]
        return not stages or any(one["function"] for s in stages for one in s["functions"])

    with contextlib.suppress(TimeoutError):
        wait_for(has_names, 10, "names of functions", 0.2)
    return found[0]


def test_what_ran_while_a_model_was_loaded(
    weights: Path, ask: Ask, daemon: Ttftd, tmp_path: Path
) -> None:
    records = tmp_path / "records.ndjson.gz"
    with router(weights, tmp_path, daemon) as server, daemon.recording(records):
        # Sampled is what is not reading: a few tenths of a second, not at all where all comes from
        # disk, and these few samples may all be in the C library.
        for model in ("alpha", "beta") * LOADS:
            with server.client() as client:
                reply = ask(partial(client.chat, model, "Say one word.", max_tokens=2))
            (answer,) = daemon.explained([reply], 60)
            detail = named(daemon, answer["id"])
            told_of = detail["evidence_detail"]["stacks"] or []
            stages = {stage["stage"]: stage for stage in told_of}
            assert set(stages) <= set(detail["stages_ms"])
            for stage in stages.values():
                assert sum(one["samples"] for one in stage["functions"]) <= stage["samples"]
                assert 0 < stage["processors"] < 64
            if made_ready_by(stages, LOADING):
                break
        told = ttft("show", str(answer["id"]), socket=daemon.socket).stdout
    assert made_ready_by(stages, LOADING), stages
    assert "What ran" in told
    assert LOADING in told
    # Naming changes nothing else, and a recording gives the same.
    assert {k: v for k, v in detail.items() if k in answer} == answer
    replayed = ttft("replay", str(records), "--show", str(answer["id"]), "--json").stdout
    assert (
        orjson.loads(replayed)["evidence_detail"]["stacks"] == detail["evidence_detail"]["stacks"]
    )


def made_ready_by(stages: dict[str, Json], library: str) -> bool:
    """Whether the library is among what was running before the weights were read, by its names."""
    functions = [one for s in MADE_READY if s in stages for one in stages[s]["functions"]]
    return any(
        one["function"] and Path(one["module"]).name.startswith(library) for one in functions
    )


def test_warm_requests_are_not_sampled(
    weights: Path, ask: Ask, daemon: Ttftd, tmp_path: Path
) -> None:
    records = tmp_path / "records.ndjson.gz"
    with router(weights, tmp_path, daemon) as server, server.client() as client:
        first = [ask(lambda: client.chat("alpha", "Say one word.", max_tokens=2)) for _ in range(5)]
        daemon.explained(first, 60)
        with daemon.recording(records):
            warm = [
                ask(lambda: client.chat("alpha", "Say one word.", max_tokens=2)) for _ in range(10)
            ]
            answers = daemon.explained(warm, 60)
        ours = {server.pid, *server.runners()}
    seen = list(Recording(records))
    ports = {server.port, *(r.port for r in seen if isinstance(r, Listen) and r.tgid in ours)}
    sampled = [r for r in seen if isinstance(r, Samples) and r.tgid in ours]
    stirred = [(r.ts_ns, r.ts_ns) for r in seen if isinstance(r, Fork | Exec | Insert)]
    stirred += strangers(seen, ports)
    for answer in answers:
        arrival, token = answer["at_ns"]["arrival"], answer["at_ns"]["first_token"]
        found = [s for s in sampled if s.ts_ns < token and s.end_ns > arrival + SLOT_NS]
        excused = any(a <= token and b >= arrival - SLOT_NS for a, b in stirred)
        assert not found or excused or answer["ttft_ms"] > 250, "a quick request was sampled"


def strangers(seen: list[AnyRecord], ports: set[int]) -> list[tuple[int, int]]:
    """When requests to other servers of this host waited: these may be slow meanwhile."""
    waited: dict[int, tuple[int, int]] = {}
    for record in seen:
        if isinstance(record, HttpRequest) and record.conn.server_port not in ports:
            if is_inference(record.endpoint):
                waited[record.xid] = (record.ts_ns, 1 << 62)
        elif isinstance(record, HttpToken | HttpEnd) and record.xid in waited:
            since, until = waited[record.xid]
            waited[record.xid] = (since, min(until, record.ts_ns))
    return list(waited.values())


def test_sampling_can_be_off(weights: Path, ask: Ask, tmp_path: Path) -> None:
    config = '[probes]\nstacks = "off"\n'
    with (
        Ttftd(tmp_path / "ttftd", config, nice=UNIT_NICE) as daemon,
        router(weights, tmp_path, daemon) as server,
        server.client() as client,
    ):
        reply = ask(lambda: client.chat("alpha", "Say one word.", max_tokens=2))
        (answer,) = daemon.explained([reply], 60)
        assert answer["spike"]["is_spike"]
        detail = daemon.get(f"/v1/requests/{answer['id']}")
    assert detail["evidence_detail"]["stacks"] is None
