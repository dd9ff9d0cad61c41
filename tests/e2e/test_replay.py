"""A recording of the real server replays to the live answers, byte for byte."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import Ask
from tests.workloads import llama, pagecache
from tests.workloads.ttftd import Ttftd, ttft

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]


def test_replay_is_live(daemon: Ttftd, weights: Path, ask: Ask, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    with (
        llama.router(weights, 1, "-np", "1", "-c", "2048", log=tmp_path / "server.log") as server,
        server.client(keep_alive=False) as client,
    ):
        # Not recorded, but part of the history that the recording's verdicts stand on.
        for number in range(6):
            ask(partial(client.chat, "alpha", f"Warm up {number}."))
        before = daemon.wait_finished(6)
        with daemon.recording(recording):
            pagecache.drop(weights / "beta.gguf")
            for model in ("alpha", "beta", "beta", "alpha"):
                ask(partial(client.chat, model, "Once more."))
            live_all = daemon.wait_finished(10)
    live = ttft("requests", "--json", "--last", "4", socket=daemon.socket)
    details = [
        ttft("show", str(answer["id"]), "--json", socket=daemon.socket).stdout
        for answer in live_all[6:]
    ]
    daemon.stop()
    assert live.returncode == 0
    assert [answer["id"] for answer in live_all[:6]] == [answer["id"] for answer in before]

    replayed = ttft("replay", str(recording), "--json")
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == live.stdout
    for answer, detail in zip(live_all[6:], details, strict=True):
        again = ttft("replay", str(recording), "--show", str(answer["id"]), "--json")
        assert again.stdout == detail
    assert any(answer["spike"]["is_spike"] for answer in live_all[6:])
