"""Hand-made packets for the kernel's test run, and packets of the ring to facts."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable

from tests.workloads.waiting import wait_for
from tracer.http import HttpReader, Packet
from tracer.kernel.loader import Kernel
from tracer.kernel.wire import Raw, RawPacket
from tracer.records import AnyRecord

ETHERNET = {4: bytes(12) + b"\x08\x00", 6: bytes(12) + b"\x86\xdd"}


def tcp(
    source: int, target: int, seq: int, ack: int, flags: int, payload: bytes = b"",
    options: bytes = b"",
) -> bytes:  # fmt: skip
    """A TCP segment; `options` is a multiple of 4 bytes."""
    words = 5 + len(options) // 4
    header = struct.pack(">HHIIBBHHH", source, target, seq, ack, words << 4, flags, 512, 0, 0)
    return header + options + payload


def ipv4(source: str, target: str, inner: bytes, *, options: bytes = b"", protocol: int = 6,
         fragment: int = 0) -> bytes:  # fmt: skip
    """A frame with an IPv4 packet."""
    words = 5 + len(options) // 4
    ends = ipaddress.ip_address(source).packed + ipaddress.ip_address(target).packed
    total = (words * 4 + len(inner)) & 0xFFFF
    head = struct.pack(">BBHHHBBH", 0x40 | words, 0, total, 1, fragment, 64, protocol, 0)
    return ETHERNET[4] + head + ends + options + inner


def ipv6(source: str, target: str, inner: bytes, *, extensions: bytes = b"",
         following: int = 6) -> bytes:  # fmt: skip
    """A frame with an IPv6 packet; `following`: number of the first header after it."""
    ends = ipaddress.ip_address(source).packed + ipaddress.ip_address(target).packed
    total = len(extensions) + len(inner)
    head = struct.pack(">IHBB", 6 << 28, total if total < 65536 else 0, following, 64)
    return ETHERNET[6] + head + ends + extensions + inner


def packet_of(raw: RawPacket) -> Packet:
    return Packet(
        ts_ns=raw.ts_ns, conn=raw.conn, egress=raw.egress, seq=raw.seq, ack=raw.ack,
        payload_len=raw.payload_len, payload=raw.payload, flags=raw.tcp_flags,
    )  # fmt: skip


class Listener:
    """Reads what the kernel tells until something holds: raw records and HTTP facts."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.reader = HttpReader()
        self.raws: list[Raw] = []
        self.facts: list[AnyRecord] = []

    def drain(self) -> None:
        for raw in self._kernel.drain():
            self.raws.append(raw)
            if isinstance(raw, RawPacket):
                self.facts += self.reader.packet(packet_of(raw))

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 10) -> None:
        def holds() -> bool:
            self.drain()
            return condition()

        wait_for(holds, timeout_s, what, poll_s=0.002)
