"""Which processes belong to which server: from real processes, with the kernel side noted down."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.unit.test_host import Running
from tracer.host import files, proc
from tracer.host.discovery import Discovery
from tracer.host.members import Member
from tracer.host.recognise import Rule
from tracer.kernel.wire import RawExec, RawFile, RawMagic
from tracer.records import (
    AnyRecord,
    Connect,
    Exec,
    Exit,
    File,
    Fork,
    Listen,
    Process,
    Server,
    Unlisten,
)


class Noted:
    """Stands in for the kernel side: notes what it is asked to do."""

    def __init__(self) -> None:
        self.watched: set[int] = set()
        self.let_go: list[int] = []
        self.files: set[tuple[int, int]] = set()
        self.ports: set[tuple[int, int]] = set()
        self.comms: set[str] = set()
        self.server_ports: list[int] = []
        self.held: set[tuple[int, int, int]] = set()

    def watch(self, tgid: int) -> None:
        self.watched.add(tgid)

    def unwatch(self, tgid: int) -> None:
        self.let_go.append(tgid)

    def track_file(self, dev: int, ino: int) -> None:
        self.files.add((dev, ino))

    def watch_port(self, netns: int, port: int) -> None:
        self.ports.add((netns, port))

    def drop_port(self, netns: int, port: int) -> None:
        self.ports.discard((netns, port))

    def add_server_comm(self, comm: str) -> None:
        self.comms.add(comm)

    def set_server_ports(self, ports: Collection[int]) -> None:
        self.server_ports = sorted(ports)

    def holds(self, netns: int, port: int, tgid: int, parent: int | None) -> None:
        self.held.add((netns, port, tgid))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    server = Running(tmp_path)
    yield server
    server.stop()


def started(discovery: Discovery, now_ns: int) -> list[AnyRecord]:
    return discovery.start(now_ns)


def about(records: list[AnyRecord], tgid: int) -> list[AnyRecord]:
    """Those of one process: others may run on this machine."""
    return [r for r in records if getattr(r, "tgid", None) == tgid]


def test_ports_of_the_configuration_are_known_to_the_kernel_side() -> None:
    """Only of rules that say nothing else: others tell a process by what it is."""
    noted = Noted()
    rules = [
        Rule(name="a", port=8080),
        Rule(name="b", port=8081, exe="/usr/bin/b"),
        Rule(name="c", port=8082, command="--serve"),
    ]
    discovery = Discovery(noted, rules)
    started(discovery, 1)
    assert noted.server_ports == [8080]
    discovery.change([Rule(name="d", port=8083), Rule(name="e", port=8084)], 2)
    assert noted.server_ports == [8083, 8084]


def test_a_running_server_is_adopted_whole(running: Running) -> None:
    kernel, tgid = Noted(), running.process.pid
    discovery = Discovery(kernel)
    records = started(discovery, 5)
    process, listen, server, _hop = about(records, tgid)
    netns, info = proc.netns(tgid), running.weights.stat()
    assert isinstance(process, Process)
    assert listen == Listen(ts_ns=5, tgid=tgid, netns=netns, port=running.port)
    assert server == Server(
        ts_ns=5, name=f"llama-server:{running.port}", program="llama-server", tgid=tgid,
        netns=netns, port=running.port,
    )  # fmt: skip
    key = (files.kernel_dev(info.st_dev), info.st_ino)
    assert key in {(r.dev, r.ino) for r in records if isinstance(r, File) and r.fmt == "gguf"}
    assert key in kernel.files
    assert tgid in kernel.watched
    assert (netns, running.port) in kernel.ports
    assert {"llama-server", "ollama"} <= kernel.comms
    assert discovery.ports_of(tgid) == [(netns, running.port)]


def test_a_rule_names_a_server_that_is_not_known(tmp_path: Path) -> None:
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    argv = ["odd", "-c", code, str(tmp_path)]
    child = subprocess.Popen(
        argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        discovery = Discovery(Noted(), [Rule(name="mine", command=str(tmp_path), port=70)])
        (process,) = about(started(discovery, 1), child.pid)
        assert isinstance(process, Process)
        assert process.command is not None
        assert (process.command.program, process.command.role) == ("custom", "single")
        admin = Listen(ts_ns=2, tgid=child.pid, netns=9, port=71)
        assert discovery.translate(admin) == [admin], "not the port that clients use"
        (_, server) = discovery.translate(Listen(ts_ns=2, tgid=child.pid, netns=9, port=70))
        assert isinstance(server, Server)
        assert (server.name, server.port) == ("mine", 70)
    finally:
        child.communicate(b"")


def test_a_stranger_that_listens_is_a_server_by_its_port_or_not_at_all() -> None:
    """Our own process stands for the stranger."""
    kernel, me = Noted(), os.getpid()
    discovery = Discovery(kernel, [Rule(name="by port", port=70)])
    assert discovery.translate(Listen(ts_ns=1, tgid=me, netns=9, port=71)) == []
    assert me not in kernel.watched
    records = about(discovery.translate(Listen(ts_ns=2, tgid=me, netns=9, port=70)), me)
    assert [type(r) for r in records] == [Process, Listen, Server]
    assert me in kernel.watched
    assert (9, 70) in kernel.ports


def test_who_starts_all_others_is_no_server() -> None:
    """It listens on behalf of services: to watch it were to watch the whole host."""
    kernel = Noted()
    discovery = Discovery(kernel, [Rule(name="by port", port=70)])
    opened = Listen(ts_ns=2, tgid=1, netns=9, port=70)
    assert not discovery.serves(opened)
    assert discovery.translate(opened) == []
    assert (kernel.watched, kernel.ports) == (set(), set())


def test_a_server_known_by_its_port_alone_is_found_when_it_ran_before_us() -> None:
    """Our own listener stands for it; what listens elsewhere stays a stranger."""
    me = os.getpid()
    with socket.create_server(("127.0.0.1", 0)) as mine, socket.create_server(("::1", 0),
        family=socket.AF_INET6) as other:  # fmt: skip
        port = mine.getsockname()[1]
        rules = [Rule(name="by port", port=port), Rule(name="nobody", port=1)]
        kernel = Noted()
        records = about(started(Discovery(kernel, rules), 1), me)
        found = {(r.name, r.port) for r in records if isinstance(r, Server)}
        assert ("by port", port) in found
        assert me in kernel.watched
        assert (proc.netns(me), port) in kernel.ports
        nobody = Discovery(Noted(), [Rule(name="nobody", port=other.getsockname()[1] % 65535 + 1)])
        assert about(started(nobody, 1), me) == []


def test_rules_can_change(running: Running, tmp_path: Path) -> None:
    """What new rules name is found; what was known is not told again."""
    other = Running(tmp_path, name="stranger")
    try:
        known, found = running.process.pid, other.process.pid
        discovery = Discovery(Noted())
        before = started(discovery, 1)
        assert (about(before, known) != [], about(before, found)) == (True, [])
        after = discovery.change([Rule(name="by port", port=other.port)], 2)
    finally:
        other.stop()
    assert about(after, known) == []
    servers = {(r.name, r.port) for r in about(after, found) if isinstance(r, Server)}
    assert servers == {("by port", other.port)}


def test_a_program_that_only_shares_a_name_is_let_go() -> None:
    kernel = Noted()
    raw = RawExec(ts_ns=1, tgid=os.getpid(), comm="ollama", filename="/usr/bin/ollama")
    assert Discovery(kernel).translate(raw) == []
    assert kernel.let_go == [os.getpid()]


def test_children_belong_to_the_server_until_they_exit(running: Running) -> None:
    kernel, front = Noted(), running.process.pid
    discovery = Discovery(kernel)
    started(discovery, 1)
    fork = Fork(ts_ns=2, parent=front, child=front + 4_000_000, comm="llama-server")
    assert discovery.translate(fork) == [fork]
    running_child = RawExec(
        ts_ns=3, tgid=fork.child, comm="llama-server", filename="/x/llama-server"
    )
    assert discovery.translate(running_child) == [
        Exec(ts_ns=3, tgid=fork.child, comm="llama-server", exe="/x/llama-server")
    ]
    listen = Listen(ts_ns=4, tgid=fork.child, netns=9, port=70)
    assert discovery.translate(listen) == [listen], "a runner's port is no server of its own"
    assert discovery.ports_of(fork.child) == [(9, 70)]
    gone = Exit(ts_ns=5, tgid=fork.child, code=0)
    assert discovery.translate(gone) == [gone]
    assert discovery.translate(gone) == []
    assert discovery.ports_of(fork.child) == []
    stranger = Fork(ts_ns=6, parent=fork.child, child=fork.child + 1, comm="x")
    assert discovery.translate(stranger) == []


def test_a_port_that_closes_is_forgotten(running: Running) -> None:
    discovery = Discovery(Noted())
    started(discovery, 1)
    tgid = running.process.pid
    ((netns, port),) = discovery.ports_of(tgid)
    closed = Unlisten(ts_ns=2, netns=netns, port=port)
    running.stop()
    assert discovery.translate(closed) == [closed]
    assert discovery.ports_of(tgid) == []


def test_a_port_with_more_sockets_stays_watched(running: Running) -> None:
    """One of several closed, or a stranger's at another address: the kernel side let it go."""
    kernel = Noted()
    discovery = Discovery(kernel)
    started(discovery, 1)
    key = (netns, port) = discovery.ports_of(running.process.pid)[0]
    kernel.ports.clear()
    assert discovery.translate(Unlisten(ts_ns=2, netns=netns, port=port)) == []
    assert kernel.ports == {key}
    assert discovery.ports_of(running.process.pid) == [key]


CHILD_FIRST = """
import os, socket, sys
runner, front = socket.create_server(("127.0.0.1", 0)), None
if not os.fork():
    sys.stdin.read()
    os._exit(0)
inner = runner.getsockname()[1]
runner.close()
front = socket.create_server(("127.0.0.1", 0))
print(inner, front.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_child_that_listened_before_its_front_was_known_is_found() -> None:
    argv = [sys.executable, "-c", CHILD_FIRST]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        inner, port = map(int, child.stdout.readline().split())
        netns = proc.netns(child.pid)
        kernel = Noted()
        discovery = Discovery(kernel, [Rule(name="mine", port=port)])
        records = discovery.translate(Listen(ts_ns=2, tgid=child.pid, netns=netns, port=port))
        listens = [(r.port, r.tgid) for r in records if isinstance(r, Listen)]
        assert [p for p, _ in listens] == [inner, port]
        assert listens[1][1] == child.pid
        assert listens[0][1] != child.pid
        assert kernel.ports == {(netns, inner), (netns, port)}
        assert [r.port for r in records if isinstance(r, Server)] == [port]
    finally:
        child.communicate(b"")


def test_hops_that_are_open_already_are_known(running: Running) -> None:
    """A connection from the server's own tree to one of its ports; ours is a client's."""
    front = running.process.pid
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        ours = client.getsockname()[1]
        records = started(Discovery(Noted()), 1)
    (hop,) = (r for r in about(records, front) if isinstance(r, Connect))
    assert (hop.conn.server_port, hop.conn.netns) == (running.port, proc.netns(front))
    assert hop.conn.client_port != ours


def test_content_beats_the_name_of_a_file() -> None:
    discovery = Discovery(Noted())
    raw = RawFile(
        ts_ns=1, tgid=os.getpid(), dev=7, ino=8, size=2 << 20, fd=-1, name="/m/x.gguf"
    )  # fmt: skip
    (file,) = discovery.translate(raw)
    assert file == File(ts_ns=1, dev=7, ino=8, size=2 << 20, path="/m/x.gguf", fmt="gguf")
    same = RawMagic(ts_ns=2, tgid=1, dev=7, ino=8, data=b"GGUF\x03\0\0\0")
    assert discovery.translate(same) == []
    other = RawMagic(ts_ns=3, tgid=1, dev=7, ino=8, data=b"\x7fELF\x02\x01\x01\0")
    assert discovery.translate(other) == [
        File(ts_ns=3, dev=7, ino=8, size=2 << 20, path="/m/x.gguf", fmt=None)
    ]
    unknown = RawMagic(ts_ns=4, tgid=1, dev=7, ino=9, data=b"GGUF")
    assert discovery.translate(unknown) == []


def test_a_file_keeps_its_name_where_its_next_descriptor_is_closed_already() -> None:
    """It is mapped and closed before anybody looks."""
    discovery = Discovery(Noted())
    named = RawFile(
        ts_ns=1, tgid=os.getpid(), dev=7, ino=8, size=2 << 20, fd=-1, name="/m/x.gguf"
    )  # fmt: skip
    (first,) = discovery.translate(named)
    again = msgspec.structs.replace(named, ts_ns=2, fd=987, name="", size=3 << 20)
    assert discovery.translate(again) == [msgspec.structs.replace(first, ts_ns=2, size=3 << 20)]
    other = msgspec.structs.replace(again, ino=9)
    assert discovery.translate(other) == [File(ts_ns=2, dev=7, ino=9, size=3 << 20)]


BACKGROUND = """
import os, socket, sys, time
inherit = sys.argv[1] != "listen"
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
if inherit:
    listener.listen()
if os.fork():
    os._exit(0)
os.setsid()
print(os.getpid(), listener.getsockname()[1], flush=True)
listener.listen()
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["inherit", "inherit late", "listen"])
def test_a_server_that_goes_to_the_background_stays_watched(how: str) -> None:
    """The front ends; a child goes on with its socket, or listens itself."""
    argv = ["llama-server", "-c", BACKGROUND, how, "--models-dir", "/x"]
    child = subprocess.Popen(
        argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        heir, port = map(int, child.stdout.readline().split())
        child.wait()
        netns = proc.netns(heir)
        discovery = Discovery(Noted())
        discovery.tree[child.pid] = Member(child.pid, None, "llama-server")
        fork = Fork(ts_ns=1, parent=child.pid, child=heir, comm="llama-server")
        gone, up = Exit(ts_ns=3, tgid=child.pid), Listen(ts_ns=4, tgid=heir, netns=netns, port=port)
        first = Listen(ts_ns=2, tgid=child.pid, netns=netns, port=port)
        if how == "inherit":
            discovery.translate(fork)
            assert len(discovery.translate(first)) == 2
            (_, process, listen, server) = discovery.translate(gone)
        elif how == "inherit late":  # a fork between ends before we look
            between = msgspec.structs.replace(fork, child=child.pid + 4_000_000)
            discovery.translate(between)
            discovery.translate(first)
            assert discovery.translate(gone) == [gone]
            fork = msgspec.structs.replace(fork, parent=between.child)
            (_, process, listen, server) = discovery.translate(fork)
        else:
            discovery.translate(fork)
            assert discovery.translate(gone) == [gone]
            (process, listen, server) = discovery.translate(up)
        assert isinstance(process, Process)
        assert isinstance(listen, Listen)
        assert isinstance(server, Server)
        assert process.command is not None
        assert (process.tgid, process.command.role) == (heir, "front")
        assert (listen.tgid, listen.port) == (heir, port)
        assert (server.tgid, server.name) == (heir, f"llama-server:{port}")
        assert discovery.ports_of(heir) == [(netns, port)]
        assert discovery.owned(netns, port), "its connections go on"
        assert discovery.tree[heir].front == heir
    finally:
        child.communicate(b"")


def test_a_front_that_dies_leaves_no_port_to_children_that_do_not_have_it(
    running: Running,
) -> None:
    discovery = Discovery(Noted())
    started(discovery, 1)
    front = running.process.pid
    discovery.tree[os.getpid()] = discovery.tree[front]
    gone = Exit(ts_ns=2, tgid=front)
    assert discovery.translate(gone) == [gone]
    assert discovery.ports_of(os.getpid()) == []
    assert not discovery.owned(proc.netns(front), running.port)
