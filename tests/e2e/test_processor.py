"""What else takes the processor from a warm prompt, and a disk that sleeps, on a real server."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.e2e.conftest import Ask
from tests.workloads import llama, pagecache
from tests.workloads.quota import Quota
from tests.workloads.throttle import Throttle
from tests.workloads.ttftd import Json, Ttftd
from tests.workloads.waiting import wait_for
from tracer.host.processors import host_busy_ns

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
PROMPT = "Why is the sky blue in the daytime, and red in the evening? " * 2
WARM = 6
#: Of each processor; the server then has a ninth of one.
HOGS = 8
ASLEEP_S = 3.0


@pytest.fixture
def server(weights: Path, tmp_path: Path, daemon: Ttftd) -> Iterator[llama.LlamaServer]:
    """One model, one thread, of no higher priority than anybody else."""
    options = ("-m", str(weights / "alpha.gguf"), "-c", "1024", *llama.CALM)
    with llama.LlamaServer(options, log=tmp_path / "server.log") as running:
        daemon.wait_server(running.port)
        yield running


def chat(server: llama.LlamaServer, ask: Ask) -> llama.Reply:
    with server.client(keep_alive=False) as client:
        return ask(lambda: client.chat("alpha", PROMPT, 2, cache_prompt=False))


def slow_prompt(
    server: llama.LlamaServer,
    daemon: Ttftd,
    ask: Ask,
    slowed: Callable[[], AbstractContextManager[None]],
) -> Json:
    """The answer for a prompt during `slowed`, warm ones of the same length having gone before."""
    daemon.explained([chat(server, ask) for _ in range(WARM)])
    with slowed():
        reply = chat(server, ask)
    (answer,) = daemon.explained([reply])
    return answer


@contextlib.contextmanager
def busy_processors() -> Iterator[None]:
    """Programs that use every processor; they are at it when this begins."""
    cores = os.cpu_count() or 1
    # Each in a session of its own, as the server: where sessions share alike, that counts.
    command = [sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(command, start_new_session=True) for _ in range(HOGS * cores)]
    try:
        since = host_busy_ns() or 0
        wait_for(lambda: (host_busy_ns() or 0) - since > 0.2e9 * cores, 20, "busy processors")
        yield
    finally:
        for hog in hogs:
            hog.kill()
        for hog in hogs:
            hog.wait()


def test_others_use_the_processor(server: llama.LlamaServer, daemon: Ttftd, ask: Ask) -> None:
    answer = slow_prompt(server, daemon, ask, busy_processors)
    spike = answer["spike"]
    assert spike["is_spike"], (answer["ttft_ms"], answer["phases_ms"], spike)
    assert (spike["dominant"], spike["cause"]) == ("prefill", "prefill.contention"), answer
    assert (spike["why"], spike["switch_is_cause"]) == ([], False)
    assert "other programs used" in spike["because"]


def test_a_quota_holds_it_back(server: llama.LlamaServer, daemon: Ttftd, ask: Ask) -> None:
    """As of a container that may use a tenth of one processor."""
    with Quota("ttft-test") as quota:

        @contextlib.contextmanager
        def held() -> Iterator[None]:
            quota.limit(0.1)
            yield
            quota.limit(10)

        quota.add(server.pid)
        spike = slow_prompt(server, daemon, ask, held)["spike"]
    assert (spike["dominant"], spike["cause"]) == ("prefill", "prefill.throttled"), spike
    assert "CPU quota" in spike["because"]


def has_open(pids: list[int], file: Path) -> bool:
    links = [link for pid in pids for link in Path(f"/proc/{pid}/fd").glob("*")]
    for link in links:
        with contextlib.suppress(OSError):
            if link.readlink() == file:
                return True
    return False


def test_a_disk_that_slept(weights: Path, tmp_path: Path, daemon: Ttftd, ask: Ask) -> None:
    """The first read gets through after a while; then the disk runs as fast as ever."""
    file, log = (weights / "beta.gguf").resolve(), tmp_path / "router.log"
    router = llama.router(weights, 1, "-c", "1024", log=log, calm=True)
    with Throttle(file, "ttft-test-sleep") as throttle, ThreadPoolExecutor(1) as disk, router:

        def spin_up() -> None:
            """From the moment on that somebody wants something of it."""
            try:
                wait_for(lambda: has_open(router.runners(), file), 60, f"{file} to be opened")
                time.sleep(ASLEEP_S)
            finally:
                throttle.limit(None)

        daemon.wait_server(router.port)
        throttle.add(router.pid)
        chat(router, ask)
        for library in filter(Path.is_file, llama.server_binary().parent.iterdir()):
            pagecache.fill(library)  # it lies on the same disk
        pagecache.drop(file)
        throttle.limit(1)
        awake = disk.submit(spin_up)
        with router.client(keep_alive=False) as client:
            reply = ask(lambda: client.chat("beta", PROMPT, 2))
        awake.result()
        (answer,) = daemon.explained([reply])
    spike = answer["spike"]
    assert spike["dominant"].startswith("load"), answer
    assert (spike["cause"], spike["why"]) == ("load.disk", ["load.spinup"]), answer
    assert answer["stages_ms"]["load.disk"] >= 0.9 * ASLEEP_S * 1000
    assert "the first read took" in spike["because"]
    whole = -(-file.stat().st_size // 4096) * 4096
    assert answer["evidence"]["weights_bytes_from_disk"] >= whole
