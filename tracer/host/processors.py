"""Processor time of watched processes and what their threads waited for it, from /proc.

What a process ran is its own clock's, which has all of its threads, those that ended too. What they
waited is known of each thread alone, while there is one: so it is summed from look to look, and not
known where threads that did much of the work are not there to tell.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tracer.records import Ran

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
#: Of a process with more threads it is not known what they waited: a look has to stay short.
_MAX_THREADS = 512
#: Threads that ended, or were too short to be seen, may have had so much of a process's time: a
#: tenth, or what its clock may be ahead of theirs, which are read later.
_GONE_PART, _GONE_NS = 10, 20_000_000
#: The clock of a process, as clock_gettime() takes it: CPUCLOCK_SCHED of that process.
_SCHED = 2
#: Of the first line of /proc/stat: user, nice, system; then idle, iowait; irq, softirq.
_BUSY = (1, 2, 3, 6, 7)
#: Where the tree with the CPU quotas is, by the name of its controller in /proc/PID/cgroup.
_TREES = {"cpu": Path("/sys/fs/cgroup/cpu"), "": Path("/sys/fs/cgroup")}

Threads = dict[str, tuple[int, int]]
"""Of each thread: ns it ran, ns it waited for a processor."""


class _Seen(msgspec.Struct):
    """Of one process: what the last look found, and sums until then.

    `threads` None: not all of them were seen. `held`: by each of its quotas, ns.
    """

    ran_ns: int
    looks: int = 0
    threads: Threads | None = None
    waited_ns: int = 0
    held: dict[Path, int] = msgspec.field(default_factory=dict)
    throttled_ns: int = 0


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
        quotas = _Quotas()
        found = []
        for tgid in tgids:
            ran_ns, threads = _ran_ns(tgid), _threads(tgid)
            if ran_ns is None:
                continue
            seen = known.get(tgid)
            # Another process may have the number by now: its clock begins anew.
            if seen is None or ran_ns < seen.ran_ns:
                seen = _Seen(ran_ns, looks=0 if seen is None else 1)
            self._seen[tgid] = seen
            found.append(
                Ran(
                    ts_ns=now_ns,
                    tgid=tgid,
                    ran_ns=ran_ns,
                    waited_ns=_waited(seen, ran_ns, threads),
                    host_ns=host_ns,
                    throttled_ns=_throttled(seen, quotas.of(tgid)),
                )
            )
        return found


def _waited(seen: _Seen, ran_ns: int, threads: Threads | None) -> int | None:
    """Add what its threads waited since the last look; the sum, None where that is not known."""
    first, before, passed_ns = not seen.looks, seen.threads, ran_ns - seen.ran_ns
    seen.looks += 1
    seen.ran_ns, seen.threads = ran_ns, threads
    if threads is None or (before is None and not first):
        return None
    if before is None:
        return 0
    accounted_ns = 0
    for tid, (ran, waited) in threads.items():
        old = before.get(tid, (0, 0))
        if ran < old[0] or waited < old[1]:  # a new one has the number of one that ended
            old = (0, 0)
        accounted_ns += ran - old[0]
        seen.waited_ns += waited - old[1]
    gone_ns = passed_ns - accounted_ns
    return None if gone_ns > max(_GONE_NS, passed_ns // _GONE_PART) else seen.waited_ns


def _throttled(seen: _Seen, held: dict[Path, int]) -> int | None:
    """Add how long the tightest of its quotas held it back since the last look, of each processor;
    the sum, None where it has no quota, or has others than before."""
    before, seen.held = seen.held, held
    if not held or (before and before.keys() != held.keys()):
        return None
    seen.throttled_ns += max(0, *(ns - before.get(path, ns) for path, ns in held.items()))
    return seen.throttled_ns


def _ran_ns(tgid: int) -> int | None:
    """Processor time of a process and all of its threads so far; None: it is gone."""
    try:
        return time.clock_gettime_ns((~tgid << 3) | _SCHED)
    except OSError:
        return None


def _threads(tgid: int) -> Threads | None:
    """Of each thread of a process; None where it has too many, or not all could be read."""
    try:
        folder = os.open(f"/proc/{tgid}/task", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        names = os.listdir(folder)
        if not 0 < len(names) <= _MAX_THREADS:
            return None
        counts = ((tid, _schedstat(tid, folder)) for tid in names)
        return {tid: found for tid, found in counts if found is not None} or None
    except OSError:
        return None
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


class _Quotas:
    """Of one look: control groups with a CPU quota. Processes share them."""

    def __init__(self) -> None:
        self._known: dict[Path, int | None] = {}

    def of(self, tgid: int) -> dict[Path, int]:
        """How long each quota over a process held its group back, of each processor, ns."""
        found = {folder: self._held(folder) for folder in _folders(tgid)}
        return {folder: ns for folder, ns in found.items() if ns is not None}

    def _held(self, folder: Path) -> int | None:
        if folder not in self._known:
            self._known[folder] = _held_ns(folder) if _has_quota(folder) else None
        return self._known[folder]


def _folders(tgid: int) -> Iterator[Path]:
    """Control groups of a process, its own and those above, that may have a quota."""
    for line in _groups(tgid).split("\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(","):
            tree = _TREES.get(name)
            if tree is None:
                continue
            for group in (Path(path), *Path(path).parents):
                yield tree / str(group).lstrip("/")


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


def _held_ns(folder: Path) -> int | None:
    """How long a group was held back, of each processor; None where it is not told."""
    try:
        lines = (folder / "cpu.stat").read_text("ascii").splitlines()
    except OSError:
        return None
    counts = dict(line.split(" ", 1) for line in lines if " " in line)
    if "throttled_usec" in counts:
        return int(counts["throttled_usec"]) * 1000
    return int(counts["throttled_time"]) if "throttled_time" in counts else None
