"""Symbols of an ELF file as offsets in the file, which is what a probe is attached to.

Reads only headers and symbol tables, from a descriptor: the file may be in a container or
deleted. Nothing in it is trusted.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_STT_FUNC = 2
_DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_GNU_HASH, _DT_HASH = 5, 6, 10, 0x6FFFFEF5, 4
_X86_64, _AARCH64 = 62, 183
_MACHINES = (_X86_64, _AARCH64)
_TEST_RDI = b"\x48\x85\xff"
_ENDBR64 = b"\xf3\x0f\x1e\xfa"
#: Larger tables are taken for damaged.
_TABLE_MAX = 64 << 20
_HEADERS_MAX = 4096


class ElfError(Exception):
    """The file cannot be read as a 64-bit little-endian ELF file."""


class Elf:
    """An open file. `functions` looks names up; `interpreter` is the dynamic loader's path."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        head = self._read(0, _HEADER.size)
        ident = head[:16]
        _, _, self._machine, _, _, phoff, shoff, _, _, phsize, phnum, shsize, shnum, _ = (
            _HEADER.unpack(head)
        )
        if ident[:4] != b"\x7fELF":
            raise ElfError("it is no ELF file")
        if ident[4:6] != b"\x02\x01" or self._machine not in _MACHINES:
            raise ElfError("it is for another machine")
        self._segments = list(self._table(_SEGMENT, phoff, phsize, phnum))
        self._sections = list(self._table(_SECTION, shoff, shsize, shnum)) if shoff else []

    def _read(self, offset: int, size: int) -> bytes:
        if not 0 <= size <= _TABLE_MAX or offset < 0 or offset > 1 << 62:
            raise ElfError("its tables make no sense")
        try:
            data = os.pread(self._fd, size, offset)
        except OSError as error:
            raise ElfError(f"it cannot be read: {error.strerror}") from None
        if len(data) != size:
            raise ElfError("it is cut short")
        return data

    def _unpack(self, what: struct.Struct, offset: int) -> tuple[int, ...]:
        return what.unpack(self._read(offset, what.size))

    def _table(
        self, what: struct.Struct, offset: int, size: int, count: int
    ) -> Iterator[tuple[int, ...]]:
        if count == 0:
            return iter(())
        if size != what.size or count > _HEADERS_MAX:
            raise ElfError("its headers make no sense")
        return what.iter_unpack(self._read(offset, size * count))

    def offset_of(self, address: int) -> int | None:
        """Where in the file what is mapped at `address` lies."""
        for kind, _, offset, vaddr, _, filesz, _, _ in self._segments:
            if kind == _PT_LOAD and vaddr <= address < vaddr + filesz:
                return address - vaddr + offset
        return None

    def interpreter(self) -> str | None:
        """The path of the dynamic loader it asks for."""
        for kind, _, offset, _, _, filesz, _, _ in self._segments:
            if kind == _PT_INTERP and 1 < filesz <= 4096:
                return self._read(offset, filesz).split(b"\0", 1)[0].decode("utf-8", "replace")
        return None

    def functions(self, wanted: Collection[str]) -> dict[str, int]:
        """Offset in the file of each of these functions that it defines."""
        names = {name.encode(): name for name in wanted}
        found: dict[str, int] = {}
        for symbols, strings in self._symbol_tables():
            for at, info, _, section, address, _ in _SYMBOL.iter_unpack(symbols):
                if info & 0xF != _STT_FUNC or not section:
                    continue
                end = strings.find(b"\0", at)
                name = names.get(strings[at:end])
                if name is None or name in found:
                    continue
                offset = self.offset_of(address)
                if offset is not None:
                    found[name] = self._probe_point(offset)
        return found

    def _probe_point(self, offset: int) -> int:
        """The first instruction that the kernel emulates, where that is sure.

        Others it has the processor step over, which in a virtual machine takes 18 us and not
        0.6: a landing mark is passed over for the push or jump behind it.
        """
        if self._machine != _X86_64:
            return offset
        code = self._read(offset, 9)
        if code[:4] != _ENDBR64:
            return offset
        push = code[5] if code[4] == 0x41 else code[4]
        if 0x50 <= push <= 0x57:
            return offset + 4
        # The first argument is held against NULL, and a short jump follows.
        return offset + 7 if code[4:7] == _TEST_RDI and code[7] & 0xF0 == 0x70 else offset

    def _symbol_tables(self) -> Iterator[tuple[bytes, bytes]]:
        """(symbols, strings) of each table: exported ones first."""
        tables = [s for s in self._sections if s[1] in (_SHT_DYNSYM, _SHT_SYMTAB)]
        for section in sorted(tables, key=lambda s: -s[1]):
            _, _, _, _, offset, size, link, _, _, entry = section
            if entry != _SYMBOL.size or size % entry or link >= len(self._sections):
                raise ElfError("its symbol table makes no sense")
            strings = self._sections[link]
            yield self._read(offset, size), self._read(strings[4], strings[5])
        if not tables:
            yield from self._dynamic_symbols()

    def _dynamic_symbols(self) -> Iterator[tuple[bytes, bytes]]:
        """Without section headers: what the dynamic loader itself goes by."""
        tags: dict[int, int] = {}
        for kind, _, offset, _, _, filesz, _, _ in self._segments:
            if kind == _PT_DYNAMIC:
                data = self._read(offset, filesz - filesz % _DYNAMIC.size)
                tags |= dict(_DYNAMIC.iter_unpack(data))
        symbols = self.offset_of(tags.get(_DT_SYMTAB, -1))
        strings = self.offset_of(tags.get(_DT_STRTAB, -1))
        if symbols is None or strings is None:
            return
        count = self._symbol_count(tags)
        yield self._read(symbols, count * _SYMBOL.size), self._read(strings, tags.get(_DT_STRSZ, 0))

    def _symbol_count(self, tags: dict[int, int]) -> int:
        old = self.offset_of(tags.get(_DT_HASH, -1))
        if old is not None:
            return self._unpack(struct.Struct("<II"), old)[1]
        table = self.offset_of(tags.get(_DT_GNU_HASH, -1))
        if table is None:
            return 0
        buckets, first, bloom, _ = self._unpack(struct.Struct("<IIII"), table)
        at = table + 16 + bloom * 8
        heads = struct.unpack(f"<{buckets}I", self._read(at, buckets * 4))
        last, chains = max(heads, default=0), at + buckets * 4
        if last < first:
            return first
        while not self._unpack(struct.Struct("<I"), chains + (last - first) * 4)[0] & 1:
            last += 1
        return last + 1
