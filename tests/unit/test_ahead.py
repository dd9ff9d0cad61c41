"""Ports of servers are watched as soon as their records are out of the ring."""

from __future__ import annotations

import os

import pytest

from tests.unit.test_discovery import Noted
from tests.unit.test_wire import V4, conn
from tracer.ahead import Ahead
from tracer.errors import KernelError
from tracer.host.discovery import Discovery, Rule
from tracer.kernel import layouts
from tracer.records import Listen

NETNS, PORT = 4026531840, 8080
LISTEN = 10


def listens(tgid: int, port: int = PORT, *, closed: bool = False, kind: int = LISTEN) -> bytes:
    server, client, netns, _, client_port, family = conn(V4, 4)
    where = (server, client, netns, port, client_port, family)
    return layouts.LISTEN.packer.pack(1, tgid, tgid, kind, 0, int(closed), *where, 0, 0)


def test_a_server_known_by_its_port_is_watched_at_once_and_told_later() -> None:
    kernel = Noted()
    discovery = Discovery(kernel, [Rule(name="by port", port=PORT)])
    me = os.getpid()
    connects = listens(me, PORT + 1, kind=LISTEN + 1)
    Ahead(kernel, discovery.serves).hear([connects, listens(me), b"", b"\x0a" * 30])
    assert kernel.ports == {(NETNS, PORT)}
    assert kernel.watched == set()
    assert discovery.translate(Listen(ts_ns=1, tgid=me, netns=NETNS, port=PORT))
    assert kernel.watched == {me}


@pytest.mark.parametrize("data", [listens(os.getpid(), 8081), listens(os.getpid(), closed=True)])
def test_a_stranger_is_not_and_a_port_that_closes_is_not(data: bytes) -> None:
    kernel = Noted()
    discovery = Discovery(kernel, [Rule(name="by port", port=PORT)])
    Ahead(kernel, discovery.serves).hear([data])
    assert kernel.ports == set()


def test_a_kernel_that_has_no_room_ends_nothing() -> None:
    class Full:
        def watch_port(self, netns: int, port: int) -> None:
            raise KernelError("no room")

    Ahead(Full(), lambda _: True).hear([listens(1)])
