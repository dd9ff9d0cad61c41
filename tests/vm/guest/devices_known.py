"""Calls to drivers as real programs make them, with what each is and how many bytes it is about.

Written from the drivers' own sources, not from the table that ttft reads: nvos.h, nv_escape.h
and class/cl*.h, uvm_ioctl.h, kfd_ioctl.h, drm.h. What receives them is a stand-in.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.workloads.device_calls import ELSEWHERE, Field, encoded

XFER = 211
_XFER_BYTES = 16
MIB = 1 << 20


@dataclass(frozen=True)
class Known:
    """`number`: as passed to ioctl. `bytes`: of one call, None where it is about no memory."""

    node: str
    number: int
    what: str
    bytes: int | None = None
    fields: tuple[Field, ...] = ()
    count: int = 2


def _rm(number: int, size: int, what: str, *fields: Field, bytes_: int | None = None) -> Known:
    return Known("nvidiactl", encoded("F", number, size), what, bytes_, fields)


def _wrapped(inner: Known) -> Known:
    """The same through the call for large arguments: its number, size and a pointer to them."""
    number, size = inner.number & 0xFF, inner.number >> 16 & 0x3FFF
    head = (Field(0, 4, number), Field(4, 4, size))
    within = [Field(f.offset, f.width, f.value, 8) for f in inner.fields]
    fields = (*head, *(within or [Field(0, 4, 0, 8)]))
    return Known(inner.node, encoded("F", XFER, _XFER_BYTES), inner.what, inner.bytes, fields)


def _alloc(class_: int, what: str, *fields: Field, bytes_: int | None = None) -> Known:
    """RM_ALLOC of an object: its class at 12, its parameters by a pointer at 16."""
    return _rm(0x2B, 48, what, Field(12, 4, class_), *fields, bytes_=bytes_)


def _memory(class_: int, size: int) -> Known:
    return _alloc(class_, "allocate", Field(64, 8, size, 16), bytes_=size)


def _control(command: int, what: str) -> Known:
    return _rm(0x2A, 32, what, Field(8, 4, command))


def _heap(function: int, what: str, *fields: Field, bytes_: int | None = None) -> Known:
    return _rm(0x4A, 184, what, Field(8, 4, function), *fields, bytes_=bytes_)


FRONTEND = (
    _rm(210, 72, "query"), _rm(214, 8, "query"), _rm(200, 512, "query"), _rm(213, 8, "query"),
    _rm(201, 4, "context"), _rm(212, 8, "context"), _rm(209, 8, "query"), _rm(218, 8, "open"),
    _rm(215, 40, "query"), _rm(216, 8, "query"), _rm(206, 16, "sync"), _rm(207, 16, "sync"),
    _rm(217, 40, "share"),
    _alloc(0x41, "context"), _alloc(0x80, "context"), _alloc(0x2080, "context"),
    _alloc(0x90F1, "context"), _alloc(0x9067, "context"), _control(0x20800110, "query"),
    _memory(0x40, 96 * MIB), _memory(0x3E, 3 * MIB + 4096), _memory(0xF8, 2 * MIB),
    _alloc(0x70, "map"), _alloc(0x50A0, "map"),
    _alloc(0x71, "pin", Field(24, 8, 5 * MIB - 1, 16), bytes_=5 * MIB),
    _alloc(0xA06C, "queue"), _alloc(0xC86F, "queue"), _alloc(0xCBC0, "queue"),
    _alloc(0xC8B5, "queue"), _alloc(0xC661, "queue"), _control(0xA06C0101, "queue"),
    _control(0xC36F0108, "queue"), _alloc(0x79, "sync"), _alloc(0x5, "sync"),
    _rm(0x27, 56, "pin", Field(12, 4, 0x71), Field(32, 8, 7 * MIB - 1), bytes_=7 * MIB),
    _rm(0x27, 56, "allocate", Field(12, 4, 0x3E), Field(32, 8, MIB - 1), bytes_=MIB),
    _rm(0x28, 32, "context"),
    _heap(2, "allocate", Field(88, 8, 11 * MIB), bytes_=11 * MIB), _heap(14, "allocate"),
    _heap(27, "pin", Field(72, 8, 13 * MIB - 1), bytes_=13 * MIB),
    _heap(3, "free"), _heap(5, "query"),
    _rm(0x4E, 56, "map", Field(24, 8, 17 * 4096), bytes_=17 * 4096), _rm(0x4F, 32, "free"),
    _rm(0x57, 48, "map"), _rm(0x58, 40, "free"), _rm(0x5E, 32, "map"), _rm(0x34, 32, "share"),
    _rm(0x35, 24, "share"), _rm(0x5C, 40, "share"), _rm(0x5D, 40, "share"), _rm(0x41, 48, "sync"),
    _rm(0x52, 24, "sync"), _rm(0x54, 56, "context"), _rm(0x59, 16, "context"),
    _rm(0x4D, 48, "query"), _rm(0x29, 16, "free"),
    _wrapped(_rm(0x2B, 48, "context", Field(12, 4, 0x80))),
    _wrapped(_rm(0x4E, 56, "map", Field(24, 8, 19 * 4096), bytes_=19 * 4096)),
    _wrapped(_heap(2, "allocate", Field(88, 8, 23 * MIB), bytes_=23 * MIB)),
)  # fmt: skip


def _uvm(number: int, what: str, size: int | None = None) -> Known:
    fields = () if size is None else (Field(0, 8, 0x7000_0000_0000), Field(8, 8, size))
    return Known("nvidia-uvm", number, what, size, fields)


UVM = (
    _uvm(0x30000001, "context"), _uvm(75, "context"), _uvm(37, "context"), _uvm(25, "context"),
    _uvm(27, "queue"), _uvm(73, "map", 64 * MIB), _uvm(33, "map", 48 * MIB), _uvm(68, "sync"),
    _uvm(71, "pin", 29 * 4096), _uvm(51, "transfer", 31 * MIB), _uvm(53, "transfer"),
    _uvm(42, "map"), _uvm(46, "map"), _uvm(23, "map"), _uvm(39, "query"), _uvm(72, "query"),
    _uvm(29, "context"), _uvm(65, "context"), _uvm(66, "free"), _uvm(34, "free"), _uvm(28, "free"),
    _uvm(26, "free"), _uvm(38, "free"), _uvm(80, "free"), _uvm(0x30000002, "free"),
)  # fmt: skip


def _kfd(number: int, size: int, what: str, *fields: Field, bytes_: int | None = None) -> Known:
    return Known("kfd", encoded("K", number, size), what, bytes_, fields)


def _vram(flags: int, what: str, size: int | None = None) -> Known:
    fields = (Field(8, 8, size or 4096), Field(36, 4, flags))
    return _kfd(0x16, 40, what, *fields, bytes_=size)


#: Bits of an allocation: memory of the device, of the host, the process's own, a doorbell.
KFD = (
    _kfd(0x01, 8, "query"), _kfd(0x14, 16, "query"), _kfd(0x15, 8, "context"),
    _kfd(0x25, 16, "context"), _vram(0x8000_0001, "allocate", 37 * MIB),
    _vram(2, "allocate", 41 * 4096), _vram(4, "pin", 43 * MIB), _vram(8, "queue"),
    _kfd(0x18, 24, "map"), _kfd(0x02, 88, "queue"), _kfd(0x08, 32, "sync"), _kfd(0x0C, 24, "sync"),
    _kfd(0x1D, 24, "share"), _kfd(0x19, 24, "free"), _kfd(0x17, 8, "free"), _kfd(0x03, 8, "free"),
)  # fmt: skip

NODES = ("nvidiactl", "nvidia-uvm", "kfd")
ALL = (*FRONTEND, *UVM, *KFD)
assert max(f.offset for one in ALL for f in one.fields) < ELSEWHERE
