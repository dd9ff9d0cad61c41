"""The names in a kernel's types (BTF), out of a file that may be anything."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

from tracer.errors import KernelError

TYPES_MAX = 64 << 20
"""Bytes; those of a kernel with all its drivers are a tenth of it."""

_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")
_ELF_MAGIC = b"\x7fELF\x02\x01"
_ELF = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SECTIONS_MAX = 4096
_TEXTS_MAX = 1 << 20


def names(path: Path, advice: str) -> bytes:
    """Each between zero bytes. KernelError, with `advice`, where the file holds no types."""
    try:
        # To open a device does something, and a pipe keeps whoever opens it waiting.
        if not stat.S_ISREG(path.stat().st_mode):
            raise _Unfit("it is no file")
        with open(path, "rb", opener=_opener) as file:
            return _names(file.fileno())
    except OSError as error:
        message = f"no type information (BTF) in {path}: {error.strerror}"
        raise KernelError(message, advice) from None
    except (_Unfit, ValueError) as error:
        message = f"{path} holds no type information (BTF)"
        why = f": {error}" if isinstance(error, _Unfit) else ""
        raise KernelError(message + why, advice) from None


class _Unfit(Exception):
    """Says why."""


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _names(fd: int) -> bytes:
    is_elf = os.pread(fd, len(_ELF_MAGIC), 0) == _ELF_MAGIC
    at, size = _section(fd) if is_elf else (0, os.fstat(fd).st_size)
    if size > TYPES_MAX:
        raise _Unfit(f"they are larger than {TYPES_MAX >> 20} MiB")
    magic, _, _, header, _, _, strings, length = _HEADER.unpack(_read(fd, at, _HEADER.size))
    if magic != _MAGIC:
        raise _Unfit("it begins otherwise")
    if header + strings + length > size:
        raise _Unfit("it is cut short")
    return _read(fd, at + header + strings, length)


def _section(fd: int) -> tuple[int, int]:
    """Where an ELF file, such as a vmlinux, has its types, and how many bytes."""
    *_, at, _, _, _, _, size, count, last = _ELF.unpack(_read(fd, 0, _ELF.size))
    if size != _SECTION.size or count > _SECTIONS_MAX or last >= count:
        raise _Unfit("its sections make no sense")
    table = list(_SECTION.iter_unpack(_read(fd, at, size * count)))
    texts = _read(fd, table[last][4], min(table[last][5], _TEXTS_MAX))
    for name, _, _, _, offset, length, *_ in table:
        if texts[name : texts.find(b"\0", name)] == b".BTF":
            return offset, length
    raise _Unfit("it has no section .BTF")


def _read(fd: int, at: int, size: int) -> bytes:
    if at >= 1 << 62:
        raise _Unfit("its sections make no sense")
    data = bytearray()
    while len(data) < size and (piece := os.pread(fd, size - len(data), at + len(data))):
        data += piece
    if len(data) < size:
        raise _Unfit("it is cut short")
    return bytes(data)
