"""Who holds listening sockets: looked up once for all that happened before."""

from __future__ import annotations

import os
import socket
import time

import pytest

from tests.unit.test_discovery import Noted, running
from tests.unit.test_host import Running
from tracer.host import holders, proc, sockets
from tracer.host.discovery import Discovery
from tracer.host.holders import Holders
from tracer.host.members import Member
from tracer.records import Exit, Fork, Listen, Unlisten

__all__ = ["running"]
MANY = 500


class Looks:
    """How often /proc was looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tables = 0
        self.processes: list[int] = []
        self.namespaces: list[int] = []
        listening, owners, netns = sockets.listening, proc.socket_owners, proc.netns

        def table(tgid: int) -> dict[int, int]:
            self.tables += 1
            return listening(tgid)

        def process(tgids: list[int]) -> dict[int, int]:
            self.processes += tgids
            return owners(tgids)

        def namespace(tgid: int) -> int:
            self.namespaces.append(tgid)
            return netns(tgid)

        monkeypatch.setattr(proc, "netns", namespace)
        monkeypatch.setattr(sockets, "listening", table)
        monkeypatch.setattr(proc, "socket_owners", process)

    @property
    def seen(self) -> tuple[int, list[int], list[int]]:
        """Looks at tables, processes whose sockets and whose namespaces were asked for."""
        return self.tables, self.processes, self.namespaces


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def member_of_ours(kernel: Noted | None = None) -> tuple[Discovery, int, int]:
    """Our own process stands for a server's."""
    me = os.getpid()
    discovery = Discovery(kernel or Noted())
    discovery.tree[me] = Member(me, None, "llama-server")
    return discovery, me, proc.netns(me)


def test_a_storm_of_ports_that_close_takes_one_look(looks: Looks) -> None:
    discovery, me, netns = member_of_ours()
    with socket.create_server(("127.0.0.1", 0)) as open_still:
        port = open_still.getsockname()[1]
        closed = [p for p in range(1, MANY + 2) if p != port][:MANY]
        for p in (*closed, port):
            discovery.translate(Listen(ts_ns=1, tgid=me, netns=netns, port=p))
        now_ns = time.monotonic_ns()
        looks.namespaces.clear()
        gone = [discovery.translate(Unlisten(ts_ns=now_ns, netns=netns, port=p)) for p in closed]
        assert all(len(records) == 1 for records in gone)
        assert looks.seen == (1, [], [me]), "nobody listens there"
        assert discovery.translate(Unlisten(ts_ns=now_ns, netns=netns, port=port)) == []
        assert looks.seen == (2, [me], [me, me])
    later = Unlisten(ts_ns=time.monotonic_ns(), netns=netns, port=port)
    assert discovery.translate(later) == [later], "what came after the look takes another"
    assert discovery.ports_of(me) == []


def test_ports_that_are_gone_leave_nothing_in_the_kernel(looks: Looks) -> None:
    """A listen() that is heard of late is put in there once more; its table has little room."""
    kernel = Noted()
    discovery, me, netns = member_of_ours(kernel)
    child, now_ns = 4_000_000, time.monotonic_ns()
    discovery.tree[child] = Member(child, None, "llama-server")
    for tgid, port in ((me, 1), (child, 2)):
        discovery.translate(Listen(ts_ns=1, tgid=tgid, netns=netns, port=port))
        kernel.watch_port(netns, port)
    discovery.translate(Unlisten(ts_ns=now_ns, netns=netns, port=1))
    assert kernel.ports == {(netns, 2)}
    discovery.translate(Exit(ts_ns=now_ns, tgid=child))
    assert kernel.ports == set()


def test_orphans_are_looked_for_once_in_each_process(looks: Looks) -> None:
    """Of a listener that ended, with sockets that somebody else has; then its server forks."""
    discovery, me, netns = member_of_ours()
    child, now_ns = 4_000_000, time.monotonic_ns()
    discovery.tree[child] = discovery.tree[me]
    for port in range(1, MANY + 1):
        discovery.translate(Listen(ts_ns=1, tgid=child, netns=netns, port=port))
    discovery.translate(Exit(ts_ns=now_ns, tgid=child))
    for n in range(1, 31):
        fork = Fork(ts_ns=now_ns, parent=me, child=child + n, comm="x")
        assert discovery.translate(fork) == [fork]
    assert (looks.tables, looks.processes) == (1, [me])


def test_who_keeps_us_busy_is_looked_at_no_more_for_a_while(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps us from no other."""
    monkeypatch.setattr(holders, "_SPENT_MAX_S", 0.05)
    me, tgid = os.getpid(), running.process.pid
    known = Holders()
    netns, looked = proc.netns(me), 0
    owners = proc.socket_owners

    def slow(tgids: list[int]) -> dict[int, int]:
        nonlocal looked
        looked += 1
        time.sleep(0.02 if me in tgids else 0)
        return owners(tgids)

    monkeypatch.setattr(proc, "socket_owners", slow)
    with socket.create_server(("127.0.0.1", 0)) as mine:
        key = (netns, mine.getsockname()[1])
        found = [key in known.of(me, [me], time.monotonic_ns()) for _ in range(50)]
    assert found[0] and not found[-1], "the kernel's word is taken"
    assert looked < 10
    assert (proc.netns(tgid), running.port) in known.of(tgid, [tgid], time.monotonic_ns())


def test_a_large_family_is_looked_through_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "_SPENT_MAX_S", 0.05)

    def slow(_: list[int]) -> dict[int, int]:
        time.sleep(0.02)
        return {}

    monkeypatch.setattr(proc, "socket_owners", slow)
    monkeypatch.setattr(sockets, "listening", lambda _: {1: 1})
    began = time.monotonic()
    assert Holders().of(1, [os.getpid()] * 1000, time.monotonic_ns()) == {}
    assert time.monotonic() - began < 1


def test_what_was_seen_is_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Holders()
    for front in range(1 << 22, (1 << 22) + 500):
        known.of(front, [], time.monotonic_ns())
        known.none_listens((front, 1), front, os.getpid(), time.monotonic_ns())
    assert len(known._families) <= 65
    assert len(known._tables) <= 65


def test_ports_of_both_families_are_listed() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as two,
        socket.create_connection(one.getsockname()),
    ):
        found = sockets.listening(os.getpid())
        assert found[os.fstat(one.fileno()).st_ino] == one.getsockname()[1]
        assert found[os.fstat(two.fileno()).st_ino] == two.getsockname()[1]
    assert sockets.listening(4194305) == {}
