"""Keeps libbpf away from the types of kernel modules, which only CAP_SYS_ADMIN may go through.

What the kernel itself lacks (an optional function of newer kernels) libbpf looks for in the
modules too. Before 1.5 it takes a refusal for a failure of the whole object, and "there are none"
for what it is. So a filter of our own gives that answer.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from tracer.errors import KernelError
from tracer.kernel.features import CAP_SYS_ADMIN, capabilities

_BTF_GET_NEXT_ID = 23
_NO_NEW_PRIVS, _SECCOMP, _MODE_FILTER = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16  # where struct seccomp_data has them
#: Machine: (AUDIT_ARCH_*, number of bpf()).
_CALLS = {"x86_64": (0xC000003E, 321), "aarch64": (0xC00000B7, 280)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _filter(arch: int, call: int) -> bytes:
    """bpf(BTF_GET_NEXT_ID) finds none; everything else goes on."""
    lines = [(_LOAD, 0, 0, _ARCH), (_JUMP_EQUAL, 0, 5, arch)]
    lines += [(_LOAD, 0, 0, _NUMBER), (_JUMP_EQUAL, 0, 3, call)]
    lines += [(_LOAD, 0, 0, _ARGUMENT), (_JUMP_EQUAL, 0, 1, _BTF_GET_NEXT_ID)]
    lines += [(_RETURN, 0, 0, _ERRNO | errno.ENOENT), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def without_module_types() -> None:
    """For this thread and all it starts, unless the process has CAP_SYS_ADMIN."""
    if capabilities() >> CAP_SYS_ADMIN & 1 or platform.machine() not in _CALLS:
        return
    code = _filter(*_CALLS[platform.machine()])
    program = _Program(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise KernelError(f"cannot set a system call filter: {reason}", "run ttftd as root")
