"""ELF files made to keep whoever reads them busy, out of memory, or wrong."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

_SYMBOL = struct.Struct("<IBBHQQ")
_FUNC = 0x12
CODE_AT = 0x1000
BIG = 1 << 30


def header(sections: int, sections_at: int, segments: int, segments_at: int = 64) -> bytes:
    return struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, segments_at, sections_at, 0, 64,
        56, segments, 64, sections, 0,
    )  # fmt: skip


def segment(kind: int, offset: int, address: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, 5, offset, address, address, size, size, 4096)


def section(kind: int, offset: int, size: int, link: int = 0, entry: int = 0) -> bytes:
    return struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 8, entry)


def symbol(name: int, address: int = CODE_AT) -> bytes:
    return _SYMBOL.pack(name, _FUNC, 0, 1, address, 16)


def image(code: bytes, *names: bytes) -> bytes:
    """A small sound library whose functions all begin with `code`."""
    strings, symbols = b"\0", _SYMBOL.pack(0, 0, 0, 0, 0, 0)
    for name in names or (b"llama_decode",):
        symbols += symbol(len(strings))
        strings += name + b"\0"
    at = 0x2000
    sections_at = at + len(symbols) + len(strings)
    head = header(3, sections_at, 1) + segment(1, 0, 0, sections_at)
    data = head.ljust(CODE_AT, b"\0") + code.ljust(0x1000, b"\x90") + symbols + strings
    return (
        data
        + section(0, 0, 0)
        + section(11, at, len(symbols), 2, 24)
        + section(3, at + len(symbols), len(strings))
    )


def _sparse(path: Path, head: bytes, size: int, *parts: tuple[int, bytes]) -> None:
    with path.open("wb") as file:
        file.write(head)
        for at, data in parts:
            file.seek(at)
            file.write(data)
    os.truncate(path, max(size, path.stat().st_size))


def _endless_chain(path: Path) -> None:
    """A hash chain without an end, through a gigabyte that takes no room."""
    tags = ((5, 0x300), (6, 0x400), (10, 16), (0x6FFFFEF5, 0x200), (0, 0))
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    table = struct.pack("<IIII", 1, 1, 0, 0) + struct.pack("<I", 1)
    head = header(0, 0, 2) + segment(1, 0, 0, BIG) + segment(2, 0x180, 0x180, len(dynamic))
    _sparse(path, head, BIG, (0x180, dynamic), (0x200, table))


def _many_buckets(path: Path) -> None:
    """A hash table of four billion buckets."""
    tags = ((5, 0x300), (6, 0x400), (10, 16), (0x6FFFFEF5, 0x200), (0, 0))
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    head = header(0, 0, 2) + segment(1, 0, 0, BIG) + segment(2, 0x180, 0x180, len(dynamic))
    table = struct.pack("<IIII", 0xFFFFFFFF, 1, 0, 0)
    _sparse(path, head, BIG, (0x180, dynamic), (0x200, table))


def _long_dynamic(path: Path) -> None:
    """A list of what the loader needs that is as long as the file."""
    head = header(0, 0, 2) + segment(1, 0, 0, BIG) + segment(2, 0, 0, 60 << 20)
    _sparse(path, head, BIG)


def _one_string(path: Path) -> None:
    """A million symbols, each with a name of 60 MB that nothing ends."""
    symbols = b"".join(symbol(at) for at in range(1, 1000)) * 400
    strings_at = 0x2000 + len(symbols)
    tables = section(0, 0, 0) + section(11, 0x2000, len(symbols), 2, 24)
    tables += section(3, strings_at, 60 << 20)
    head = header(3, 0x100, 1) + segment(1, 0, 0, 0x2000)
    data = b"a" * (1 << 20)
    parts = [(strings_at + (n << 20), data) for n in range(60)]
    _sparse(path, head, 0, (0x100, tables), (0x2000, symbols), *parts)


def _same_symbol(path: Path) -> None:
    """A million symbols of a wanted name, none of which lies in any of 4000 segments."""
    names = b"\0llama_decode\0"
    symbols = symbol(1, BIG) * 400_000
    segments = segment(1, 0, 0, 1) * 4000
    tables_at = 64 + len(segments)
    symbols_at = tables_at + 3 * 64 + 64
    tables = section(0, 0, 0) + section(11, symbols_at, len(symbols), 2, 24)
    tables += section(3, tables_at + 3 * 64, len(names))
    head = header(3, tables_at, 4000) + segments + tables + names.ljust(64, b"\0") + symbols
    path.write_bytes(head)


def _same_table(path: Path) -> None:
    """Four thousand symbol tables, all of them the same 60 MB."""
    tables = section(0, 0, 0) + section(11, 1 << 20, 24 << 20, 0, 24) * 4000
    _sparse(path, header(4001, 0x100, 1) + segment(1, 0, 0, 4096), BIG, (0x100, tables))


def _wanted_everywhere(path: Path) -> None:
    """Nothing but wanted names for strings."""
    strings = b"llama_decode\0" * (4 << 20)
    symbols = b"".join(symbol(13 * at) for at in range(100_000))
    strings_at = 0x2000 + len(symbols)
    tables = section(0, 0, 0) + section(11, 0x2000, len(symbols), 2, 24)
    tables += section(3, strings_at, len(strings))
    head = header(3, 0x100, 1) + segment(1, 0, 0, 0x2000)
    _sparse(path, head, 0, (0x100, tables), (0x2000, symbols), (strings_at, strings))


def _absurd_sizes(path: Path) -> None:
    """Tables that begin and end beyond any file."""
    top = (1 << 64) - 1
    tables = section(0, 0, 0) + section(11, top - 7, top // 24 * 24, 2, 24)
    tables += section(3, top, top)
    _sparse(path, header(3, 0x100, 1) + segment(1, top, top, top), 8192, (0x100, tables))


CRAFTED: dict[str, Callable[[Path], None]] = {
    "endless-chain": _endless_chain,
    "many-buckets": _many_buckets,
    "long-dynamic": _long_dynamic,
    "one-string": _one_string,
    "same-symbol": _same_symbol,
    "same-table": _same_table,
    "wanted-everywhere": _wanted_everywhere,
    "absurd-sizes": _absurd_sizes,
}
"""What each does to a reader is said by its maker; none defines a function that is looked for."""
