"""Where programs keep what they compiled, by the environment of each process."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from functools import partial

from tracer.host import reach
from tracer.kernel.maps import Table

_LENGTH = 128
#: What a process may have made as long as it likes is read only so far.
_ENVIRONMENT_MAX = 1 << 20
_USERS_MAX = 256 << 10
#: The kernel's table of folders is as large.
_FOLDERS_MAX = 1024
#: What of the environment is looked at; nothing else of it is kept.
_HOMES = ("HOME", "XDG_CACHE_HOME")
#: (variable that names the folder, what follows it).
_NAMED = (
    ("MESA_SHADER_CACHE_DIR", ""), ("MESA_GLSL_CACHE_DIR", ""), ("CUDA_CACHE_PATH", ""),
    ("TRITON_CACHE_DIR", ""), ("TRITON_HOME", "/.triton/cache"), ("TORCHINDUCTOR_CACHE_DIR", ""),
    ("FLASHINFER_WORKSPACE_BASE", "/.cache/flashinfer"), ("AMD_COMGR_CACHE_DIR", ""),
    ("VLLM_CACHE_ROOT", ""), ("__GL_SHADER_DISK_CACHE_PATH", ""),
)  # fmt: skip
#: Below a home folder. As a beginning: `mesa_shader_cache` stands for `mesa_shader_cache_db` too.
_IN_HOME = ("/.nv/ComputeCache", "/.triton/cache")
#: Below $XDG_CACHE_HOME, or ~/.cache.
_IN_CACHE = (
    "/mesa_shader_cache", "/flashinfer", "/comgr", "/vllm/torch_compile_cache", "/nvidia/GLCache",
    "/radv_builtin_shaders",
)  # fmt: skip
_ANYWHERE = ("/tmp/torchinductor_",)  # noqa: S108


def _environment(tgid: int) -> dict[str, str]:
    try:
        raw = reach.proc_file(tgid, "environ", _ENVIRONMENT_MAX) or b""
    except OSError:
        return {}
    wanted = {*_HOMES, *(name for name, _ in _NAMED)}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0"))
    return {
        key: value.decode("utf-8", "surrogateescape")
        for name, _, value in pairs
        if (key := name.decode("utf-8", "replace")) in wanted
    }


def _home_of_user(tgid: int) -> str | None:
    """The home folder of its user, as its own file of users says: some ask that first."""
    try:
        uid = os.stat(f"/proc/{tgid}").st_uid
    except OSError:
        return None
    work = partial(reach.text, tgid, "/etc/passwd", _USERS_MAX)
    users = reach.PATIENCE.ask(tgid, "/etc/passwd", work) or ""
    rows = (line.split(":") for line in users.splitlines())
    return next((row[5] for row in rows if len(row) > 5 and row[2] == str(uid)), None)


def folders(environment: Mapping[str, str], home: str | None) -> tuple[str, ...]:
    """Beginnings of the paths of files in compile caches. `home`: as the user's entry has it."""
    found = [environment[name] + rest for name, rest in _NAMED if environment.get(name)]
    homes = [h for h in (environment.get("HOME"), home) if h]
    found += [h + rest for h in homes for rest in _IN_HOME]
    caches = [environment.get("XDG_CACHE_HOME"), *(f"{h}/.cache" for h in homes)]
    found += [c + rest for c in caches if c for rest in _IN_CACHE]
    return tuple(dict.fromkeys(f for f in (*found, *_ANYWHERE) if f.startswith("/") and len(f) > 1))


def folders_of(tgid: int) -> tuple[str, ...]:
    """Those of a running process, as it names them."""
    return folders(_environment(tgid), _home_of_user(tgid))


class Folders:
    """Folders as the kernel knows them, by number."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._names: list[str] = []

    def add(self, names: Iterable[str]) -> None:
        """Tell the kernel of those it does not know yet."""
        for name in names:
            if name in self._names or len(self._names) >= _FOLDERS_MAX:
                continue
            path = os.fsencode(name)[:_LENGTH]
            key = struct.pack("<I", 8 * len(path)) + path.ljust(_LENGTH, b"\0")
            self._table.put(key, struct.pack("<I", len(self._names)))
            self._names.append(name)

    def name(self, number: int) -> str:
        return self._names[number] if number < len(self._names) else "?"
