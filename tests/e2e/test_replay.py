"""A recording of the real server replays to the live answers, byte for byte."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import Ask
from tests.workloads import llama, pagecache
from tests.workloads.ttftd import Ttftd, ttft
from tests.workloads.waiting import wait_for

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]


def test_replay_is_live(daemon: Ttftd, weights: Path, ask: Ask, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    with (
        llama.router(weights, 1, "-c", "2048", log=tmp_path / "server.log", calm=True) as server,
        server.client(keep_alive=False) as client,
    ):
        # Not recorded, but part of the history that the recording's verdicts stand on.
        warm = [ask(partial(client.chat, "alpha", f"Warm up {n}.")) for n in range(6)]
        daemon.explained(warm)
        with daemon.recording(recording):
            pagecache.drop(weights / "beta.gguf")
            models = ("alpha", "beta", "beta", "alpha")
            replies = [ask(partial(client.chat, model, "Once more.")) for model in models]
            ids = [str(answer["id"]) for answer in daemon.explained(replies)]
            wait_for(lambda: all(named(daemon, number) for number in ids), 60, "all names", 0.5)
        live = {number: shown(daemon, number) for number in ids}
    daemon.stop()
    for number, detail in live.items():
        again = ttft("replay", str(recording), "--show", number, "--json")
        assert again.returncode == 0, again.stderr
        assert again.stdout == detail
    assert any(json.loads(detail)["spike"]["is_spike"] for detail in live.values())


def named(daemon: Ttftd, number: str) -> bool:
    """Whether the names of sampled functions have come, which are looked up a while later."""
    detail = json.loads(shown(daemon, number))
    stacks = json.dumps(detail["evidence_detail"]["stacks"])
    sampled = detail["spike"]["is_spike"] and '"function"' in stacks
    return not sampled or '"function": "' in stacks


def shown(daemon: Ttftd, number: str) -> str:
    """All of one live answer, as printed."""
    return ttft("show", number, "--json", socket=daemon.socket).stdout
