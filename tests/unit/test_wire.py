"""Bytes to records: each kind whole, and anything odd refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracer.errors import RecordError
from tracer.kernel import layouts
from tracer.kernel.layouts import Layout
from tracer.kernel.sweep import provisional
from tracer.kernel.wire import (
    OPS,
    Raw,
    RawCached,
    RawCall,
    RawDevice,
    RawExec,
    RawFile,
    RawLinked,
    RawMagic,
    RawPacket,
    RawUnseen,
    decode,
)
from tracer.records import (
    Conn,
    Connect,
    Exit,
    Fork,
    Insert,
    Listen,
    Open,
    Signal,
    Span,
    Take,
    Unlisten,
)

HEAD = (7_000, 11, 12)
FILE = (99, 254 << 20 | 3, 5)
V4 = (bytes([127, 0, 0, 1]).ljust(16, b"\0"), bytes([10, 0, 0, 2]).ljust(16, b"\0"))
V6 = (b"\0" * 15 + b"\1", bytes.fromhex("20010db8000000000000000000000001"))


def pack(layout: Layout, kind: int, *rest: int | bytes, flags: int = 0) -> bytes:
    return layout.packer.pack(*HEAD, kind, 0, flags, *rest)


def conn(ips: tuple[bytes, bytes], family: int) -> tuple[int | bytes, ...]:
    return (*ips, 4026531840, 8080, 50123, family)


CONN4 = Conn(4026531840, "127.0.0.1", 8080, "10.0.0.2", 50123)
CONN6 = Conn(4026531840, "::1", 8080, "2001:db8::1", 50123)
PACKET = pack(layouts.PACKET, 13, *conn(V4, 4), 100, 200, 9, 4, 24, flags=3) + b"POST"

CASES: list[tuple[bytes, Raw]] = [
    (
        pack(layouts.FORK, 1, 77, 0, b"ollama\0junk"),
        Fork(ts_ns=7_000, parent=11, child=77, comm="ollama"),
    ),
    (
        pack(layouts.EXEC, 2, b"sh", b"/bin/sh\0left over"),
        RawExec(ts_ns=7_000, tgid=11, comm="sh", filename="/bin/sh"),
    ),
    (pack(layouts.EXIT, 3, 3 << 8, 0), Exit(ts_ns=7_000, tgid=11, code=3)),
    (pack(layouts.EXIT, 3, 0, 0), Exit(ts_ns=7_000, tgid=11, code=0)),
    (pack(layouts.EXIT, 3, 11 | 0x80, 0), Exit(ts_ns=7_000, tgid=11, signal=11)),
    (
        pack(layouts.SIGNAL, 4, 77, 15, 0, 0),
        Signal(ts_ns=7_000, target=77, signal=15, sender=11),
    ),
    (pack(layouts.SIGNAL, 4, 77, 9, 0x80, 0), Signal(ts_ns=7_000, target=77, signal=9)),
    (
        pack(layouts.FILE, 5, *FILE, 1 << 30, 8, 0, "models/ü.gguf\0".encode()),
        RawFile(
            ts_ns=7_000, tgid=11, dev=FILE[1], ino=99, size=1 << 30, fd=8, name="models/ü.gguf"
        ),
    ),
    (
        pack(layouts.FILE, 5, *FILE, 1 << 20, -1, 0, b"\xff" * 256),
        RawFile(
            ts_ns=7_000, tgid=11, dev=FILE[1], ino=99, size=1 << 20, fd=-1, name="\ufffd" * 256
        ),
    ),
    (
        pack(layouts.OPEN, 6, *FILE, 1 << 30, 0, 0),
        Open(ts_ns=7_000, tgid=11, tid=12, dev=FILE[1], ino=99, token=5),
    ),
    (
        pack(layouts.MAGIC, 7, *FILE, b"GGUF\3", flags=16),
        RawMagic(ts_ns=7_000, tgid=11, dev=FILE[1], ino=99, data=b"GGUF\3".ljust(16, b"\0")),
    ),
    (
        pack(layouts.MAGIC, 7, *FILE, b"GGUF", flags=4),
        RawMagic(ts_ns=7_000, tgid=11, dev=FILE[1], ino=99, data=b"GGUF"),
    ),
    (
        pack(layouts.SPAN, 8, *FILE, 9_000, 1_500, 8_192, 2, 1),
        Span(
            ts_ns=7_000, end_ns=9_000, tgid=11, tid=12, dev=FILE[1], ino=99, token=5, op="read",
            count=2, bytes=8_192, busy_ns=1_500,
        ),
    ),
    (
        pack(layouts.SPAN, 8, *FILE, 9_000, 2_000, 4_096, 1, 3, flags=1),
        Span(
            ts_ns=7_000, end_ns=9_000, tgid=11, tid=12, dev=FILE[1], ino=99, token=5, op="mmap",
            count=1, bytes=4_096, busy_ns=2_000, populate=True,
        ),
    ),
    (
        pack(layouts.SPAN, 8, *FILE, 9_000, 9_999, 4_096, 1, 4, flags=3 << 8),
        Span(
            ts_ns=7_000, end_ns=9_000, tgid=11, tid=12, dev=FILE[1], ino=99, token=5,
            op="madvise", count=1, bytes=4_096, busy_ns=2_000, advice=3,
        ),
    ),
    (
        pack(layouts.INSERT, 9, *FILE[:2], 0, 9_000, 768),
        Insert(ts_ns=7_000, end_ns=9_000, dev=FILE[1], ino=99, pages=768, tgid=11),
    ),
    (
        pack(layouts.LISTEN, 10, *conn(V4, 4), 0, 77),
        Listen(ts_ns=7_000, tgid=11, netns=4026531840, port=8080, cgroup=77),
    ),
    (
        pack(layouts.LISTEN, 10, *conn(V4, 4), 0, 0),
        Listen(ts_ns=7_000, tgid=11, netns=4026531840, port=8080),
    ),
    (
        pack(layouts.LISTEN, 10, *conn(V4, 4), 0, 78, flags=2),
        RawUnseen(ts_ns=7_000, netns=4026531840, port=8080, cgroup=78),
    ),
    (
        pack(layouts.LISTEN, 10, *conn(V6, 6), 0, 0, flags=1),
        Unlisten(ts_ns=7_000, netns=4026531840, port=8080),
    ),
    (
        pack(layouts.CONNECT, 11, *conn(V6, 6), 0),
        Connect(ts_ns=7_000, tgid=11, tid=12, conn=CONN6),
    ),
    (pack(layouts.TAKE, 12, *conn(V4, 4), 0), Take(ts_ns=7_000, tgid=11, tid=12, conn=CONN4)),
    (
        PACKET,
        RawPacket(
            ts_ns=7_000, conn=CONN4, egress=True, seq=100, ack=200, payload_len=9,
            payload=b"POST", tcp_flags=24,
        ),
    ),
    (pack(layouts.LINKED, 14), RawLinked(ts_ns=7_000, tgid=11)),
    (
        pack(layouts.CACHED, 16, 1 << 63, 3, 0o2000101),
        RawCached(ts_ns=7_000, tgid=11, tid=12, stem=1 << 51, folder=3, write=True),
    ),
    (
        pack(layouts.CALL, 15, 9_000, 2_500, 500, 4096, 3, 17),
        RawCall(
            ts_ns=7_000, end_ns=9_000, tgid=11, tid=12, call=17, count=3, amount=4096,
            follow_ns=2_500, last_ns=500,
        ),
    ),
    (
        pack(layouts.DEVICE, 17, 9_000, 1_500, 4096, 195 << 20, 1, 5, 2, 3, 0x2B, flags=2),
        RawDevice(
            ts_ns=7_000, end_ns=9_000, tgid=11, tid=12, rdev=195 << 20, driver=1, what="allocate",
            count=5, failed=2, bytes=4096, busy_ns=1_500, number=0x2B, first=True,
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("data", "record"), CASES)
def test_decode(data: bytes, record: Raw) -> None:
    assert decode(data) == record


def test_every_kind_has_a_case() -> None:
    assert {layouts.HEADER.unpack(data)[3] for data, _ in CASES} == set(layouts.KINDS)


@pytest.mark.parametrize(("data", "record"), CASES)
def test_cut_anywhere(data: bytes, record: Raw) -> None:
    for length in range(len(data)):
        with pytest.raises(RecordError):
            decode(data[:length])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "record of 0 bytes"),
        (pack(layouts.EXIT, 0, 0, 0), "unknown kind 0"),
        (pack(layouts.EXIT, 31, 0, 0), "unknown kind 31"),
        (pack(layouts.EXIT, 3, 0, 0) + b"\0", "ttft_exit of 33 bytes, not 32"),
        (pack(layouts.MAGIC, 7, *FILE, b"", flags=17), "17 first bytes"),
        (pack(layouts.MAGIC, 7, *FILE, b"", flags=0), "0 first bytes"),
        (pack(layouts.SPAN, 8, *FILE, 9_000, 0, 0, 1, 0), "unknown kind 0"),
        (pack(layouts.SPAN, 8, *FILE, 9_000, 0, 0, 1, 8), "unknown kind 8"),
        (pack(layouts.SPAN, 8, *FILE, 6_999, 0, 0, 1, 1), "ends before it begins"),
        (pack(layouts.DEVICE, 17, 9_000, 0, 0, 1, 1, 1, 0, 13, 0), "unknown class 13"),
        (pack(layouts.DEVICE, 17, 6_999, 0, 0, 1, 1, 1, 0, 1, 0), "ends before it begins"),
        (pack(layouts.TAKE, 12, *conn(V4, 5), 0), "address family 5"),
        (pack(layouts.PACKET, 13, *conn(V4, 4), 1, 1, 3, 4, 0) + b"POST", "3 bytes, 4 captured"),
    ],
)
def test_refused(data: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        decode(data)


def test_packet_with_padding() -> None:
    """A ring may round the length of a record up."""
    assert decode(PACKET + b"pad") == decode(PACKET)


@given(st.binary(max_size=400))
@example(PACKET)
def test_hostile_bytes(data: bytes) -> None:
    """Any bytes are a record or a RecordError."""
    _decode_or_refuse(data)


@given(st.sampled_from(sorted(layouts.KINDS)), st.binary(min_size=400, max_size=400))
def test_hostile_records(kind: int, noise: bytes) -> None:
    """The same for records of the right length, full of noise."""
    name = f"ttft_{layouts.KINDS[kind]}"
    (layout,) = (each for each in layouts.RECORDS if each.name == name)
    data = noise[:16] + struct.pack("<H", kind) + noise[18 : layout.size]
    _decode_or_refuse(data)


def _decode_or_refuse(data: bytes) -> None:
    try:
        record = decode(data)
    except RecordError:
        return
    assert record.ts_ns == struct.unpack_from("<Q", data)[0]
    if isinstance(record, Span):
        assert 0 <= record.busy_ns <= record.end_ns - record.ts_ns
    if isinstance(record, Insert):
        assert record.end_ns >= record.ts_ns


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1),
    st.integers(0, 9), st.integers(0, 3), st.booleans(),
)  # fmt: skip
def test_open_spans(start: int, end: int, busy: int, op: int, count: int, whole: bool) -> None:
    """A span that is still growing: told as it stands, or not at all."""
    key = layouts.SPAN_KEY.packer.pack(99, 3, 12, op, 0)
    value = layouts.SPAN_STATE.packer.pack(
        8, 11, start, end, busy, 4_096, count, 5, 0, 8 if whole else 7
    )
    expected = None
    if whole and count and end >= start and op in OPS:
        advice = 0 if OPS[op] == "madvise" else None
        expected = Span(
            ts_ns=start, end_ns=end, tgid=11, tid=12, dev=3, ino=99, token=5, op=OPS[op],
            count=count, bytes=4_096, busy_ns=min(busy, end - start), advice=advice,
        )  # fmt: skip
    assert provisional(key, value) == expected
