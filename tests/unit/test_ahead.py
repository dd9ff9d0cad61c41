"""Ports and cgroups of servers are watched as soon as their records are out of the ring."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest

from tests.unit.test_discovery import Noted
from tests.unit.test_wire import V4, conn
from tracer.ahead import Ahead
from tracer.errors import KernelError
from tracer.host.discovery import Discovery
from tracer.host.recognise import Rule
from tracer.kernel import layouts
from tracer.records import Listen

NETNS, PORT = 4026531840, 8080
LISTEN, EXEC = 10, 2
CLOSED, UNSEEN = 1, 2


def listens(
    tgid: int,
    port: int = PORT,
    *,
    flags: int = 0,
    kind: int = LISTEN,
    cgroup: int = 0,
    ts_ns: int = 1,
) -> bytes:
    server, client, netns, _, client_port, family = conn(V4, 4)
    where = (server, client, netns, port, client_port, family)
    return layouts.LISTEN.packer.pack(ts_ns, tgid, tgid, kind, 0, flags, *where, 0, cgroup)


@dataclass
class Places:
    """Notes whose cgroups are to be seen."""

    processes: list[int] = field(default_factory=list)
    sockets: list[tuple[tuple[int, int], int, int | None]] = field(default_factory=list)

    def process(self, tgid: int) -> None:
        self.processes.append(tgid)

    def socket(self, port: tuple[int, int], inode: int, tgid: int | None = None) -> None:
        self.sockets.append((port, inode, tgid))


def test_a_server_known_by_its_port_is_watched_at_once_and_told_later() -> None:
    kernel, places = Noted(), Places()
    discovery = Discovery(kernel, [Rule(name="by port", port=PORT)])
    me = os.getpid()
    connects = listens(me, PORT + 1, kind=LISTEN + 1)
    ahead = Ahead(kernel, discovery.serves, places)
    ahead.hear([connects, listens(me), b"", b"\x0a" * 30])
    assert kernel.ports == {(NETNS, PORT)}
    assert kernel.watched == set()
    assert places == Places(processes=[me])
    assert discovery.translate(Listen(ts_ns=1, tgid=me, netns=NETNS, port=PORT))
    assert kernel.watched == {me}


@pytest.mark.parametrize(
    "data", [listens(os.getpid(), 8081, cgroup=77), listens(os.getpid(), flags=CLOSED, cgroup=77)]
)
def test_a_stranger_is_not_and_a_port_that_closes_is_not(data: bytes) -> None:
    kernel, places = Noted(), Places()
    discovery = Discovery(kernel, [Rule(name="by port", port=PORT)])
    Ahead(kernel, discovery.serves, places).hear([data])
    assert kernel.ports == set()
    assert places == Places()


def test_cgroups_of_sockets_that_listen_and_of_connections_that_nobody_named() -> None:
    places = Places()
    ahead = Ahead(Noted(), lambda listen: listen.tgid == 5, places)
    unseen = listens(0, flags=UNSEEN, cgroup=78)
    ahead.hear([listens(5, cgroup=77), listens(6, cgroup=79), unseen])
    assert places == Places(sockets=[((NETNS, PORT), 77, 5), ((NETNS, PORT), 78, None)])


def test_the_cgroup_of_a_program_that_starts() -> None:
    places = Places()
    started = layouts.EXEC.packer.pack(1, 41, 42, EXEC, 0, 0, b"llama-server", b"")
    Ahead(Noted(), lambda _: False, places).hear([started])
    assert places == Places(processes=[41])


def test_a_kernel_that_has_no_room_ends_nothing() -> None:
    class Full:
        def watch_port(self, netns: int, port: int) -> None:
            raise KernelError("no room")

        def drop_port(self, netns: int, port: int) -> None:
            raise KernelError("no right")

    Ahead(Full(), lambda _: True, Places()).hear([listens(1)])


def test_ports_that_close_at_once_take_no_room() -> None:
    """The kernel side's table has little; who opens and closes all the time could fill it."""
    kernel, places = Noted(), Places()
    ahead = Ahead(kernel, lambda _: True, places)
    often = [
        listens(5, port, flags=flags, ts_ns=2 * port + flags)
        for port in range(1000, 3000)
        for flags in (0, CLOSED)
    ]
    ahead.hear([*often, listens(5, ts_ns=9)])
    assert kernel.ports == {(NETNS, PORT)}
    ahead.hear([listens(5, 1000, ts_ns=9000)])
    assert kernel.ports == {(NETNS, PORT), (NETNS, 1000)}
    ahead.hear([listens(5, 1000, flags=CLOSED, ts_ns=9001)])
    assert kernel.ports == {(NETNS, PORT)}
    ahead.hear([listens(5, flags=CLOSED, ts_ns=9002), listens(5, ts_ns=9003)])
    assert kernel.ports == {(NETNS, PORT)}, "opened again since"
