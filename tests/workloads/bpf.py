"""What this kernel lets us do with BPF, and what of it is loaded now (bpf(2) by hand).

Apart from the loader under test on purpose: a reference that the tool did not make.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

BTF = Path("/sys/kernel/btf/vmlinux")
_NR_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD = 5
_PROG_GET_NEXT_ID = 11
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


def held(pid: int) -> tuple[set[int], set[int]]:
    """Ids of the programs and of the links that a process has descriptors for."""
    programs: set[int] = set()
    links: set[int] = set()
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = info.read_text().splitlines()
        except FileNotFoundError:
            continue  # closed since
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        if "link_id" in fields:
            links.add(int(fields["link_id"]))
        if "prog_id" in fields:
            programs.add(int(fields["prog_id"]))
    return programs, links
