"""One process, read from /proc. Every function answers None for a process that is gone.

What waits for a process's memory map or exec is read with patience (reach.py): any process of the
host may be asked, from threads that may not wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from tracer.host import reach
from tracer.records import Command, Process
from tracer.servers import parse_command

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_ARGV_LIMIT = 1 << 18
_IO_LIMIT = 4096
_LISTENING = "0A"  # as /proc/net/tcp writes it


def readlink(link: str) -> str:
    """Where it points, as text in any locale: what is not UTF-8 is replaced. Raises OSError."""
    return os.readlink(link.encode()).decode("utf-8", "replace")


def exe(tgid: int) -> str | None:
    try:
        return readlink(f"/proc/{tgid}/exe")
    except OSError:
        return None


def argv(tgid: int) -> list[str]:
    """Arguments, empty when unreadable; at most 256 KiB are looked at."""
    try:
        raw = reach.proc_file(tgid, "cmdline", _ARGV_LIMIT) or b""
    except OSError:
        return []
    return [a.decode("utf-8", "replace") for a in raw.split(b"\0")[:-1]]


def comm(tgid: int) -> str:
    try:
        return Path(f"/proc/{tgid}/comm").read_text("utf-8", "replace").rstrip("\n")
    except OSError:
        return "?"


def _stat(tgid: int) -> list[str] | None:
    """Fields of /proc/TGID/stat from `state` (field 3) on; the name before may hold anything."""
    try:
        text = Path(f"/proc/{tgid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def ppid(tgid: int) -> int | None:
    fields = _stat(tgid)
    return int(fields[1]) if fields else None


def start_ns(tgid: int) -> int | None:
    """When it was started, to the clock tick (10 ms), on the monotonic clock of a host
    that never slept."""
    fields = _stat(tgid)
    return int(fields[19]) * _TICK_NS if fields else None


def rss_bytes(tgid: int) -> int | None:
    fields = _stat(tgid)
    return int(fields[21]) * os.sysconf("SC_PAGESIZE") if fields else None


def read_counts(tgid: int) -> tuple[int, int] | None:
    """Bytes it has read by system calls, and bytes that storage gave it."""
    try:
        text = reach.proc_file(tgid, "io", _IO_LIMIT)
    except OSError:
        return None
    if not text:
        return None
    counts = dict(line.split(": ", 1) for line in text.decode("ascii").splitlines())
    return int(counts["rchar"]), int(counts["read_bytes"])


def command(tgid: int, *, child: bool) -> Command | None:
    return parse_command(exe(tgid), argv(tgid), child=child)


def descendants(tgid: int) -> list[int]:
    """All living descendants, parents before children."""
    try:
        return [p.pid for p in psutil.Process(tgid).children(recursive=True)]
    except psutil.Error:
        return []


def process_record(tgid: int, now_ns: int, *, child: bool) -> Process | None:
    """The context record of a living process; None if it is gone."""
    started, parent = start_ns(tgid), ppid(tgid)
    if started is None or parent is None:
        return None
    return Process(
        ts_ns=now_ns,
        tgid=tgid,
        ppid=parent,
        start_ns=started,
        comm=comm(tgid),
        exe=exe(tgid),
        command=command(tgid, child=child),
    )


def socket_owners(tgids: list[int]) -> dict[int, int]:
    """Socket inode to the first of `tgids` that holds it."""
    owners: dict[int, int] = {}
    for tgid in tgids:
        for target in _links(f"/proc/{tgid}/fd"):
            if target.startswith("socket:["):
                owners.setdefault(int(target[8:-1]), tgid)
    return owners


def listens(tgid: int, port: int) -> bool:
    """Whether it holds a TCP socket that listens on `port` in its network namespace."""
    inodes: set[int] = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/{tgid}/net/{table}").read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, rows):
            if fields[3] == _LISTENING and fields[1].endswith(f":{port:04X}"):
                inodes.add(int(fields[9]))
    return bool(inodes) and not inodes.isdisjoint(socket_owners([tgid]))


def _links(folder: str) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield readlink(f"{folder}/{name}")
        except OSError:
            continue


def netns(tgid: int) -> int:
    """Inode number of its network namespace; 0 when unknown."""
    try:
        return os.stat(f"/proc/{tgid}/ns/net").st_ino
    except OSError:
        return 0
