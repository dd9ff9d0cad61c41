"""TCP and Unix sockets of chosen network namespaces, read from /proc.

`/proc/TGID/net` shows the namespace of that process, so none has to be entered: no right to
change namespaces is needed, and no netlink. Asked once: later sockets the kernel side tells.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tracer.host import proc, reach

LISTENING = 10
_ESTABLISHED = 1
#: A process may have as many as it likes; of one table, rows.
_LISTENING_MAX = 1 << 16
_ACCEPTS = 0x10000  # __SO_ACCEPTCON in the flags of /proc/net/unix
_STREAM = "0001"


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


def namespaces(tgids: Iterable[int]) -> list[Namespace]:
    """Sockets of the namespaces these processes are in; a process that is gone is left out."""
    found: dict[int, Namespace] = {}
    for tgid in tgids:
        netns = proc.netns(tgid)
        if netns and netns not in found:
            with contextlib.suppress(OSError):
                found[netns] = _read(tgid, netns)
    return list(found.values())


def listening(tgid: int) -> dict[int, int]:
    """Port of each TCP socket that listens in its network namespace, by inode; so many at most."""
    whose = reach.speaker(tgid) or tgid
    found: dict[int, int] = {}
    for table in ("tcp", "tcp6"):
        # One that is gone, or a kernel without IPv6.
        with contextlib.suppress(OSError), open(f"/proc/{whose}/net/{table}", "rb") as file:
            for line in itertools.islice(file, 1, _LISTENING_MAX):
                fields = line.split(None, 10)
                if fields[3] != b"0A":  # those that listen come first
                    break
                found[int(fields[9])] = int(fields[1].rpartition(b":")[2], 16)
    return found


def _read(tgid: int, netns: int) -> Namespace:
    tcp = [*_tcp(tgid, "tcp")]
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        tcp += _tcp(tgid, "tcp6")
    return Namespace(netns=netns, tcp=tuple(tcp), unix=tuple(_unix(tgid)))


def _rows(tgid: int, table: str) -> list[list[str]]:
    whose = reach.speaker(tgid) or tgid
    text = Path(f"/proc/{whose}/net/{table}").read_bytes().decode("utf-8", "replace")
    return [line.split() for line in text.split("\n")[1:] if line]


def _tcp(tgid: int, table: str) -> Iterator[TcpSocket]:
    for fields in _rows(tgid, table):
        state = int(fields[3], 16)
        if state in (LISTENING, _ESTABLISHED):
            local_ip, local_port = _address(fields[1])
            remote_ip, remote_port = _address(fields[2])
            yield TcpSocket(
                inode=int(fields[9]),
                state=state,
                local_ip=local_ip,
                local_port=local_port,
                remote_ip=remote_ip,
                remote_port=remote_port,
            )


def _address(text: str) -> tuple[str, int]:
    """`0100007F:1F90`: words of the address in the machine's byte order, then the port."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    order = "<" if sys.byteorder == "little" else ">"
    packed = struct.pack(f"{order}{len(words)}I", *words)
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)


def _unix(tgid: int) -> Iterator[int]:
    for fields in _rows(tgid, "unix"):
        # A path with a newline in it continues on a line that is no socket.
        if len(fields) >= 7 and fields[0].endswith(":") and fields[4] == _STREAM:
            with contextlib.suppress(ValueError):
                if int(fields[3], 16) & _ACCEPTS:
                    yield int(fields[6])
