"""Segments crafted by hand, through the kernel's own test run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bpf import segments
from tests.bpf.segments import ipv4, ipv6, tcp
from tracer.errors import KernelError
from tracer.http import ACK, FIN, RST, SYN
from tracer.kernel import libbpf
from tracer.kernel.loader import Kernel
from tracer.kernel.wire import RawPacket
from tracer.records import Conn

pytestmark = pytest.mark.kernel
PORT, CLIENT = 8080, 40000
PSH = 8
CONN4 = Conn(0, "192.0.2.1", PORT, "198.51.100.7", CLIENT)
CONN6 = Conn(0, "2001:db8::1", PORT, "2001:db8::2", CLIENT)


@pytest.fixture
def crafted(built: Path) -> Iterator[Kernel]:
    """Nothing attached; the port is watched. A test run has no socket: port and netns are 0."""
    with Kernel.open(path=built, attach=False) as kernel:
        kernel.watch_port(0, PORT)
        kernel.watch_port(0, 0)
        yield kernel


def run(kernel: Kernel, frame: bytes, egress: bool = False) -> list[RawPacket]:
    """The records of one test run; the packet must be let through."""
    program = kernel.program("ttft_egress" if egress else "ttft_ingress")
    assert libbpf.run_test(program, frame)[0] == 1
    return [raw for raw in kernel.drain() if isinstance(raw, RawPacket)]


def packet(conn: Conn, seq: int, ack: int, flags: int, payload: bytes = b"", *,
           egress: bool = False) -> tuple[object, ...]:  # fmt: skip
    return conn, egress, seq, ack, len(payload), payload, flags


def told(raws: list[RawPacket]) -> list[tuple[object, ...]]:
    return [(r.conn, r.egress, r.seq, r.ack, r.payload_len, r.payload, r.tcp_flags) for r in raws]


def to_v4(inner: bytes, **more: object) -> bytes:
    return ipv4(CONN4.client_ip, CONN4.server_ip, inner, **more)  # type: ignore[arg-type]


def to_v6(inner: bytes, **more: object) -> bytes:
    return ipv6(CONN6.client_ip, CONN6.server_ip, inner, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 511, 512, 513, 1400, 3000])
def test_payload_is_copied_whole(crafted: Kernel, size: int) -> None:
    payload = os.urandom(size)
    inner = tcp(CLIENT, PORT, 5, 6, ACK | PSH, payload)
    back = tcp(PORT, CLIENT, 0xFFFFFFFF, 0x80000000, ACK, payload)
    assert told(run(crafted, to_v4(inner))) == [packet(CONN4, 5, 6, ACK | PSH, payload)]
    assert told(run(crafted, to_v6(inner))) == [packet(CONN6, 5, 6, ACK | PSH, payload)]
    expected = packet(CONN4, 0xFFFFFFFF, 0x80000000, ACK, payload, egress=True)
    frame = ipv4(CONN4.server_ip, CONN4.client_ip, back)
    assert told(run(crafted, frame, egress=True)) == [expected]


def test_options_and_extension_headers_are_skipped(crafted: Kernel) -> None:
    stamped = tcp(CLIENT, PORT, 1, 2, ACK, b"GET /", options=b"\x01\x01\x08\x0a" + bytes(8))
    want4, want6 = ([packet(c, 1, 2, ACK, b"GET /")] for c in (CONN4, CONN6))
    assert told(run(crafted, to_v4(stamped))) == want4
    assert told(run(crafted, to_v4(stamped, options=bytes(40)))) == want4
    hop = b"\x3c\x00" + b"\x05\x02" + bytes(4)  # hop-by-hop, then destination options
    destination = b"\x2b\x01" + bytes(14)  # 16 bytes, then routing
    routing = b"\x33\x00" + bytes(6)  # then authentication
    authentication = b"\x06\x04" + bytes(22)  # 24 bytes, then TCP
    chain = hop + destination + routing + authentication
    assert told(run(crafted, to_v6(stamped, extensions=chain, following=0))) == want6
    jumbo = b"\x06\x00\xc2\x04" + (100_000).to_bytes(4, "big")
    assert told(run(crafted, to_v6(stamped, extensions=jumbo, following=0))) == want6
    endless = (b"\x3c\x00" + bytes(6)) * 20
    assert run(crafted, to_v6(stamped, extensions=endless, following=60)) == []


def test_bare_acknowledgements_count_from_the_server_only(crafted: Kernel) -> None:
    assert run(crafted, to_v4(tcp(CLIENT, PORT, 1, 2, ACK))) == []
    frame = ipv4(CONN4.server_ip, CONN4.client_ip, tcp(PORT, CLIENT, 3, 4, ACK))
    assert told(run(crafted, frame, egress=True)) == [packet(CONN4, 3, 4, ACK, egress=True)]
    for flags in (SYN, FIN | ACK, RST):
        frame = to_v4(tcp(CLIENT, PORT, 1, 2, flags))
        assert told(run(crafted, frame)) == [packet(CONN4, 1, 2, flags)]


def test_out_of_order_segments_come_as_they_are(crafted: Kernel) -> None:
    parts = {1: b"GET / HT", 9: b"TP/1.1\r\n", 17: b"\r\n"}
    seen = []
    for seq in (9, 1, 9, 17):
        seen += run(crafted, to_v4(tcp(CLIENT, PORT, seq, 1, ACK, parts[seq])))
    assert [(r.seq, r.payload) for r in seen] == [(s, parts[s]) for s in (9, 1, 9, 17)]
    times = [r.ts_ns for r in seen]
    assert times == sorted(times) and times[-1] <= time.monotonic_ns()


def test_what_is_not_ours_is_left_alone(crafted: Kernel) -> None:
    good = tcp(CLIENT, PORT, 1, 2, ACK, b"payload")
    for frame in (
        to_v4(good, protocol=17),
        to_v4(good, fragment=0x2003),
        to_v6(good, following=17),
        to_v6(good, following=44, extensions=b"\x06\x00" + bytes(6)),
        to_v4(tcp(CLIENT, PORT + 1, 1, 2, ACK, b"payload")),
        segments.ETHERNET[4] + b"\x95" + bytes(60),
        segments.ETHERNET[4] + b"\x41" + bytes(60),
        to_v4(good[:12] + b"\x40" + good[13:]),  # a header of 16 bytes
        to_v4(good[:12] + b"\xf0" + good[13:]),  # a header beyond the end
    ):
        assert run(crafted, frame) == []
    for frame in (to_v4(good), to_v6(good)):
        for length in range(14, len(frame) - len(good) + 20):  # no test run is shorter
            try:
                assert run(crafted, frame[:length]) == []
            except KernelError as error:  # no IP header: the kernel itself refuses
                assert "Invalid argument" in error.message
    assert crafted.lost() == {}
