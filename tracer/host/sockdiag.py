"""TCP and Unix sockets of chosen network namespaces, through sock_diag.

Runs as a short-lived child (`python -m tracer.host.sockdiag FD...`, open namespaces), for pyroute2
costs 14 MB and is needed once: the daemon learns of later sockets from the kernel. Prints JSON.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from tracer.host import proc

_LISTEN = 10
_ESTABLISHED = 1
_CLONE_NEWNET = 0x40000000
_LOOK_S = 0.001
_PATIENCE_S = 10


class TcpSocket(msgspec.Struct, frozen=True):
    """`state` as the kernel numbers it: 1 established, 10 listening."""

    inode: int
    state: int
    local_ip: str
    local_port: int
    remote_ip: str
    remote_port: int


class Namespace(msgspec.Struct, frozen=True):
    """`netns`: its inode; `unix`: inodes of listening stream sockets."""

    netns: int
    tcp: tuple[TcpSocket, ...]
    unix: tuple[int, ...]
    error: str | None = None


def _enter(fd: int) -> None:
    if os.fstat(fd).st_ino == proc.netns(os.getpid()):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _dump(fd: int) -> Namespace:
    from pyroute2 import DiagSocket

    _enter(fd)
    states = 1 << _LISTEN | 1 << _ESTABLISHED
    tcp: list[TcpSocket] = []
    with DiagSocket() as diag:
        diag.bind()
        for family in (socket.AF_INET, socket.AF_INET6):
            tcp.extend(map(_tcp, diag.get_sock_stats(family=family, states=states)))
        unix = diag.get_sock_stats(family=socket.AF_UNIX, states=1 << _LISTEN)
        inodes = tuple(int(s["udiag_ino"]) for s in unix)
    return Namespace(netns=os.fstat(fd).st_ino, tcp=tuple(tcp), unix=inodes)


def _tcp(sock: Any) -> TcpSocket:
    return TcpSocket(
        inode=int(sock["idiag_inode"]),
        state=int(sock["idiag_state"]),
        local_ip=str(sock["idiag_src"]),
        local_port=int(sock["idiag_sport"]),
        remote_ip=str(sock["idiag_dst"]),
        remote_port=int(sock["idiag_dport"]),
    )


def _safely(fd: int) -> Namespace:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        return _dump(fd)
    except (OSError, NetlinkError, LookupError, ValueError) as error:
        return Namespace(
            netns=os.fstat(fd).st_ino, tcp=(), unix=(), error=f"{type(error).__name__}: {error}"
        )


def main() -> None:
    found = [_safely(int(arg)) for arg in sys.argv[1:]]
    sys.stdout.buffer.write(msgspec.json.encode(found))


class Query:
    """Sockets of the namespaces these processes are in, being asked for: a third of a second.

    A process that is gone is no failure; its namespace is held open, so that it cannot go
    meanwhile. `take()` until it answers.
    """

    def __init__(self, tgids: Iterable[int]) -> None:
        spaces: dict[int, int] = {}
        try:
            for tgid in tgids:
                _hold(tgid, spaces)
            self._child = _start(list(spaces.values())) if spaces else None
        finally:
            for fd in spaces.values():
                os.close(fd)
        self._deadline = time.monotonic() + _PATIENCE_S

    def take(self, timeout_s: float = 0) -> tuple[list[Namespace], bool] | None:
        """What was found, and whether it is all; None while it is not there yet."""
        if self._child is None:
            return [], True
        try:
            # With no time at all, communicate() gives up before it looks.
            out, _ = self._child.communicate(timeout=max(timeout_s, _LOOK_S))
            found = msgspec.json.decode(out, type=list[Namespace])
        except subprocess.TimeoutExpired:
            return None if time.monotonic() < self._deadline else self._failed()
        except msgspec.DecodeError:
            return self._failed()
        return found, not any(space.error for space in found)

    def _failed(self) -> tuple[list[Namespace], bool]:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
        return [], False


def _hold(tgid: int, spaces: dict[int, int]) -> None:
    try:
        fd = os.open(f"/proc/{tgid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    inode = os.fstat(fd).st_ino
    if spaces.setdefault(inode, fd) != fd:
        os.close(fd)


def _start(fds: list[int]) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "tracer.host.sockdiag", *map(str, fds)]
    return subprocess.Popen(  # noqa: S603 - our own interpreter, numbers only
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=fds,
    )


if __name__ == "__main__":
    main()
