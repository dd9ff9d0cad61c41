"""What `status` says of servers, as records come."""

from __future__ import annotations

from tracer.overview import Overview
from tracer.records import (
    AnyRecord,
    Conn,
    Exit,
    HttpRequest,
    HttpUnreadable,
    Listen,
    Server,
    Unlisten,
)

NETNS, FRONT = 4026531840, 100


def up(port: int, tgid: int = FRONT) -> list[AnyRecord]:
    return [
        Listen(ts_ns=1, tgid=tgid, netns=NETNS, port=port),
        Server(ts_ns=1, name=f"x:{port}", program="x", tgid=tgid, netns=NETNS, port=port),
    ]


def down(port: int) -> list[AnyRecord]:
    return [Unlisten(ts_ns=2, netns=NETNS, port=port)]


def ports(*parts: list[AnyRecord]) -> list[int]:
    overview = Overview({})
    for part in parts:
        overview.records(part)
    return [server.port for server in overview.servers()]


def test_a_server_that_moves_its_port_is_shown_once() -> None:
    assert ports(up(8080), down(8080), up(8081)) == [8081]
    assert ports(up(8080), up(8081), down(8080)) == [8081]


def test_a_server_stays_while_any_of_its_sockets_listens() -> None:
    """IPv4 and IPv6 apart, or workers that share the port."""
    assert ports(up(8080), up(8080), down(8080)) == [8080]
    assert ports(up(8080), up(8080), down(8080), down(8080)) == []


def test_a_server_that_ended_is_gone_and_its_port_counts_anew() -> None:
    gone: list[AnyRecord] = [Exit(ts_ns=2, tgid=FRONT, code=0)]
    assert ports(up(8080), gone) == []
    assert ports(up(8080), gone, up(8080, 101), down(8080)) == []
    assert ports(up(8080), gone, down(8080), up(8080, 101)) == [8080]


def test_one_stray_connection_does_not_make_a_server_unreadable_for_good() -> None:
    conn = Conn(NETNS, "::1", 8080, "::1", 5)
    tls = HttpUnreadable(ts_ns=3, conn=conn, why="tls")
    old = HttpUnreadable(ts_ns=3, conn=conn, why="old_connection")
    request = HttpRequest(ts_ns=4, xid=1, conn=conn, method="GET", endpoint=None)
    overview = Overview({})
    overview.records([*up(8080), old])
    assert [server.unreadable for server in overview.servers()] == [None]
    overview.records([tls])
    assert [server.unreadable for server in overview.servers()] == ["tls"]
    overview.records([request])
    assert [server.unreadable for server in overview.servers()] == [None]
