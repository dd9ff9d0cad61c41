"""What this kernel lets us do with BPF, and what of it is loaded now (bpf(2) by hand).

Apart from the loader under test on purpose: a reference that the tool did not make.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

BTF = Path("/sys/kernel/btf/vmlinux")
_NR_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD = 5
_PROG_GET_NEXT_ID = 11
_PROG_GET_FD_BY_ID = 13
_MAP_GET_NEXT_KEY = 4
_MAP_GET_FD_BY_ID = 14
_OBJ_GET_INFO_BY_FD = 15
_INFO_SIZE = 256
#: Kinds of maps that have entries to count: hash, LRU hash, trie of prefixes.
_TABLES = (1, 9, 11)
_LINK_GET_NEXT_ID = 31
_RAW_TRACEPOINT = 17
_RETURN_0 = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> tuple[int, bytes]:
    number = _NR_BPF[platform.machine()]
    buffer = ctypes.create_string_buffer(attributes, 128)
    result = _libc.syscall(number, command, buffer, 128)
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
    return result, buffer.raw


def refusal() -> str | None:
    """Why BPF cannot be used here; None where it can."""
    if os.geteuid() != 0:
        return "not root"
    if not BTF.exists():
        return f"no {BTF}"
    code, licence = ctypes.create_string_buffer(_RETURN_0), ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack(
        "<IIQQ", _RAW_TRACEPOINT, 2, ctypes.addressof(code), ctypes.addressof(licence)
    )
    try:
        fd, _ = _bpf(_PROG_LOAD, attributes)
    except OSError as error:
        return f"the kernel refuses BPF programs: {error.strerror}"
    os.close(fd)
    return None


def _ids(command: int) -> list[int]:
    found: list[int] = []
    last = 0
    while True:
        try:
            _, answer = _bpf(command, struct.pack("<I", last))
        except FileNotFoundError:
            return found
        last = struct.unpack_from("<I", answer, 4)[0]
        found.append(last)


def program_ids() -> set[int]:
    """Ids of all loaded programs."""
    return set(_ids(_PROG_GET_NEXT_ID))


def link_ids() -> set[int]:
    """Ids of all BPF links."""
    return set(_ids(_LINK_GET_NEXT_ID))


def _fdinfo(pid: int) -> Iterator[dict[str, str]]:
    """What the kernel says of each descriptor of a process."""
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = info.read_text().splitlines()
        except FileNotFoundError:
            continue  # closed since
        yield {k: v.strip() for k, _, v in (line.partition(":") for line in lines)}


def held(pid: int) -> tuple[set[int], set[int]]:
    """Ids of the programs and of the links that a process has descriptors for."""
    programs: set[int] = set()
    links: set[int] = set()
    for fields in _fdinfo(pid):
        if "link_id" in fields:
            links.add(int(fields["link_id"]))
        if "prog_id" in fields:
            programs.add(int(fields["prog_id"]))
    return programs, links


def linked(pid: int) -> set[str]:
    """Names of the programs that a process has links for: of those that are attached."""
    links = [fields for fields in _fdinfo(pid) if "link_id" in fields and "prog_id" in fields]
    return {one.name for one in ran(int(fields["prog_id"]) for fields in links).values()}


@dataclass(frozen=True)
class Ran:
    """A loaded program, and how it ran while the kernel counted. `missed`: runs left out."""

    name: str
    run_ns: int
    runs: int
    missed: int
    instructions: int


def _object(get_fd: int, id_: int) -> bytes:
    """The kernel's information about a program or map (struct bpf_prog_info, bpf_map_info)."""
    fd, _ = _bpf(get_fd, struct.pack("<I", id_))
    try:
        info = ctypes.create_string_buffer(_INFO_SIZE)
        _bpf(_OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", fd, _INFO_SIZE, ctypes.addressof(info)))
        return info.raw
    finally:
        os.close(fd)


def ran(ids: Iterable[int]) -> dict[int, Ran]:
    """Each of these programs; one that is gone is left out."""
    found = {}
    for id_ in ids:
        with contextlib.suppress(FileNotFoundError):
            info = _object(_PROG_GET_FD_BY_ID, id_)
            name = info[64:80].split(b"\0")[0].decode()
            run_ns, runs, missed, instructions = struct.unpack_from("<QQQI", info, 192)
            found[id_] = Ran(name, run_ns, runs, missed, instructions)
    return found


def map_memory(pid: int) -> dict[str, int]:
    """Kernel memory of the maps a process has descriptors for, in bytes, by name."""
    found: dict[int, tuple[str, int]] = {}
    for fields in _fdinfo(pid):
        if "map_id" in fields and "memlock" in fields:
            id_ = int(fields["map_id"])
            with contextlib.suppress(FileNotFoundError):
                name = _object(_MAP_GET_FD_BY_ID, id_)[24:40].split(b"\0")[0].decode()
                found[id_] = (name, int(fields["memlock"]))
    sizes: dict[str, int] = {}
    for name, size in found.values():
        sizes[name] = sizes.get(name, 0) + size
    return sizes


def program_memory(pid: int) -> int:
    """Kernel memory of the programs a process has descriptors for, in bytes."""
    found = {f["prog_id"]: int(f["memlock"]) for f in _fdinfo(pid) if "memlock" in f
             and "prog_id" in f and "link_id" not in f}  # fmt: skip
    return sum(found.values())


def map_entries(pid: int) -> dict[str, int]:
    """How many entries each table has that a process holds, by name."""
    ids = {int(f["map_id"]) for f in _fdinfo(pid) if "map_id" in f and "link_id" not in f}
    found: dict[str, int] = {}
    for id_ in ids:
        with contextlib.suppress(FileNotFoundError):
            info = _object(_MAP_GET_FD_BY_ID, id_)
            kind, _, key_size = struct.unpack_from("<III", info)
            if kind in _TABLES:
                name = info[24:40].split(b"\0")[0].decode()
                found[name] = found.get(name, 0) + _count(id_, key_size)
    return found


def _count(id_: int, key_size: int) -> int:
    fd, _ = _bpf(_MAP_GET_FD_BY_ID, struct.pack("<I", id_))
    here, after = ctypes.create_string_buffer(key_size), ctypes.create_string_buffer(key_size)
    key, count = 0, 0
    try:
        while True:
            where = struct.pack("<IIQQ", fd, 0, key, ctypes.addressof(after))
            _bpf(_MAP_GET_NEXT_KEY, where)
            count += 1
            ctypes.memmove(here, after, key_size)
            key = ctypes.addressof(here)
    except FileNotFoundError:
        return count
    finally:
        os.close(fd)
