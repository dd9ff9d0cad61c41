"""Segments are seen in the cgroups of servers alone: of theirs none is missed, no other is run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bpf.segments import Listener
from tests.workloads.cgroups import Cgroup
from tests.workloads.stub_clients import all_closed, call, stream
from tests.workloads.stub_server import StubServer
from tests.workloads.waiting import wait_for
from tracer.ahead import Ahead
from tracer.kernel.loader import Kernel
from tracer.kernel.placing import GROUPS_MAX
from tracer.kernel.wire import RawPacket
from tracer.records import HttpBody, HttpEnd, HttpRequest

pytestmark = pytest.mark.kernel

NAME = "ttft-a-server"
#: In which every second segment is the answer to one before.
STRANGER = """
import socket, threading
a = socket.create_server(("127.0.0.1", 0)); b = socket.create_connection(a.getsockname())
c, _ = a.accept()
for _ in range(200):
    b.sendall(b"x"); c.recv(1); c.sendall(b"y"); b.recv(1)
"""


@pytest.fixture
def kernel(built: Path) -> Iterator[Kernel]:
    """Sockets and processes only, as the daemon has it once the running servers are known."""
    with Kernel.open(off=("files", "faults", "cache", "libs"), path=built) as opened:
        opened.add_server_comm(NAME)
        opened.rings.hear = Ahead(opened, lambda _: False, opened.probes.placement).hear
        opened.follow_servers()
        yield opened


@pytest.fixture
def group() -> Iterator[Cgroup]:
    with Cgroup("ttft-place") as made:
        yield made


@contextlib.contextmanager
def server(group: Cgroup, folder: Path, chunks: int = 3) -> Iterator[StubServer]:
    """One whose program is known by its name, started in a cgroup."""
    link = folder / NAME
    if not link.exists():
        link.symlink_to(Path(sys.executable).resolve())
    prefix = (*group.prefix, "sh", "-c", f'shift; exec {link} "$@"', "sh")
    with StubServer(chunks=chunks, prefix=prefix) as stub:
        yield stub


def ask(port: int, times: int = 1) -> None:
    for _ in range(times):
        asyncio.run(stream("127.0.0.1", port, call("m")))


def places(kernel: Kernel) -> tuple[str, ...]:
    return kernel.probes.placement.places.groups


def runs(kernel: Kernel) -> int:
    names = ("ttft_ingress", "ttft_egress")
    return sum(s.runs for s in kernel.run_stats() if s.program in names)


def ends(listener: Listener, count: int) -> list[HttpEnd]:
    """The ends of so many requests, each whole and seen once."""

    def found() -> list[HttpEnd]:
        return [f for f in listener.facts if isinstance(f, HttpEnd)]

    listener.until(lambda: len(found()) >= count, f"{count} ends")
    begun = [f for f in listener.facts if isinstance(f, HttpRequest)]
    bodies = [f.model for f in listener.facts if isinstance(f, HttpBody)]
    assert (len(begun), bodies) == (count, ["m"] * count)
    assert [f.why for f in found()] == ["complete"] * count
    return found()


def test_the_first_request_of_a_server_in_a_cgroup_of_its_own(
    kernel: Kernel, group: Cgroup, tmp_path: Path
) -> None:
    listener = Listener(kernel)
    assert places(kernel) == ()
    with server(group, tmp_path) as stub:
        ask(stub.port)
        assert places(kernel) == (group.path,)
        (end,) = ends(listener, 1)
    assert end.tokens == 3
    assert kernel.lost() == {}


def test_a_server_that_starts_again_in_a_cgroup_of_the_same_name(
    kernel: Kernel, tmp_path: Path
) -> None:
    listener = Listener(kernel)
    for count in (1, 2, 3):
        with Cgroup("ttft-again") as group, server(group, tmp_path) as stub:
            ask(stub.port)
            assert places(kernel) == (group.path,)
            ends(listener, count)


def test_segments_of_strangers_run_no_program(
    kernel: Kernel, group: Cgroup, tmp_path: Path
) -> None:
    kernel.enable_stats()
    with server(group, tmp_path) as stub, Cgroup("ttft-stranger") as other:
        ask(stub.port)
        wait_for(lambda: all_closed(stub.port), 10, "its last segment")
        before = runs(kernel)
        assert before > 0
        other.run(sys.executable, "-c", STRANGER)
        subprocess.run([sys.executable, "-c", STRANGER], check=True)  # in the root
        assert runs(kernel) == before
        group.run(sys.executable, "-c", STRANGER)
        assert runs(kernel) >= before + 800


def test_one_below_the_other_tells_each_segment_once(
    kernel: Kernel, group: Cgroup, tmp_path: Path
) -> None:
    listener = Listener(kernel)
    with Cgroup("inner", parent=group) as inner, server(inner, tmp_path) as below:
        ask(below.port)
        assert places(kernel) == (inner.path,)
        with server(group, tmp_path) as above:
            ask(above.port)
            ask(below.port)
            assert places(kernel) == (group.path,)
        ends(listener, 3)
        seen = Counter(
            (r.conn, r.egress, r.seq, r.ack, r.tcp_flags, r.payload)
            for r in listener.raws if isinstance(r, RawPacket) and r.payload
        )  # fmt: skip
        assert set(seen.values()) == {1}
        wait_for(lambda: above_gone(listener, kernel, above.port), 10, "the outer server's end")
        kernel.probes.placement.keep(kernel.watched(), [(netns(), below.port)])
        assert places(kernel) == (inner.path,)
        ask(below.port)
        ends(listener, 4)


def netns() -> int:
    return os.stat("/proc/self/ns/net").st_ino


def above_gone(listener: Listener, kernel: Kernel, port: int) -> bool:
    listener.drain()
    ports = kernel.table("ports")
    return not any(int.from_bytes(key[4:6], "little") == port for key, _ in ports.items())


def test_a_server_that_is_moved_keeps_its_sockets_where_they_were(
    kernel: Kernel, group: Cgroup, tmp_path: Path
) -> None:
    listener = Listener(kernel)
    with Cgroup("ttft-later") as later, server(group, tmp_path) as stub:
        later.add(stub.pid)
        listener.drain()
        kernel.probes.placement.keep(kernel.watched(), [(netns(), stub.port)])
        assert places(kernel) == tuple(sorted((group.path, later.path)))
        ask(stub.port)
        ends(listener, 1)


def test_of_sockets_in_a_cgroup_that_nobody_named_the_next_connection_is_whole(
    kernel: Kernel, group: Cgroup
) -> None:
    """Nothing tells where a socket of before belongs, until somebody connects to it."""
    listener = Listener(kernel)
    with Cgroup("ttft-later") as later, StubServer(chunks=3, prefix=group.prefix) as stub:
        later.add(stub.pid)
        kernel.watch(stub.pid)
        kernel.watch_port(netns(), stub.port)
        assert places(kernel) == (later.path,)
        with socket.create_connection(("127.0.0.1", stub.port)):
            wait_for(lambda: group.path in places(kernel), 10, "the cgroup to be told")
        ask(stub.port)
        listener.until(lambda: any(isinstance(f, HttpEnd) for f in listener.facts), "the end")
    assert [f.model for f in listener.facts if isinstance(f, HttpBody)] == ["m"]


def test_to_the_root_and_back_under_way_loses_nothing(
    kernel: Kernel, group: Cgroup, tmp_path: Path
) -> None:
    listener, turns = Listener(kernel), 40
    with server(group, tmp_path, chunks=200) as stub:
        work = threading.Thread(target=ask, args=(stub.port, 20))
        work.start()
        for turn in range(turns):
            kernel.set_server_ports([1] if turn % 2 == 0 else [])
            listener.drain()
            expected = "/" if turn % 2 == 0 else group.path
            assert places(kernel) == (expected,)
        work.join()
        assert {end.tokens for end in ends(listener, 20)} == {200}
    assert kernel.lost() == {}


def test_more_than_a_few_cgroups_are_too_many(kernel: Kernel, group: Cgroup) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(GROUPS_MAX + 1):
            one = stack.enter_context(Cgroup(str(number), parent=group))
            process = subprocess.Popen([*one.prefix, "cat"], stdin=subprocess.PIPE)
            stack.callback(process.wait)
            stack.callback(process.kill)
            wait_for(one.occupied, 10, "it to enter")
            assert len(places(kernel)) == number
            kernel.watch(process.pid)
        assert kernel.probes.placement.places.because == f"servers are in more than {GROUPS_MAX}"
        assert places(kernel) == ("/",)
    kernel.drain()
    kernel.probes.placement.keep(kernel.watched(), [])
    assert places(kernel) == ()
