"""The root of the cgroup v2 hierarchy: a program attached there sees every socket of the host."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tracer.errors import KernelError
from tracer.kernel import namespaces

ADVICE = "mkdir -p /sys/fs/cgroup/unified; mount -t cgroup2 none /sys/fs/cgroup/unified"
_CONTAINER_ADVICE = "run ttftd on the host, or give its container the host's cgroups and processes"
#: The same numbers on x86-64 and arm64.
_SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 430, 431, 432
_CLOEXEC = 1
_CMD_CREATE = 6
_libc = ctypes.CDLL(None, use_errno=True)


def mounted() -> str | None:
    """A path to the hierarchy's root, or None.

    A container's own part of the hierarchy does not count; what the host's first process
    has mounted does.
    """
    own = None if namespaces.foreign("cgroup") else _mount("/proc/self/mountinfo", "")
    if own or namespaces.foreign("pid"):  # in which another process is the first
        return own
    return _mount("/proc/1/mountinfo", "/proc/1/root")


def _mount(table: str, prefix: str) -> str | None:
    """One that another mount hides does not count."""
    try:
        lines = os.fsdecode(Path(table).read_bytes()).split("\n")  # names may hold all but this
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 ") and before.split()[3] == "/":
            place = prefix + before.split()[4].replace("\\040", " ")
            if Path(place, "cgroup.procs").exists():
                return place
    return None


def refusal() -> str | None:
    """Why the root cannot be had where it is not mounted; None where ttftd can mount it itself."""
    if namespaces.foreign("cgroup"):
        return "only this container's own part is here"
    try:
        os.close(_call(_SYS_FSOPEN, b"cgroup2", _CLOEXEC))
    except OSError as error:
        return f"not mounted, and it may not be mounted for ttftd alone: {error.strerror}"
    return None


def advice() -> str:
    """What to do where the root cannot be had."""
    return _CONTAINER_ADVICE if namespaces.foreign("cgroup") else ADVICE


def open_root() -> int:
    """A descriptor of the root; where it is not mounted, of a mount that no table shows."""
    place = mounted()
    if place is not None:
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    why = refusal()
    if why is None:
        try:
            return _mount_unseen()
        except OSError as error:
            why = f"not mounted, and mounting it for ttftd alone failed: {error.strerror}"
    raise KernelError(f"requests cannot be seen without the cgroup v2 root: {why}", advice())


def _mount_unseen() -> int:
    """Nothing of the host changes by it, and it goes with its descriptor."""
    context = _call(_SYS_FSOPEN, b"cgroup2", _CLOEXEC)
    try:
        _call(_SYS_FSCONFIG, context, _CMD_CREATE, None, None, 0)
        return _call(_SYS_FSMOUNT, context, _CLOEXEC, 0)
    finally:
        os.close(context)


def _call(number: int, *arguments: bytes | int | None) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
