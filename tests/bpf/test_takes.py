"""What sees bytes taken comes with the first bytes of a request, and goes when nothing is asked."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.bpf.segments import Listener
from tests.bpf.test_sockets import echo, post, response
from tests.workloads.llama import connect
from tests.workloads.waiting import wait_for
from tracer.kernel.loader import Kernel
from tracer.kernel.takes import QUIET_NS
from tracer.records import HttpEnd, Take

pytestmark = pytest.mark.kernel


def runs(kernel: Kernel) -> int:
    return sum(s.runs for s in kernel.run_stats() if s.program == "ttft_take")


def test_it_comes_and_goes(built: Path) -> None:
    with (
        Kernel.open(off=("files", "faults", "cache", "libs"), path=built) as kernel,
        echo("127.0.0.1") as port,
    ):
        takes, listener = kernel.probes.takes, Listener(kernel)
        kernel.enable_stats()
        kernel.watch(os.getpid())
        kernel.watch_port(Path("/proc/self/ns/net").stat().st_ino, port)
        kernel.follow_servers()
        assert not takes.on
        with connect("127.0.0.1", port) as client:
            awake = kernel.table("awake")
            kernel.wait(10, 60_000)  # from now on nobody looks by himself
            listener.until(lambda: awake.get(bytes(4)) == bytes(4), "the reader to doze")
            before = runs(kernel)
            client.sendall(post(b"{}"))
            response(client)
            wait_for(lambda: takes.on, 10, "it to come")
            client.sendall(post(b"{}"))
            response(client)
            own = client.getsockname()[1]

            def ended() -> bool:
                return sum(isinstance(f, HttpEnd) for f in listener.facts) == 2

            listener.until(ended, "both ends")
            found = [r for r in listener.raws if isinstance(r, Take)]
            assert {t.conn.client_port for t in found} == {own}
            assert runs(kernel) > before
            takes.rest(time.monotonic_ns() + QUIET_NS + 1)
            assert not takes.on
            before = runs(kernel)
            client.sendall(b"G")  # read by the server, and seen by nobody
            wait_for(lambda: not unread(port, own), 10, "the server to read it")
            assert runs(kernel) == before


def test_it_comes_when_a_request_is_not_all_that_woke_us(built: Path) -> None:
    with (
        Kernel.open(off=("files", "faults", "cache", "libs"), path=built) as kernel,
        echo("127.0.0.1") as port,
    ):
        takes = kernel.probes.takes
        kernel.watch(os.getpid())
        kernel.watch_port(Path("/proc/self/ns/net").stat().st_ino, port)
        kernel.follow_servers()
        with connect("127.0.0.1", port) as client:
            kernel.wait(10, 60_000)
            with kernel.rings.held():
                kernel.wait(0, 20)  # another pace: wakes the thread, which then waits for us
                wait_for(drains, 10, "the thread to drain")
                kernel.wait(0, 30)
                client.sendall(post(b"{}"))
                response(client)
            wait_for(lambda: takes.on, 10, "it to come")


def drains() -> bool:
    """Whether the thread that drains the rings waits for its lock."""
    (task,) = (t.native_id for t in threading.enumerate() if t.name == "ttft-rings")
    return Path(f"/proc/self/task/{task}/wchan").read_text().startswith("futex")


def unread(port: int, client: int) -> bool:
    """Whether the server's end has bytes that it did not take."""
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = row.split()
        if fields[1].endswith(f":{port:04X}") and fields[2].endswith(f":{client:04X}"):
            return fields[4].partition(":")[2] != "00000000"
    return False
