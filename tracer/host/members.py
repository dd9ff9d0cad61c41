"""Processes of servers, as they are known, and what is asked of the kernel side for them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from tracer.records import Server


class Watchable(Protocol):
    """What discovery asks of the kernel side; a process or file that is gone is ignored."""

    def watch(self, tgid: int) -> None: ...
    def unwatch(self, tgid: int) -> None: ...
    def track_file(self, dev: int, ino: int) -> None: ...
    def watch_port(self, netns: int, port: int) -> None: ...
    def drop_port(self, netns: int, port: int) -> None: ...
    def add_server_comm(self, comm: str) -> None: ...
    def set_server_ports(self, ports: Collection[int]) -> None: ...
    def holds(self, netns: int, port: int, tgid: int, parent: int | None) -> None: ...


class Member(msgspec.Struct, frozen=True):
    """A process of a server; `front` is the tgid at the top of its tree, the rest is its.

    `port`: the only one that clients use, where the configuration says so.
    """

    front: int
    name: str | None = None
    program: str = ""
    port: int | None = None


def name_of(member: Member, port: int) -> str:
    """As configured, or by what it is; `port` 0: a Unix socket."""
    return member.name or f"{member.program}:{port or 'unix'}"


def server_of(
    member: Member, ts_ns: int, netns: int, port: int, name: str, *, unix: bool = False
) -> Server:
    return Server(
        ts_ns=ts_ns,
        name=name,
        program=member.program,
        tgid=member.front,
        netns=netns,
        port=port,
        unreadable="unix_socket" if unix else None,
    )
