"""Symbols of an ELF file as offsets in the file, which is what a probe is attached to.

Reads only headers and symbol tables, from a descriptor: the file may be in a container or
deleted. Nothing in it is trusted.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
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
#: What asks for more than this is damaged, or made to keep us busy: bytes and pieces read (tables
#: of large libraries have some 50 MB), headers, places of a name, symbols of one name or one hash.
_READ_MAX = 128 << 20
_READS_MAX = 1 << 16
_HEADERS_MAX = 4096
_DYNAMIC_MAX = 64 << 10
_PLACES_MAX = 1 << 16
_SAME_MAX = 64
_CHAIN_MAX = 1 << 16
_PIECE = 10_240 * 24  # whole symbols, whole numbers


#: Begin and end of a table, in the file.
Range = tuple[int, int]


class ElfError(Exception):
    """The file cannot be read as a 64-bit little-endian ELF file."""


class Elf:
    """An open file. `functions` looks names up; `interpreter` is the dynamic loader's path."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._left, self._reads_left = _READ_MAX, _READS_MAX
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

    def _read_some(self, offset: int, size: int) -> bytes:
        self._left -= max(0, size)
        self._reads_left -= 1
        if not 0 <= size <= _READ_MAX or offset < 0 or offset > 1 << 62:
            raise ElfError("its tables make no sense")
        if self._left < 0 or self._reads_left < 0:
            raise ElfError("its tables are too large")
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            raise ElfError(f"it cannot be read: {error.strerror}") from None

    def _read(self, offset: int, size: int) -> bytes:
        data = self._read_some(offset, size)
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
            missing = [name for name, text in names.items() if text not in found]
            if not missing:
                break
            for name, offset in self._defined(symbols, self._places(strings, missing)):
                found.setdefault(names[name], self._probe_point(offset))
        return found

    def _pieces(self, where: Range, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
        """(place in it, bytes) of one piece after the other; each begins `overlap` before."""
        at, end = where
        for start in range(at, end, _PIECE):
            first = max(at, start - overlap)
            yield first - at, self._read(first, min(start + _PIECE, end) - first)

    def _places(self, strings: Range, names: Collection[bytes]) -> dict[int, bytes]:
        """Where in a table of strings each of these names is, also as the end of another."""
        places: dict[int, bytes] = {}
        for at, piece in self._pieces(strings, max(map(len, names))):
            for name in names:
                begin = piece.find(name + b"\0")
                while begin >= 0:
                    places[at + begin] = name
                    begin = piece.find(name + b"\0", begin + 1)
            if len(places) > _PLACES_MAX:
                raise ElfError("its names make no sense")
        return places

    def _defined(self, symbols: Range, places: dict[int, bytes]) -> Iterator[tuple[bytes, int]]:
        """(name, offset in the file) of functions."""
        seen: Counter[bytes] = Counter()
        for _, piece in self._pieces(symbols) if places else ():
            for at, info, _, section, address, _ in _SYMBOL.iter_unpack(piece):
                name = places.get(at)
                if name is None or info & 0xF != _STT_FUNC or not section:
                    continue
                seen[name] += 1
                if seen[name] > _SAME_MAX:
                    raise ElfError("its symbols make no sense")
                offset = self.offset_of(address)
                if offset is not None:
                    yield name, offset

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

    def _symbol_tables(self) -> Iterator[tuple[Range, Range]]:
        """Where (symbols, strings) of each table are: exported ones first."""
        tables = [s for s in self._sections if s[1] in (_SHT_DYNSYM, _SHT_SYMTAB)]
        for section in sorted(tables, key=lambda s: -s[1]):
            _, _, _, _, offset, size, link, _, _, entry = section
            if entry != _SYMBOL.size or size % entry or link >= len(self._sections):
                raise ElfError("its symbol table makes no sense")
            strings = self._sections[link]
            yield _range(offset, size), _range(strings[4], strings[5])
        if not tables:
            yield from self._dynamic_symbols()

    def _dynamic_symbols(self) -> Iterator[tuple[Range, Range]]:
        """Without section headers: what the dynamic loader itself goes by."""
        tags: dict[int, int] = {}
        for kind, _, offset, _, _, filesz, _, _ in self._segments:
            if kind == _PT_DYNAMIC:
                size = min(filesz, _DYNAMIC_MAX)
                tags |= dict(_DYNAMIC.iter_unpack(self._read(offset, size - size % _DYNAMIC.size)))
        symbols = self.offset_of(tags.get(_DT_SYMTAB, -1))
        strings = self.offset_of(tags.get(_DT_STRTAB, -1))
        if symbols is None or strings is None:
            return
        size = self._symbol_count(tags) * _SYMBOL.size
        yield _range(symbols, size), _range(strings, tags.get(_DT_STRSZ, 0))

    def _symbol_count(self, tags: dict[int, int]) -> int:
        old = self.offset_of(tags.get(_DT_HASH, -1))
        if old is not None:
            return self._unpack(struct.Struct("<II"), old)[1]
        table = self.offset_of(tags.get(_DT_GNU_HASH, -1))
        if table is None:
            return 0
        buckets, first, bloom, _ = self._unpack(struct.Struct("<IIII"), table)
        heads = _range(table + 16 + bloom * 8, buckets * 4)
        last = max((max(memoryview(p).cast("I")) for _, p in self._pieces(heads)), default=0)
        if last < first:
            return first
        chain = heads[1] + (last - first) * 4
        for at in range(chain, chain + 4 * _CHAIN_MAX, 256):
            piece = self._read_some(at, 256)
            for (value,) in struct.iter_unpack("<I", piece[: len(piece) & ~3]):
                if value & 1:
                    return last + 1
                last += 1
            if len(piece) < 256:
                raise ElfError("it is cut short")
        raise ElfError("its symbols make no sense")


def _range(offset: int, size: int) -> Range:
    if size < 0 or offset < 0 or size > _READ_MAX:
        raise ElfError("its tables make no sense")
    return offset, offset + size
