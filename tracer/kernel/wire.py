"""Bytes of the rings to records. Bytes are not trusted: anything odd is a RecordError."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import lru_cache
from typing import Any, get_args

import msgspec

from tracer.errors import RecordError
from tracer.kernel import layouts
from tracer.kernel.layouts import Layout
from tracer.records import (
    Conn,
    Connect,
    DeviceWhat,
    Exit,
    Fork,
    Insert,
    Listen,
    Op,
    Open,
    Signal,
    Span,
    Take,
    Unlisten,
)

OPS: dict[int, Op] = {
    1: "read", 2: "read_direct", 3: "mmap", 4: "madvise", 5: "munmap", 6: "fault_minor",
    7: "fault_major",
}  # fmt: skip
DEVICE_WHATS: tuple[DeviceWhat, ...] = get_args(DeviceWhat)
DEVICE_FIRST, DEVICE_UNKNOWN = 2, 4
SPAN_POPULATE = 1
PACKET_EGRESS = 1
LISTEN_CLOSED = 1
LISTEN_UNSEEN = 2
_MADVISE = 4
#: A stem is a hash: fewer bits of it do, and are a number for every reader of JSON.
_SPARE_BITS = 12
O_CREAT = 0o100  # the same on both architectures


class RawExec(msgspec.Struct, frozen=True, kw_only=True):
    """A program was started in a watched process; user space adds what /proc says."""

    ts_ns: int
    tgid: int
    comm: str
    filename: str


class RawFile(msgspec.Struct, frozen=True, kw_only=True):
    """First sight of a large file. `name` as given to open(), maybe relative, '' unknown.

    `fd` -1: it was mapped before it was seen.
    """

    ts_ns: int
    tgid: int
    dev: int
    ino: int
    size: int
    fd: int
    name: str


class RawMagic(msgspec.Struct, frozen=True, kw_only=True):
    """First bytes of a file, 4 to 16 of them, as the process saw them."""

    ts_ns: int
    tgid: int
    dev: int
    ino: int
    data: bytes


class RawLinked(msgspec.Struct, frozen=True, kw_only=True):
    """The dynamic loader of a watched process mapped libraries, or is about to."""

    ts_ns: int
    tgid: int


class RawCall(msgspec.Struct, frozen=True, kw_only=True):
    """A run of calls. `call`: row of the catalogue that the probes were attached with."""

    ts_ns: int
    end_ns: int
    tgid: int
    tid: int
    call: int
    count: int
    amount: int
    follow_ns: int
    last_ns: int


class RawCached(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a compile cache was about to be opened. `folder`: number of the folder."""

    ts_ns: int
    tgid: int
    tid: int
    stem: int
    folder: int
    write: bool


class RawDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A run of driver calls. `rdev`: kernel's number of the device. `driver`: as numbered by
    user space. `unknown`: not told to the kernel; `driver` 0 then."""

    ts_ns: int
    end_ns: int
    tgid: int
    tid: int
    rdev: int
    driver: int
    what: DeviceWhat
    count: int
    failed: int
    bytes: int
    busy_ns: int
    number: int
    first: bool = False
    unknown: bool = False


class RawUnseen(msgspec.Struct, frozen=True, kw_only=True):
    """A connection of a watched port belongs to a cgroup that the kernel side was not told of.

    `cgroup`: inode of its folder.
    """

    ts_ns: int
    netns: int
    port: int
    cgroup: int


class RawPacket(msgspec.Struct, frozen=True, kw_only=True):
    """A TCP segment of a watched port. `payload` may be shorter than `payload_len` bytes."""

    ts_ns: int
    conn: Conn
    egress: bool
    seq: int
    ack: int
    payload_len: int
    payload: bytes
    tcp_flags: int


Raw = (
    Fork
    | Exit
    | Signal
    | Open
    | Span
    | Insert
    | Listen
    | Unlisten
    | Connect
    | Take
    | RawExec
    | RawFile
    | RawMagic
    | RawLinked
    | RawCall
    | RawCached
    | RawDevice
    | RawUnseen
    | RawPacket
)


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


@lru_cache(maxsize=4096)
def _conn(raw: bytes) -> Conn:
    server, client, netns, server_port, client_port, family = layouts.CONN.packer.unpack(raw)
    if family == 4:
        ips = (socket.inet_ntop(socket.AF_INET, a[:4]) for a in (server, client))
    elif family == 6:
        ips = (socket.inet_ntop(socket.AF_INET6, a) for a in (server, client))
    else:
        raise RecordError(f"record with address family {family}")
    server_ip, client_ip = ips
    return Conn(netns, server_ip, server_port, client_ip, client_port)


def _conn_of(data: bytes) -> Conn:
    start = layouts.HEADER.size
    return _conn(data[start : start + layouts.CONN.size])


def _fork(data: bytes) -> Fork:
    ts, tgid, _, _, _, _, child, _, comm = layouts.FORK.packer.unpack(data)
    return Fork(ts_ns=ts, parent=tgid, child=child, comm=_text(comm))


def _exec(data: bytes) -> RawExec:
    ts, tgid, _, _, _, _, comm, filename = layouts.EXEC.packer.unpack(data)
    return RawExec(ts_ns=ts, tgid=tgid, comm=_text(comm), filename=_text(filename))


def _exit(data: bytes) -> Exit:
    ts, tgid, _, _, _, _, code, _ = layouts.EXIT.packer.unpack(data)
    if code & 0x7F:
        return Exit(ts_ns=ts, tgid=tgid, signal=code & 0x7F)
    return Exit(ts_ns=ts, tgid=tgid, code=code >> 8 & 0xFF)


def _signal(data: bytes) -> Signal:
    ts, tgid, _, _, _, _, target, signal, code, _ = layouts.SIGNAL.packer.unpack(data)
    return Signal(ts_ns=ts, target=target, signal=signal, sender=None if code > 0 else tgid)


def _file(data: bytes) -> RawFile:
    ts, tgid, _, _, _, _, ino, dev, _, size, fd, _, name = layouts.FILE.packer.unpack(data)
    return RawFile(ts_ns=ts, tgid=tgid, dev=dev, ino=ino, size=size, fd=fd, name=_text(name))


def _open(data: bytes) -> Open:
    ts, tgid, tid, _, _, _, ino, dev, token, _, _, _ = layouts.OPEN.packer.unpack(data)
    return Open(ts_ns=ts, tgid=tgid, tid=tid, dev=dev, ino=ino, token=token)


def _magic(data: bytes) -> RawMagic:
    ts, tgid, _, _, _, length, ino, dev, _, first = layouts.MAGIC.packer.unpack(data)
    if not 1 <= length <= len(first):
        raise RecordError(f"record of {length} first bytes")
    return RawMagic(ts_ns=ts, tgid=tgid, dev=dev, ino=ino, data=first[:length])


def span(
    *, start: int, end: int, busy: int, size: int, count: int, tgid: int, tid: int, dev: int,
    ino: int, token: int, op: int, flags: int,
) -> Span:  # fmt: skip
    """A span out of its numbers, checked."""
    if op not in OPS:
        raise RecordError(f"span of unknown kind {op}")
    if end < start:
        raise RecordError("span that ends before it begins")
    return Span(
        ts_ns=start, end_ns=end, tgid=tgid, tid=tid, dev=dev, ino=ino, token=token, op=OPS[op],
        count=count, bytes=size, busy_ns=min(busy, end - start),
        populate=bool(flags & SPAN_POPULATE),
        advice=flags >> 8 & 0xFF if op == _MADVISE else None,
    )  # fmt: skip


def _span(data: bytes) -> Span:
    values = layouts.SPAN.packer.unpack(data)
    ts, tgid, tid, _, _, flags, ino, dev, token, end, busy, size, count, op = values
    return span(
        start=ts, end=end, busy=busy, size=size, count=count, tgid=tgid, tid=tid, dev=dev,
        ino=ino, token=token, op=op, flags=flags,
    )  # fmt: skip


def _insert(data: bytes) -> Insert:
    ts, tgid, _, _, _, _, ino, dev, _, end, pages = layouts.INSERT.packer.unpack(data)
    return Insert(ts_ns=ts, end_ns=max(end, ts), dev=dev, ino=ino, pages=pages, tgid=tgid)


def _listen(data: bytes) -> Listen | Unlisten | RawUnseen:
    ts, tgid, _, _, _, flags = layouts.HEADER.packer.unpack_from(data)
    conn, cgroup = _conn_of(data), int.from_bytes(data[-8:], "little")
    if flags & LISTEN_UNSEEN:
        return RawUnseen(ts_ns=ts, netns=conn.netns, port=conn.server_port, cgroup=cgroup)
    if flags & LISTEN_CLOSED:
        return Unlisten(ts_ns=ts, netns=conn.netns, port=conn.server_port)
    return Listen(
        ts_ns=ts, tgid=tgid, netns=conn.netns, port=conn.server_port, cgroup=cgroup or None
    )


def _connect(data: bytes) -> Connect:
    ts, tgid, tid, _, _, _ = layouts.HEADER.packer.unpack_from(data)
    return Connect(ts_ns=ts, tgid=tgid, tid=tid, conn=_conn_of(data))


def _take(data: bytes) -> Take:
    ts, tgid, tid, _, _, _ = layouts.HEADER.packer.unpack_from(data)
    return Take(ts_ns=ts, tgid=tgid, tid=tid, conn=_conn_of(data))


def _linked(data: bytes) -> RawLinked:
    ts, tgid, *_ = layouts.LINKED.packer.unpack(data)
    return RawLinked(ts_ns=ts, tgid=tgid)


def _call(data: bytes) -> RawCall:
    ts, tgid, tid, _, _, _, end, follow, last, amount, count, call = layouts.CALL.packer.unpack(
        data
    )
    return RawCall(
        ts_ns=ts, end_ns=max(end, ts), tgid=tgid, tid=tid, call=call, count=count, amount=amount,
        follow_ns=follow, last_ns=last,
    )  # fmt: skip


def _cached(data: bytes) -> RawCached:
    ts, tgid, tid, _, _, _, stem, folder, flags = layouts.CACHED.packer.unpack(data)
    return RawCached(
        ts_ns=ts,
        tgid=tgid,
        tid=tid,
        stem=stem >> _SPARE_BITS,
        folder=folder,
        write=bool(flags & O_CREAT),
    )


def device(
    *, start: int, end: int, busy: int, size: int, tgid: int, tid: int, rdev: int, driver: int,
    count: int, failed: int, what: int, number: int, flags: int = 0,
) -> RawDevice:  # fmt: skip
    """A run of driver calls out of its numbers, checked."""
    if what >= len(DEVICE_WHATS):
        raise RecordError(f"driver call of unknown class {what}")
    if end < start:
        raise RecordError("driver call that ends before it begins")
    return RawDevice(
        ts_ns=start, end_ns=end, tgid=tgid, tid=tid, rdev=rdev, driver=driver,
        what=DEVICE_WHATS[what], count=count, failed=min(failed, count), bytes=size,
        busy_ns=min(busy, end - start), number=number, first=bool(flags & DEVICE_FIRST),
        unknown=bool(flags & DEVICE_UNKNOWN),
    )  # fmt: skip


def _device(data: bytes) -> RawDevice:
    values = layouts.DEVICE.packer.unpack(data)
    ts, tgid, tid, _, _, flags, end, busy, size, rdev, driver, count, failed, what, number = values
    return device(
        start=ts, end=end, busy=busy, size=size, tgid=tgid, tid=tid, rdev=rdev, driver=driver,
        count=count, failed=failed, what=what, number=number, flags=flags,
    )  # fmt: skip


_PACKET_TAIL = layouts.HEADER.size + layouts.CONN.size


def _packet(data: bytes) -> RawPacket:
    ts, _, _, _, _, flags = layouts.HEADER.packer.unpack_from(data)
    seq, ack, length, captured, tcp_flags = _TAIL.unpack_from(data, _PACKET_TAIL)
    payload = data[layouts.PACKET.size : layouts.PACKET.size + captured]
    if captured > length or len(payload) != captured:
        raise RecordError(f"packet of {length} bytes, {captured} captured, {len(payload)} there")
    return RawPacket(
        ts_ns=ts, conn=_conn_of(data), egress=bool(flags & PACKET_EGRESS), seq=seq, ack=ack,
        payload_len=length, payload=payload, tcp_flags=tcp_flags,
    )  # fmt: skip


_TAIL = Layout("tail", "seq:I ack:I payload_len:I captured:I tcp_flags:I").packer
_DECODERS: dict[int, tuple[Layout, Callable[[bytes], Raw]]] = {
    1: (layouts.FORK, _fork),
    2: (layouts.EXEC, _exec),
    3: (layouts.EXIT, _exit),
    4: (layouts.SIGNAL, _signal),
    5: (layouts.FILE, _file),
    6: (layouts.OPEN, _open),
    7: (layouts.MAGIC, _magic),
    8: (layouts.SPAN, _span),
    9: (layouts.INSERT, _insert),
    10: (layouts.LISTEN, _listen),
    11: (layouts.CONNECT, _connect),
    12: (layouts.TAKE, _take),
    13: (layouts.PACKET, _packet),
    14: (layouts.LINKED, _linked),
    15: (layouts.CALL, _call),
    16: (layouts.CACHED, _cached),
    17: (layouts.DEVICE, _device),
}
_PACKET = 13


def decode(data: bytes) -> Raw:
    """One record of a ring."""
    if len(data) < layouts.HEADER.size:
        raise RecordError(f"record of {len(data)} bytes")
    kind: Any = layouts.HEADER.packer.unpack_from(data)[3]
    if kind not in _DECODERS:
        raise RecordError(f"record of unknown kind {kind}")
    layout, decoder = _DECODERS[kind]
    if len(data) != layout.size and (kind != _PACKET or len(data) < layout.size):
        raise RecordError(f"{layout.name} of {len(data)} bytes, not {layout.size}")
    return decoder(data)
