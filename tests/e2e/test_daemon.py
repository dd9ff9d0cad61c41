"""The daemon killed, started twice, and started again."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Ask
from tests.e2e.helpers import assert_sound
from tests.workloads import bpf, llama, pagecache
from tests.workloads.throttle import Throttle
from tests.workloads.ttftd import UNIT_NICE, Ttftd
from tests.workloads.waiting import wait_for

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
DISK_BYTES_PER_S = 80_000_000
OPTIONS = ("-c", "2048")


def none_left(programs: set[int], links: set[int]) -> bool:
    """None of these is in the kernel any more."""
    return not programs & bpf.program_ids() and not links & bpf.link_ids()


def test_killed_during_a_load(weights: Path, ask: Ask, tmp_path: Path) -> None:
    daemon = Ttftd(tmp_path / "ttftd", nice=UNIT_NICE)
    file = weights / "alpha.gguf"
    with (
        Throttle(file, "ttft-kill") as throttle,
        llama.router(weights, 1, *OPTIONS, log=tmp_path / "server.log", calm=True) as server,
        server.client(keep_alive=False) as client,
    ):
        throttle.add(server.pid)
        with daemon:
            daemon.wait_server(server.port)
            programs, links = bpf.held(daemon.pid)
            assert programs <= bpf.program_ids()
            assert links <= bpf.link_ids()
            assert len(links) > 10
            warm = [ask(lambda: client.chat("beta", "Before the daemon dies.")) for _ in range(2)]
            kept = daemon.explained(warm)
            pagecache.drop(file)
            throttle.limit(DISK_BYTES_PER_S)

            def kill_while_loading() -> None:
                wait_for(lambda: pagecache.cached_bytes(file) > 40_000_000, 30, "weights to come")
                daemon.kill()

            killer = threading.Thread(target=kill_while_loading)
            killer.start()
            during = ask(lambda: client.chat("alpha", "The daemon dies meanwhile."))
            killer.join()
        throttle.limit(None)
        assert during.status == 200
        assert during.tokens > 0
        wait_for(lambda: none_left(programs, links), 5, "the kernel to drop the programs")

        with daemon:
            programs, links = bpf.held(daemon.pid)
            daemon.wait_server(server.port)
            after = ask(lambda: client.chat("alpha", "And after it is back."))
            *again, answer = daemon.explained([*warm, after])
            assert again == kept
            # What this server loaded before is not known: the answer says so, and holds.
            assert_sound(answer, after, complete=False)
            assert answer["id"] > kept[-1]["id"]
    history = sqlite3.connect(daemon.state / "history.db")
    assert history.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    wait_for(lambda: none_left(programs, links), 5, "the kernel to drop the programs")


def test_second_daemon_says_so(daemon: Ttftd) -> None:
    done = subprocess.run(daemon.command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    message, hint = done.stderr.strip().splitlines()[-2:]
    assert str(daemon.socket) in message
    assert str(daemon.pid) in message or "already" in message or "another" in message
    assert hint.startswith("hint: ")
    assert "Traceback" not in done.stderr
    assert daemon.get("/v1/status")["schema"] == 1
