"""One process, read from /proc. Every function answers None for a process that is gone.

What waits for a process's memory map or exec is read with patience (reach.py): any process of the
host may be asked, from threads that may not wait.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tracer.host import reach
from tracer.records import Command, Process
from tracer.servers import parse_command

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_ARGV_LIMIT = 1 << 18
_STAT_LIMIT = 4096


def readlink(link: str) -> str:
    """Where it points, as text in any locale: what is not UTF-8 is replaced. Raises OSError."""
    return os.readlink(link.encode()).decode("utf-8", "replace")


def link(tgid: int, name: str) -> str | None:
    """Where `exe`, `cwd` and the like of /proc/TGID point."""
    try:
        return reach.guarded(tgid, lambda: readlink(f"/proc/{reach.speaker(tgid) or tgid}/{name}"))
    except OSError:
        return None


def exe(tgid: int) -> str | None:
    return link(tgid, "exe")


def argv(tgid: int) -> list[str]:
    """Arguments, empty when unreadable; at most 256 KiB are looked at."""
    return _arguments(_file(tgid, "cmdline", _ARGV_LIMIT) or b"")


def _arguments(raw: bytes) -> list[str]:
    return [a.decode("utf-8", "replace") for a in raw.split(b"\0")[:-1]]


def program(tgid: int) -> tuple[str | None, list[str]] | None:
    """`exe` and `argv`, in one look: at the start all processes of the host are asked.

    None: it does not answer; of one that is gone nothing is known.
    """
    teller = reach.speaker(tgid)
    if teller is None:  # a thread of the kernel's, of which there may be thousands
        return None, []

    def work() -> tuple[str | None, list[str]]:
        place = None
        with suppress(OSError):
            place = readlink(f"/proc/{teller}/exe")
        with open(f"/proc/{teller}/cmdline", "rb") as file:
            return place, _arguments(file.read(_ARGV_LIMIT))

    try:
        return reach.PATIENCE.ask(tgid, "program", work, times=reach.IDENTITY_TIMES)
    except OSError:
        return None, []


def comm(tgid: int) -> str:
    try:
        return Path(f"/proc/{tgid}/comm").read_text("utf-8", "replace").rstrip("\n")
    except OSError:
        return "?"


def _file(tgid: int, name: str, limit: int) -> bytes | None:
    try:
        return reach.proc_file(tgid, name, limit)
    except OSError:
        return None


def ppid(tgid: int) -> int | None:
    """From `status`, which never waits for the process."""
    try:
        with open(f"/proc/{tgid}/status", "rb") as file:
            line = next((line for line in file if line.startswith(b"PPid:")), b"")
    except OSError:
        return None
    return int(line.split()[1]) if line else None


def start_ns(tgid: int) -> int | None:
    """When it was started, to the clock tick (10 ms), on the monotonic clock of a host
    that never slept."""
    # Fields from `state` (the third) on; the name before may hold anything.
    fields = (_file(tgid, "stat", _STAT_LIMIT) or b"").rpartition(b")")[2].split()
    return int(fields[19]) * _TICK_NS if fields else None


def rss_bytes(tgid: int) -> int | None:
    """Memory that is resident."""
    teller = reach.speaker(tgid)
    try:
        fields = [] if teller is None else Path(f"/proc/{teller}/statm").read_bytes().split()
    except OSError:
        return None
    return int(fields[1]) * os.sysconf("SC_PAGESIZE") if fields else None


def read_counts(tgid: int) -> tuple[int, int] | None:
    """Bytes it has read by system calls, and bytes that storage gave it."""
    text = _file(tgid, "io", _STAT_LIMIT)
    if not text:
        return None
    counts = dict(line.split(": ", 1) for line in text.decode("ascii").splitlines())
    return int(counts["rchar"]), int(counts["read_bytes"])


def command(tgid: int, *, child: bool) -> Command | None:
    return parse_command(*(program(tgid) or (None, [])), child=child)


def pids() -> list[int]:
    """All processes there are, in order."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def descendants(tgid: int) -> list[int]:
    """All living descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for other in pids():
        children.setdefault(ppid(other) or 0, []).append(other)
    found = [tgid]
    for parent in found:
        found += (child for child in children.get(parent, ()) if child not in found)
    return found[1:]


def process_record(tgid: int, now_ns: int, *, child: bool) -> Process | None:
    """The context record of a living process; None if it is gone, or without memory: one that ends
    gives that up before the kernel tells of its end, and its sockets after."""
    started, parent = start_ns(tgid), ppid(tgid)
    if started is None or parent is None or reach.speaker(tgid) is None:
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
        for inode in _sockets(tgid):
            owners.setdefault(inode, tgid)
    return owners


def _sockets(tgid: int) -> list[int]:
    """Inodes of the sockets it has; of a process that has too many, or hangs, some."""
    found: list[int] = []

    def work() -> None:
        folder = f"/proc/{reach.speaker(tgid) or tgid}/fd"
        for name in os.listdir(folder):
            with suppress(OSError):
                target = readlink(f"{folder}/{name}")
                if target.startswith("socket:["):
                    found.append(int(target[8:-1]))

    with suppress(OSError):
        reach.guarded(tgid, work)
    return found[:]


def netns(tgid: int) -> int:
    """Inode number of its network namespace; 0 when unknown."""
    return namespace(tgid, "net")


def namespace(tgid: int, kind: str) -> int:
    """Inode number of a namespace it is in (`net`, `mnt`); 0 when unknown."""

    def work() -> int:
        return os.stat(f"/proc/{reach.speaker(tgid) or tgid}/ns/{kind}").st_ino

    try:
        return reach.guarded(tgid, work) or 0
    except OSError:
        return 0
