"""Identity of large files: path, file system, device, format, share in the page cache.

A file is never opened here unless a watched process has it open or mapped, and never on a
network file system: a hung mount must not hang us. Others may be served by a process too
(FUSE), so each is asked with patience; and what a process can make as long as it likes
(mappings, mounts, descriptors) is looked through only so far.
"""

from __future__ import annotations

import ctypes
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice

from tracer.host import proc, reach
from tracer.host.mounts import LOOKS, NETWORK_FS, Mount, Mounts
from tracer.records import File

#: Files smaller than this are not watched (also in the kernel: ttft_min_file_size).
MIN_SIZE = 1 << 20
_SYS_CACHESTAT = 451  # the same on every architecture since it came (Linux 6.5)
#: Of a file of /proc, bytes: a process may map and mount as much as it likes.
_PROC_MAX = 16 << 20
_DESCRIPTORS_MAX = 16_384
_LOOK_S = 3.0


def format_of_magic(first: bytes) -> str | None:
    """Weights by content: `gguf`, `safetensors` (length, then a JSON object), `torch` (zip)."""
    if first[:4] == b"GGUF":
        return "gguf"
    if (
        len(first) >= 9
        and 2 <= int.from_bytes(first[:8], "little") < 1 << 32
        and first[8:9] == b"{"
    ):
        return "safetensors"
    if first[:4] in (b"ggml", b"ggjt", b"ggla"):
        return "ggml"
    return None


def format_of_name(path: str | None) -> str | None:
    """Weights by name, for files that were read before we came."""
    name = (path or "").rpartition("/")[2]
    if name.endswith(".gguf"):
        return "gguf"
    if name.endswith(".safetensors"):
        return "safetensors"
    if name.startswith("sha256-") and "/blobs/" in (path or ""):
        return "gguf"
    if name.endswith((".pt", ".pth")) or (name.endswith(".bin") and "model" in name):
        return "torch"
    return None


def _lines(path: str) -> Iterator[str]:
    """Lines of a file of /proc: names may hold all that str.splitlines() takes for a line end."""
    left = _PROC_MAX
    with open(path, "rb") as file:
        for line in file:
            yield line.decode("utf-8", "replace").removesuffix("\n")
            left -= len(line)
            if left <= 0:
                return


def _fdinfo(path: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in _lines(path) if ":" in line)


def mount_of(seen: Mounts, fd: int) -> Mount | None:
    """The mount that a descriptor of ours is on, if a process sees it; the file is not asked."""
    return seen.numbered(int(_fdinfo(f"/proc/self/fdinfo/{fd}").get("mnt_id", -1)))


def kernel_dev(st_dev: int) -> int:
    """`dev_t` as the kernel keeps it (major << 20 | minor) from what stat() gives."""
    return os.major(st_dev) << 20 | os.minor(st_dev)


def _opened_path(tgid: int, fd: int, dev: int, ino: int) -> str | None:
    """Where descriptor `fd` points, if it is still the same file."""

    def work() -> str | None:
        link = f"/proc/{reach.speaker(tgid) or tgid}/fd/{fd}"
        return proc.readlink(link) if os.stat(link).st_ino == ino else None

    try:
        return reach.PATIENCE.ask(tgid, dev, work)
    except OSError:
        return None


def _named_path(tgid: int, name: str) -> str | None:
    if not name:
        return None
    if name.startswith("/"):
        return os.path.normpath(name)
    folder = proc.link(tgid, "cwd")
    return name if folder is None else os.path.normpath(f"{folder}/{name}")


def identify(*, ts_ns: int, tgid: int, dev: int, ino: int, size: int, fd: int, name: str) -> File:
    """The record of a file a watched process just opened: path as that process sees it."""
    path = (_opened_path(tgid, fd, dev, ino) if fd >= 0 else None) or _named_path(tgid, name)
    key = (dev >> 20, dev & 0xFFFFF)
    # A container's image lies on a file system that only the host has mounted.
    mount = LOOKS.of(tgid, ts_ns, device=key).devices.get(key)
    mount = mount or LOOKS.of(os.getpid(), ts_ns, tgid, key).devices.get(key)
    return File(
        ts_ns=ts_ns,
        dev=dev,
        ino=ino,
        path=path,
        size=size,
        fmt=format_of_name(path),
        fs=mount.fs if mount else None,
        device=mount.source if mount else None,
    )


def _mapped(tgid: int) -> list[tuple[int, int, str]]:
    """(dev, ino, path) of the files a process has mapped, those with the longest mapping first."""
    try:
        text = reach.proc_file(tgid, "maps", _PROC_MAX) or b""
    except OSError:
        return []
    longest: dict[tuple[int, int, str], int] = {}
    for line in text.split(b"\n"):
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[4] != b"0":
            start, _, end = fields[0].partition(b"-")
            major, _, minor = fields[3].partition(b":")
            dev = int(major, 16) << 20 | int(minor, 16)
            file = (dev, int(fields[4]), fields[5].decode("utf-8", "replace"))
            longest[file] = max(longest.get(file, 0), int(end, 16) - int(start, 16))
    return sorted(longest, key=longest.__getitem__, reverse=True)


def _held(tgid: int, seen: Mounts) -> list[tuple[int, int, str]]:
    """(dev, ino, path) of the files a process has a descriptor of; no file is touched for it.

    Of a process that has too many, or hangs, some.
    """
    found: list[tuple[int, int, str]] = []

    def work() -> None:
        process = f"/proc/{reach.speaker(tgid) or tgid}"
        with os.scandir(f"{process}/fd") as entries:
            numbers = [entry.name for entry in islice(entries, _DESCRIPTORS_MAX)]
        for number in numbers:
            try:
                path = proc.readlink(f"{process}/fd/{number}")
                info = _fdinfo(f"{process}/fdinfo/{number}") if path.startswith("/") else {}
            except OSError:
                continue
            device = seen.numbers.get(int(info.get("mnt_id", -1)))
            if device is not None and "ino" in info:
                found.append((device[0] << 20 | device[1], int(info["ino"]), path))

    with suppress(OSError):
        reach.guarded(tgid, work)
    return found[:]


def _glance(tgid: int, path: str) -> os.stat_result:
    """What is at `path` for this process; nothing is opened."""
    named = reach.place(tgid, path)
    try:
        return os.fstat(named)
    finally:
        os.close(named)


def already_open(tgid: int, ts_ns: int) -> list[File]:
    """Large regular files a process has mapped or open, as it names them.

    Where each takes its time, those that are found in some seconds.
    """
    until_s = time.monotonic() + _LOOK_S
    seen = LOOKS.of(tgid, ts_ns)
    # A container's image lies on one of the host's.
    known = LOOKS.of(os.getpid(), ts_ns, tgid).devices | seen.devices
    found: dict[tuple[int, int], File] = {}
    for dev, ino, path in (*_held(tgid, seen), *_mapped(tgid)):
        if time.monotonic() > until_s:
            break
        mount = known.get((dev >> 20, dev & 0xFFFFF))
        if (dev, ino) in found or path.endswith(" (deleted)") or mount is None:
            continue
        if mount.fs in NETWORK_FS:
            continue  # not even a stat(): the server behind it may be gone
        try:
            info = reach.PATIENCE.ask(tgid, dev, partial(_glance, tgid, path))
        except OSError:
            continue
        if info is None:
            continue
        if stat.S_ISREG(info.st_mode) and info.st_ino == ino and info.st_size >= MIN_SIZE:
            found[dev, ino] = File(
                ts_ns=ts_ns, dev=dev, ino=ino, path=path, size=info.st_size,
                fmt=format_of_name(path), fs=mount.fs, device=mount.source,
            )  # fmt: skip
    return list(found.values())


class _Range(ctypes.Structure):
    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)


def cached_bytes(tgid: int, file: File) -> int | None:
    """Bytes of `file` in the page cache, through cachestat(); None where it cannot be known."""
    if file.path is None or file.fs is None or file.fs in NETWORK_FS:
        return None
    try:
        work = partial(_cached_bytes, tgid, file.path, file.ino)
        return reach.PATIENCE.ask(tgid, file.dev, work)
    except OSError:
        return None


def _cached_bytes(tgid: int, path: str, ino: int) -> int | None:
    fd = reach.read_regular(reach.place(tgid, path), ino, os.O_NOATIME)
    try:
        pages = (ctypes.c_uint64 * 5)()  # struct cachestat: nr_cache first
        whole = _Range(0, 0)
        if _libc.syscall(_SYS_CACHESTAT, fd, ctypes.byref(whole), ctypes.byref(pages), 0) != 0:
            return None
        return int(pages[0]) * 4096
    finally:
        os.close(fd)
