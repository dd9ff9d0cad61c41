"""The unrelated process: small works on one processor, timed by itself (bench/unrelated.c)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("unrelated.c")
#: What it can do, and about how often in a millisecond.
WORKS = {
    "empty_syscall": ("empty system call", 6000),
    "read_1": ("1-byte read", 3000),
    "read_4k": ("4 KiB cached read", 2500),
    "read_128k": ("128 KiB cached read", 150),
    "fault": ("page fault, new memory", 1000),
    "file_fault": ("page fault, cached file", 600),
    "tcp_message": ("small TCP message and its answer, another port", 150),
    "fork_exec": ("fork, exec and wait", 1),
}
#: Short, so that what else runs disturbs few of them; long against the clock's own cost.
SLICE_MS = 5


@dataclass(frozen=True)
class Slice:
    """One piece of work: cost of one operation, and when it was done (CLOCK_MONOTONIC).

    `cpu_ns_per_op`: of the whole slice, preparations too; free of what else ran there meanwhile.
    """

    ns_per_op: float
    cpu_ns_per_op: float
    began_ns: int
    ended_ns: int


class Unrelated:
    """The running process."""

    def __init__(self, folder: Path, cpu: int) -> None:
        binary = compiled(folder)
        file = folder / "cached.bin"
        file.write_bytes(b"\x5a" * (2 << 20))
        self._process = subprocess.Popen(
            [binary, str(cpu), file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, work: str, slice_ms: int = SLICE_MS) -> Slice:
        """One slice: the same number of operations each time."""
        return self.count(work, WORKS[work][1] * slice_ms)

    def seconds(self, work: str) -> float:
        """Seconds that one slice took."""
        one = self.do(work)
        return (one.ended_ns - one.began_ns) / 1e9

    def count(self, work: str, operations: int) -> Slice:
        """So many operations."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{work} {operations}\n")
        self._process.stdin.flush()
        cost, cpu, began, ended = self._process.stdout.readline().split()
        return Slice(float(cost), float(cpu), int(began), int(ended))

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def compiled(folder: Path) -> Path:
    """The program, built into `folder`."""
    compiler = shutil.which("clang") or shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError("a C compiler is needed: apt-get install clang")
    folder.mkdir(parents=True, exist_ok=True)
    binary = folder / "unrelated"
    subprocess.run([compiler, "-O2", "-pthread", SOURCE, "-o", binary], check=True)
    return binary


@contextmanager
def workload(folder: Path, cpu: int) -> Iterator[Unrelated]:
    """The process, ended afterwards."""
    process = Unrelated(folder, cpu)
    try:
        yield process
    finally:
        process.close()


def processors() -> tuple[int, set[int]]:
    """One processor for the unrelated process, the others (the same, if it is alone) for servers.

    So the server's own threads do not push it aside: that is not what is asked here.
    """
    first, *others = sorted(os.sched_getaffinity(0))
    return first, set(others) or {first}
