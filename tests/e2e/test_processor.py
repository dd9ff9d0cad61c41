"""What else takes the processor from a warm prompt, and a disk that sleeps, on a real server."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import Ask
from tests.workloads import llama, pagecache
from tests.workloads.quota import Quota
from tests.workloads.throttle import Throttle
from tests.workloads.ttftd import UNIT_NICE, Json, Ttftd
from tests.workloads.waiting import wait_for
from tracer.host.processors import host_busy_ns

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
PROMPT = "Why is the sky blue in the daytime, and red in the evening? " * 2
WARM = 6
#: Of each processor; the server then has a ninth of one.
HOGS = 8
ASLEEP_S = 3.0


@dataclass
class Scene:
    """A daemon, and a server of one model that it has seen answer `WARM` requests."""

    daemon: Ttftd
    server: llama.LlamaServer
    ask: Ask

    def chat(self) -> llama.Reply:
        with self.server.client(keep_alive=False) as client:
            return self.ask(lambda: client.chat("alpha", PROMPT, 2, cache_prompt=False))

    def explained(self) -> Json:
        """One more of the same length, and what is said of it."""
        (answer,) = self.daemon.explained([self.chat()])
        return answer


@pytest.fixture(scope="module")
def scene(weights: Path, tmp_path_factory: pytest.TempPathFactory, ask: Ask) -> Iterator[Scene]:
    """One thread, of no higher priority than anybody else."""
    folder = tmp_path_factory.mktemp("processor")
    options = ("-m", str(weights / "alpha.gguf"), "-c", "1024", *llama.CALM)
    with (
        Ttftd(folder / "ttftd", nice=UNIT_NICE) as daemon,
        llama.LlamaServer(options, log=folder / "server.log") as server,
    ):
        daemon.wait_server(server.port)
        made = Scene(daemon, server, ask)
        daemon.explained([made.chat() for _ in range(WARM)])
        yield made


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


def test_others_use_the_processor(scene: Scene) -> None:
    with busy_processors():
        answer = scene.explained()
    spike = answer["spike"]
    assert spike["is_spike"], (answer["ttft_ms"], answer["phases_ms"], spike)
    assert (spike["dominant"], spike["cause"]) == ("prefill", "prefill.contention"), answer
    assert (spike["why"], spike["switch_is_cause"]) == ([], False)
    assert "other programs used" in spike["because"]


def test_a_quota_holds_it_back(scene: Scene) -> None:
    """As of a container that may use a twentieth of one processor."""
    with Quota("ttft-test") as quota:
        quota.add(scene.server.pid)
        quota.limit(0.05)
        spike = scene.explained()["spike"]
    assert (spike["dominant"], spike["cause"]) == ("prefill", "prefill.throttled"), spike
    assert "CPU quota" in spike["because"]


@contextlib.contextmanager
def disk_of_its_own(folder: Path, file: Path) -> Iterator[Path]:
    """A file system in a file, with a copy of `file`: nothing else reads from its device."""
    image, mounted = folder / "disk.img", folder / "disk"
    mounted.mkdir()
    with image.open("wb") as made:
        made.truncate(file.stat().st_size * 5 // 4)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mounted], check=True)
    try:
        yield Path(shutil.copy(file, mounted))
    finally:
        subprocess.run(["umount", mounted], check=True)


def has_open(pids: list[int], file: Path) -> bool:
    links = [link for pid in pids for link in Path(f"/proc/{pid}/fd").glob("*")]
    for link in links:
        with contextlib.suppress(OSError):
            if link.readlink() == file:
                return True
    return False


def test_a_disk_that_slept(weights: Path, tmp_path: Path, daemon: Ttftd, ask: Ask) -> None:
    """The first read gets through after a while; then the disk runs as fast as ever."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(disk_of_its_own(tmp_path, (weights / "beta.gguf").resolve()))
        throttle = stack.enter_context(Throttle(file, "ttft-test-sleep"))
        disk = stack.enter_context(ThreadPoolExecutor(1))
        log = tmp_path / "router.log"
        router = stack.enter_context(llama.router(file.parent, 1, "-c", "1024", log=log, calm=True))

        def spin_up() -> None:
            """From the moment on that somebody wants something of it."""
            try:
                wait_for(lambda: has_open(router.runners(), file), 60, f"{file} to be opened")
                time.sleep(ASLEEP_S)
            finally:
                throttle.limit(None)

        daemon.wait_server(router.port)
        throttle.add(router.pid)
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
    whole = -(-answer["evidence"]["weights_bytes"] // 4096) * 4096
    assert answer["evidence"]["weights_bytes_from_disk"] >= whole
