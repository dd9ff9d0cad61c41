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
_PROG_GET_FD_BY_ID = 13
_OBJ_GET_INFO = 15
_LINK_GET_NEXT_ID = 31
_RAW_TRACEPOINT = 17
_RETURN_0 = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
_INFO_NAME = 64  # offset of bpf_prog_info.name
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


def program_names(prefix: str = "") -> dict[int, str]:
    """Loaded programs by id, those whose name (15 letters of it) begins with `prefix`."""
    names: dict[int, str] = {}
    for number in _ids(_PROG_GET_NEXT_ID):
        try:
            fd, _ = _bpf(_PROG_GET_FD_BY_ID, struct.pack("<I", number))
        except FileNotFoundError:
            continue  # gone since
        info = ctypes.create_string_buffer(256)
        try:
            _bpf(_OBJ_GET_INFO, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
        finally:
            os.close(fd)
        name = info.raw[_INFO_NAME : _INFO_NAME + 16].split(b"\0")[0].decode()
        if name.startswith(prefix):
            names[number] = name
    return names


def link_ids() -> list[int]:
    """Ids of all BPF links."""
    return _ids(_LINK_GET_NEXT_ID)
