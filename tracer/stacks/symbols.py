"""Names of code by the symbol tables of its ELF file, where bcc is not there or does not know.

Runs in the helper (helper.py), under any Python 3.9 and later: standard library alone.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterable

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PT_LOAD = 1
_TABLES = (2, 11)  # SYMTAB, DYNSYM
_FUNCTIONS = (2, 10)  # FUNC, GNU_IFUNC
_TABLE_MAX = 256 << 20
_ENTRIES_MAX = 4096
_DIGITS = "0123456789"  # str.isdigit takes others as well


class Unreadable(Exception):
    """It is no ELF file of this kind, or damaged."""


class Symbols:
    """The functions of an open file, by where they lie in it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        head = _HEADER.unpack(self._read(0, _HEADER.size))
        if head[0][:6] != b"\x7fELF\x02\x01":
            raise Unreadable("no little-endian 64-bit ELF file")
        _, _, _, _, _, phoff, shoff, _, _, phsize, phnum, shsize, shnum, _ = head
        segments = self._table(_SEGMENT, phoff, phsize, phnum)
        self._loads = [(s[2], s[3], s[5]) for s in segments if s[0] == _PT_LOAD]
        sections = list(self._table(_SECTION, shoff, shsize, shnum))
        self._found = sorted(self._functions(sections))
        self._starts = [start for start, _, _ in self._found]

    def _read(self, offset: int, size: int) -> bytes:
        if not (0 <= size <= _TABLE_MAX and 0 <= offset < 1 << 62):
            raise Unreadable("tables that make no sense")
        data = os.pread(self._fd, size, offset)
        if len(data) != size:
            raise Unreadable("cut short")
        return data

    def _table(
        self, what: struct.Struct, offset: int, size: int, count: int
    ) -> Iterable[tuple[int, ...]]:
        if not count or not offset:
            return ()
        if size != what.size or count > _ENTRIES_MAX:
            raise Unreadable("headers that make no sense")
        return what.iter_unpack(self._read(offset, size * count))

    def _functions(self, sections: list[tuple[int, ...]]) -> Iterable[tuple[int, int, bytes]]:
        for _, kind, _, _, offset, size, link, _, _, entry in sections:
            if kind not in _TABLES:
                continue
            if entry != _SYMBOL.size or size % entry or link >= len(sections):
                raise Unreadable("a symbol table that makes no sense")
            strings = self._read(sections[link][4], sections[link][5])
            for name, info, _, section, value, length in _SYMBOL.iter_unpack(
                self._read(offset, size)
            ):
                if info & 0xF in _FUNCTIONS and section and length:
                    end = strings.find(b"\0", name)
                    yield value, value + length, strings[name : end if end >= 0 else name]

    def name(self, offset: int) -> str | None:
        """Of the function that has the code at an offset in the file."""
        for begin, vaddr, size in self._loads:
            if begin <= offset < begin + size:
                return self._at(offset - begin + vaddr)
        return None

    def _at(self, address: int) -> str | None:
        n = bisect_right(self._starts, address) - 1
        if n < 0 or address >= self._found[n][1]:
            return None
        return plain(self._found[n][2].decode("utf-8", "replace"))


def plain(name: str) -> str:
    """A C++ or old Rust name without what is encoded in it beside its parts: `a::b`."""
    if not name.startswith("_ZN"):
        return name
    at, parts = 3, []
    while at < len(name) and name[at] not in _DIGITS:
        if name[at] not in "KVrRO":  # const and the like
            return name
        at += 1
    while at < len(name) and name[at] in _DIGITS:
        length = 0
        while at < len(name) and name[at] in _DIGITS and length < 1 << 16:
            length, at = length * 10 + int(name[at]), at + 1
        if at + length > len(name):
            return name
        parts.append(name[at : at + length])
        at += length
    return "::".join(parts) if parts else name
