"""Processor time of watched processes and what their threads waited for it, from /proc.

A thread that ended takes its counts with it, so what is told is summed from look to look.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tracer.records import Ran

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
#: A process with more threads is looked at by so many of them: a look has to stay short.
_MAX_THREADS = 512
#: A process may be moved to another group, or its group be given a quota, while it runs.
_QUOTAS_EVERY_NS = 1_000_000_000
#: Of the first line of /proc/stat: user, nice, system; then idle, iowait; irq, softirq.
_BUSY = (1, 2, 3, 6, 7)
#: Where the tree with the CPU quotas is, by the name of its controller in /proc/PID/cgroup.
_TREES = {"cpu": Path("/sys/fs/cgroup/cpu"), "": Path("/sys/fs/cgroup")}


class _Seen(msgspec.Struct):
    """Of one process: counts of its threads at the last look, and their sum until then."""

    threads: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    ran_ns: int = 0
    waited_ns: int = 0
    quotas: tuple[Path, ...] = ()
    quotas_due_ns: int = 0


class Processors:
    """Looks at processes when asked; cheap enough for some times a second."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self, tgids: Iterable[int], now_ns: int) -> list[Ran]:
        """One record of each of these processes; others are forgotten."""
        host_ns = host_busy_ns()
        if host_ns is None:
            return []
        known, self._seen = self._seen, {}
        found = []
        for tgid in tgids:
            threads = _threads(tgid)
            if not threads:
                continue
            seen = self._seen[tgid] = known.get(tgid) or _Seen()
            _add(seen, threads)
            if now_ns >= seen.quotas_due_ns:
                seen.quotas = tuple(_quotas(tgid))
                seen.quotas_due_ns = now_ns + _QUOTAS_EVERY_NS
            found.append(
                Ran(
                    ts_ns=now_ns,
                    tgid=tgid,
                    ran_ns=seen.ran_ns,
                    waited_ns=seen.waited_ns,
                    host_ns=host_ns,
                    throttled_ns=_throttled_ns(seen.quotas),
                )
            )
        return found


def _add(seen: _Seen, threads: dict[str, tuple[int, int]]) -> None:
    for tid, (ran, waited) in threads.items():
        before = seen.threads.get(tid, (0, 0))
        seen.ran_ns += max(0, ran - before[0])
        seen.waited_ns += max(0, waited - before[1])
    seen.threads = threads


def _threads(tgid: int) -> dict[str, tuple[int, int]]:
    """Of each thread: ns it ran, ns it waited for a processor. Empty: the process is gone."""
    try:
        folder = os.open(f"/proc/{tgid}/task", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return {}
    try:
        names = os.listdir(folder)[:_MAX_THREADS]
        counts = ((tid, _schedstat(tid, folder)) for tid in names)
        return {tid: found for tid, found in counts if found is not None}
    except OSError:
        return {}
    finally:
        os.close(folder)


def _schedstat(tid: str, folder: int) -> tuple[int, int] | None:
    try:
        fd = os.open(f"{tid}/schedstat", os.O_RDONLY, dir_fd=folder)
    except OSError:
        return None
    try:
        fields = os.read(fd, 128).split()
    except OSError:
        return None
    finally:
        os.close(fd)
    return (int(fields[0]), int(fields[1])) if len(fields) >= 2 else None


def host_busy_ns() -> int | None:
    """Processor time that all programs of the host have used; None where it is not told."""
    try:
        with open("/proc/stat", "rb") as file:
            fields = file.readline().split()
    except OSError:
        return None
    if len(fields) <= max(_BUSY) or fields[0] != b"cpu":
        return None
    return sum(int(fields[n]) for n in _BUSY) * _TICK_NS


def _quotas(tgid: int) -> Iterator[Path]:
    """`cpu.stat` of the control groups of a process, its own and those above, that have a quota."""
    for line in _groups(tgid).split("\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(","):
            tree = _TREES.get(name)
            for group in (Path(path), *Path(path).parents) if tree else ():
                if tree and _has_quota(folder := tree / str(group).lstrip("/")):
                    yield folder / "cpu.stat"


def _groups(tgid: int) -> str:
    try:
        return os.fsdecode(Path(f"/proc/{tgid}/cgroup").read_bytes())
    except OSError:
        return ""


def _has_quota(folder: Path) -> bool:
    for name, none in (("cpu.max", "max"), ("cpu.cfs_quota_us", "-1")):
        try:
            return (folder / name).read_text("ascii").split()[0] != none
        except (OSError, IndexError):
            continue
    return False


def _throttled_ns(stats: Iterable[Path]) -> int | None:
    """How long the tightest of these quotas held its processes back, of each processor."""
    found = []
    for path in stats:
        try:
            lines = path.read_text("ascii").splitlines()
        except OSError:
            continue
        counts = dict(line.split(" ", 1) for line in lines if " " in line)
        if "throttled_usec" in counts:
            found.append(int(counts["throttled_usec"]) * 1000)
        elif "throttled_time" in counts:
            found.append(int(counts["throttled_time"]))
    return max(found, default=None)
