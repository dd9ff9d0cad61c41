"""Reads the BTF of a BPF object: structs as flat (name, offset, size) lists, enums as dicts."""

from __future__ import annotations

import struct
from pathlib import Path

_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM = 1, 2, 3, 4, 5, 6
_TYPEDEF, _VOLATILE, _CONST, _VAR, _DATASEC = 8, 9, 10, 14, 15
#: Bytes that follow the type itself: (fixed, for each of `vlen`).
_TRAILERS = {
    _INT: (4, 0), _ARRAY: (12, 0), _STRUCT: (0, 12), _UNION: (0, 12), _ENUM: (0, 8),
    13: (0, 8), _VAR: (4, 0), _DATASEC: (0, 12), 17: (4, 0), 19: (0, 12),
}  # fmt: skip


def elf_section(path: Path, name: str) -> bytes:
    """A section of a little-endian ELF64 file."""
    data = path.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, entries, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size) for i in range(entries)
    ]
    strings = sections[names][4]
    for section in sections:
        start = strings + section[0]
        if data[start : data.index(b"\0", start)].decode() == name:
            return data[section[4] : section[4] + section[5]]
    raise KeyError(name)


class Btf:
    """The types of an object."""

    def __init__(self, path: Path) -> None:
        raw = elf_section(path, ".BTF")
        header = struct.unpack_from("<HBBIIIII", raw)
        assert header[0] == 0xEB9F
        length, types_at, types_len, strings_at, strings_len = header[3:]
        self._strings = raw[length + strings_at : length + strings_at + strings_len]
        self._types: list[tuple[int, int, int, int, bytes]] = [(0, 0, 0, 0, b"")]
        self._read(raw[length + types_at : length + types_at + types_len])

    def _read(self, raw: bytes) -> None:
        at = 0
        while at < len(raw):
            name, info, size = struct.unpack_from("<III", raw, at)
            kind, many = info >> 24 & 0x1F, info & 0xFFFF
            fixed, each = _TRAILERS.get(kind, (0, 0))
            trailer = raw[at + 12 : at + 12 + fixed + each * many]
            self._types.append((name, kind, many, size, trailer))
            at += 12 + len(trailer)

    def _name(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _find(self, name: str, kind: int) -> int:
        for index, (offset, found, *_) in enumerate(self._types):
            if found == kind and self._name(offset) == name:
                return index
        raise KeyError(name)

    def _size(self, index: int) -> int:
        _, kind, _, size, trailer = self._types[index]
        if kind in (_TYPEDEF, _VOLATILE, _CONST):
            return self._size(size)
        if kind == _PTR:
            return 8
        if kind == _ARRAY:
            element, _, count = struct.unpack("<III", trailer)
            return self._size(element) * int(count)
        return size

    def size(self, name: str) -> int:
        return self._size(self._find(name, _STRUCT))

    def members(self, name: str) -> list[tuple[str, int, int]]:
        """Leaves of a struct, nested ones with a dotted name."""
        return self._leaves(self._find(name, _STRUCT), "", 0)

    def _leaves(self, index: int, prefix: str, base: int) -> list[tuple[str, int, int]]:
        _, _, many, _, trailer = self._types[index]
        found = []
        for i in range(many):
            name, kind, bits = struct.unpack_from("<III", trailer, 12 * i)
            offset, label = base + bits // 8, prefix + self._name(name)
            if self._types[kind][1] == _STRUCT:
                found += self._leaves(kind, label + ".", offset)
            else:
                found.append((label, offset, self._size(kind)))
        return found

    def enum(self, name: str) -> dict[str, int]:
        _, _, many, _, trailer = self._types[self._find(name, _ENUM)]
        pairs = [struct.unpack_from("<Ii", trailer, 8 * i) for i in range(many)]
        return {self._name(offset): value for offset, value in pairs}

    def structs(self) -> set[str]:
        return {self._name(n) for n, kind, *_ in self._types if kind == _STRUCT and n}
