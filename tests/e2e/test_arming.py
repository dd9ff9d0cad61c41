"""Probes that come and go, as a user has them: none of a verdict is missed for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import Ask
from tests.e2e.helpers import assert_sound
from tests.workloads import bpf, llama, pagecache
from tests.workloads.llama import LlamaServer, Reply
from tests.workloads.throttle import Throttle
from tests.workloads.ttftd import Json, Ttftd, ttft
from tests.workloads.waiting import wait_for
from tracer.kernel.probes import PROBES

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
DISK_BYTES_PER_S = 60_000_000
PAGES_BYTES_PER_S = 15_000_000  # most of the waiting is for read-ahead, in minor faults
OPTIONS = ("-c", "2048")
QUIET_S = 30.0
SLEEP_S = 2


def files(daemon: Ttftd) -> Json:
    """The group that comes and goes."""
    [probe] = [p for p in daemon.get("/v1/status")["probes"] if p["group"] == "files"]
    return dict(probe)


def wait_off(daemon: Ttftd) -> None:
    """Waits until the probes are off."""
    wait_for(lambda: not files(daemon)["attached"], QUIET_S, "the file probes to go off", 0.1)


def linked(daemon: Ttftd) -> set[str]:
    """Which programs of the group are attached, as the kernel tells."""
    names = {probe.program[:15] for probe in PROBES if probe.group == "files"}
    return names & bpf.linked(daemon.pid)


def chat(ask: Ask, server: LlamaServer, model: str) -> Reply:
    """One short request on a connection of its own."""
    with server.client(keep_alive=False) as client:
        return ask(partial(client.chat, model, f"Say a word about {model}.", 4, cache_prompt=False))


def test_on_while_a_model_may_be_loading(
    daemon: Ttftd, weights: Path, ask: Ask, tmp_path: Path
) -> None:
    beta = weights / "beta.gguf"
    size = beta.stat().st_size
    with (
        Throttle(beta, "ttft-arming") as throttle,
        llama.router(weights, 1, *OPTIONS, log=tmp_path / "server.log", calm=True) as server,
    ):
        throttle.add(server.pid)
        daemon.wait_server(server.port)
        assert files(daemon)["attached"]
        assert linked(daemon)
        warm = [chat(ask, server, "alpha") for _ in range(7)][1:]
        wait_off(daemon)
        assert not linked(daemon)
        assert "files: off for" in ttft("status", socket=daemon.socket).stdout

        pagecache.drop(beta)
        throttle.limit(DISK_BYTES_PER_S)
        switched = chat(ask, server, "beta")
        throttle.limit(None)
        assert files(daemon)["attached"]
        assert linked(daemon)
        back = chat(ask, server, "alpha")
        wait_off(daemon)

        [runner] = server.runners()
        pagecache.page_out(runner, weights / "alpha.gguf", QUIET_S)
        throttle.limit(PAGES_BYTES_PER_S)
        evicted = chat(ask, server, "alpha")
        throttle.limit(None)
        found = daemon.explained([*warm, switched, back, evicted])
    assert [answer["incomplete_because"] for answer in found] == [None] * len(found)
    first, second, third = found[len(warm) :]
    assert_sound(first, switched)
    assert_sound(second, back)
    assert first["spike"]["cause"] == "load.disk"
    assert first["spike"]["switch_is_cause"]
    assert size <= first["evidence"]["weights_bytes_from_disk"] <= size * 1.02
    assert second["spike"]["is_spike"]
    assert second["spike"]["switch_is_cause"]
    assert second["spike"]["cause"] != "load.disk"
    assert second["evidence"]["weights_bytes"] == size
    assert third["spike"]["cause"] == "load.disk"
    assert third["spike"]["why"][0] == "evicted.pagecache"
    assert third["evidence"]["processes_started"] == 0


def test_waking_after_the_probes_went_off(
    daemon: Ttftd, weights: Path, ask: Ask, tmp_path: Path
) -> None:
    model = weights / "alpha.gguf"
    options = (*OPTIONS, "--sleep-idle-seconds", str(SLEEP_S))
    log = tmp_path / "server.log"
    with llama.alone(model, *options, log=log, calm=True) as server:
        daemon.wait_server(server.port)
        warm = [chat(ask, server, "alpha") for _ in range(6)]
        wait_off(daemon)
        maps = Path(f"/proc/{server.pid}/maps")
        wait_for(
            lambda: str(model.resolve()) not in maps.read_text(), QUIET_S, "the server to sleep"
        )
        woken = chat(ask, server, "alpha")
        *_, answer = daemon.explained([*warm, woken])
        assert files(daemon)["why"] == "arrival"
    assert_sound(answer, woken)
    assert answer["evidence"]["resident_before"] is False
    assert answer["evidence"]["weights_bytes"] == model.stat().st_size
    assert answer["spike"]["why"] == ["idle.timeout"]
    assert {"spawn", "load", "init"} <= {p for p, ms in answer["phases_ms"].items() if ms}


def test_always_on(weights: Path, ask: Ask, tmp_path: Path) -> None:
    config = '[probes]\narming = "always"\n'
    with (
        Ttftd(tmp_path / "ttftd", config) as daemon,
        llama.alone(weights / "alpha.gguf", *OPTIONS, log=tmp_path / "log", calm=True) as server,
    ):
        daemon.wait_server(server.port)
        chat(ask, server, "alpha")
        probe = files(daemon)
    assert (probe["attached"], probe["why"], probe["since_s"]) == (True, None, None)
