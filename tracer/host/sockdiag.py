"""TCP and Unix sockets of chosen network namespaces, through sock_diag.

Runs as a short-lived child (`python -m tracer.host.sockdiag TGID...`), for pyroute2 costs 14 MB
and is needed once: the daemon learns of later sockets from the kernel. Prints JSON.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import msgspec

from tracer.host import proc

_LISTEN = 10
_ESTABLISHED = 1


class TcpSocket(msgspec.Struct, frozen=True):
    """`state` as the kernel numbers it: 1 established, 10 listening."""

    inode: int
    state: int
    local_ip: str
    local_port: int
    remote_ip: str
    remote_port: int


class Namespace(msgspec.Struct, frozen=True):
    """`tgid`: the process asked for; `unix`: inodes of listening stream sockets."""

    tgid: int
    tcp: tuple[TcpSocket, ...]
    unix: tuple[int, ...]
    error: str | None = None


def _dump(tgid: int) -> Namespace:
    from pyroute2 import DiagSocket
    from pyroute2.netns import setns

    if proc.netns(tgid) != proc.netns(os.getpid()):
        setns(f"/proc/{tgid}/ns/net")
    states = 1 << _LISTEN | 1 << _ESTABLISHED
    tcp: list[TcpSocket] = []
    with DiagSocket() as diag:
        diag.bind()
        for family in (socket.AF_INET, socket.AF_INET6):
            tcp.extend(map(_tcp, diag.get_sock_stats(family=family, states=states)))
        unix = diag.get_sock_stats(family=socket.AF_UNIX, states=1 << _LISTEN)
        inodes = tuple(int(s["udiag_ino"]) for s in unix)
    return Namespace(tgid=tgid, tcp=tuple(tcp), unix=inodes)


def _tcp(sock: Any) -> TcpSocket:
    return TcpSocket(
        inode=int(sock["idiag_inode"]),
        state=int(sock["idiag_state"]),
        local_ip=str(sock["idiag_src"]),
        local_port=int(sock["idiag_sport"]),
        remote_ip=str(sock["idiag_dst"]),
        remote_port=int(sock["idiag_dport"]),
    )


def _safely(tgid: int) -> Namespace:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        return _dump(tgid)
    except (OSError, NetlinkError, LookupError, ValueError) as error:
        return Namespace(tgid=tgid, tcp=(), unix=(), error=f"{type(error).__name__}: {error}")


def main() -> None:
    found = [_safely(int(arg)) for arg in sys.argv[1:]]
    sys.stdout.buffer.write(msgspec.json.encode(found))


class Query:
    """A running look-up; `result()` waits for it (at most 10 s)."""

    def __init__(self, tgids: list[int]) -> None:
        argv = [sys.executable, "-m", "tracer.host.sockdiag", *map(str, tgids)]
        self._child = subprocess.Popen(  # noqa: S603 - our own interpreter, numbers only
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def result(self) -> list[Namespace]:
        """Empty when the child failed or took too long: sockets are then found as they move."""
        try:
            out, _ = self._child.communicate(timeout=10)
            return msgspec.json.decode(out, type=list[Namespace])
        except (subprocess.TimeoutExpired, msgspec.DecodeError):
            self._child.kill()
            self._child.wait()
            return []


if __name__ == "__main__":
    main()
