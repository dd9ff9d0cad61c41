"""Where programs keep what they compiled, by the environment of each process."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

from tracer.host import reach

_LENGTH = 128
#: What a process may have made as long as it likes is read only so far.
_ENVIRONMENT_MAX = 1 << 20
_USERS_MAX = 256 << 10
#: The kernel's table of folders is as large.
_FOLDERS_MAX = 1024
#: The kernel opens nothing by a longer path.
_PATH_MAX = 4096
#: What of the environment is looked at; nothing else of it is kept.
_HOMES = (b"HOME", b"XDG_CACHE_HOME")
#: (variable that names the folder, what follows it).
_NAMED = (
    (b"MESA_SHADER_CACHE_DIR", b""), (b"MESA_GLSL_CACHE_DIR", b""), (b"CUDA_CACHE_PATH", b""),
    (b"TRITON_CACHE_DIR", b""), (b"TRITON_HOME", b"/.triton/cache"),
    (b"TORCHINDUCTOR_CACHE_DIR", b""),
    (b"FLASHINFER_WORKSPACE_BASE", b"/.cache/flashinfer"), (b"AMD_COMGR_CACHE_DIR", b""),
    (b"VLLM_CACHE_ROOT", b""), (b"__GL_SHADER_DISK_CACHE_PATH", b""),
)  # fmt: skip
#: Below a home folder. As a beginning: `mesa_shader_cache` stands for `mesa_shader_cache_db` too.
_IN_HOME = (b"/.nv/ComputeCache", b"/.triton/cache")
#: Below $XDG_CACHE_HOME, or ~/.cache.
_IN_CACHE = (
    b"/mesa_shader_cache", b"/flashinfer", b"/comgr", b"/vllm/torch_compile_cache",
    b"/nvidia/GLCache", b"/radv_builtin_shaders",
)  # fmt: skip
_ANYWHERE = (b"/tmp/torchinductor_",)


def _environment(tgid: int) -> dict[bytes, bytes]:
    try:
        raw = reach.proc_file(tgid, "environ", _ENVIRONMENT_MAX) or b""
    except OSError:
        return {}
    wanted = {*_HOMES, *(name for name, _ in _NAMED)}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0"))
    return {name: value for name, _, value in pairs if name in wanted}


def _home_of_user(tgid: int) -> bytes | None:
    """The home folder of its user, as its own file of users says: some ask that first."""
    try:
        uid = os.stat(f"/proc/{tgid}").st_uid
    except OSError:
        return None
    work = partial(reach.content, tgid, "/etc/passwd", _USERS_MAX)
    users = reach.PATIENCE.ask(tgid, "/etc/passwd", work) or b""
    rows = (line.split(b":") for line in users.split(b"\n"))
    return next((row[5] for row in rows if len(row) > 5 and row[2] == b"%d" % uid), None)


def folders(environment: Mapping[bytes, bytes], home: bytes | None) -> tuple[bytes, ...]:
    """Beginnings of the paths of files in compile caches. `home`: as the user's entry has it."""
    found = [environment[name] + rest for name, rest in _NAMED if environment.get(name)]
    homes = [h for h in (environment.get(b"HOME"), home) if h]
    found += [h + rest for h in homes for rest in _IN_HOME]
    caches = [environment.get(b"XDG_CACHE_HOME"), *(h + b"/.cache" for h in homes)]
    found += [c + rest for c in caches if c for rest in _IN_CACHE]
    usable = (f for f in (*found, *_ANYWHERE) if f.startswith(b"/") and 1 < len(f) < _PATH_MAX)
    return tuple(dict.fromkeys(usable))


def folders_of(tgid: int) -> tuple[bytes, ...]:
    """Those of a running process, as it names them."""
    return folders(_environment(tgid), _home_of_user(tgid))


class Table(Protocol):
    """The kernel side's (tracer/kernel/maps.py)."""

    def put(self, key: bytes, value: bytes) -> None: ...


class Folders:
    """Folders as the kernel knows them, by number."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._names: list[bytes] = []

    def add(self, names: Iterable[bytes]) -> None:
        """Tell the kernel of those it does not know yet."""
        for name in names:
            if name in self._names or len(self._names) >= _FOLDERS_MAX:
                continue
            path = name[:_LENGTH]
            key = struct.pack("<I", 8 * len(path)) + path.ljust(_LENGTH, b"\0")
            self._table.put(key, struct.pack("<I", len(self._names)))
            self._names.append(name)

    def name(self, number: int) -> str:
        """As text: what is not UTF-8 is replaced."""
        known = self._names[number] if number < len(self._names) else b"?"
        return known.decode("utf-8", "replace")
