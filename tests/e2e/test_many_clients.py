"""Two hundred streams at once: no boundary is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.workloads.llama import free_port
from tests.workloads.stub_clients import call, streams
from tests.workloads.stub_server import StubServer
from tests.workloads.ttftd import UNIT_NICE, Json, Ttftd
from tests.workloads.waiting import wait_for

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
CLIENTS = 200
CHUNKS = 40


def test_no_boundary_is_lost(tmp_path: Path) -> None:
    port = free_port()
    config = f'[[server]]\nname = "many"\nport = {port}\n'
    with (
        Ttftd(tmp_path / "ttftd", config, UNIT_NICE) as daemon,
        StubServer(chunks=CHUNKS, delay_ms=1, port=port) as stub,
    ):
        daemon.wait_server(stub.port)
        request = call("stub", CHUNKS)
        seen = asyncio.run(streams("127.0.0.1", stub.port, CLIENTS, request))

        def answers() -> list[Json]:
            return [item for item in daemon.requests() if item["server"] == "many"]

        def all_over() -> bool:
            return len([one for one in answers() if one["outcome"] != "open"]) >= CLIENTS

        wait_for(all_over, 20, "all answers", poll_s=0.2)
        found = answers()
        lost = daemon.get("/v1/status")["lost"]
    assert lost == {}
    assert len(found) == CLIENTS
    assert {(one["outcome"], one["tokens"], one["status"]) for one in found} == {
        ("ok", CHUNKS, 200)
    }
    assert all(one["ttft_ms"] is not None for one in found)
    # In order of time each boundary lies within what some client saw of it.
    arrivals = sorted(one["at_ns"]["arrival"] for one in found)
    firsts = sorted(one["at_ns"]["first_token"] for one in found)
    ends = sorted(one["at_ns"]["end"] for one in found)
    assert all(a > s for a, s in zip(arrivals, sorted(one.sent_ns for one in seen), strict=True))
    assert all(f < s for f, s in zip(firsts, sorted(one.first_ns for one in seen), strict=True))
    assert all(e < s for e, s in zip(ends, sorted(one.end_ns for one in seen), strict=True))
