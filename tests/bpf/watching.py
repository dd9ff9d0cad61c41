"""A watched workload and everything recorded about it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.workloads.fileio import FileIo
from tests.workloads.waiting import wait_for
from tracer.kernel.loader import Kernel, Total
from tracer.kernel.wire import Raw
from tracer.records import Exit, Insert, Op, Open, Span

T = TypeVar("T")
Key = tuple[int, int]


def key_of(path: Path) -> Key:
    """(kernel's device number, inode)."""
    stat = path.stat()
    return os.major(stat.st_dev) << 20 | os.minor(stat.st_dev), stat.st_ino


def latest(found: Sequence[Raw]) -> list[Raw]:
    """Without the spans and runs that a later one replaces."""
    kept: dict[object, Raw] = {}
    for index, raw in enumerate(found):
        key: object = index
        if isinstance(raw, Span):
            key = (raw.tid, raw.dev, raw.ino, raw.op, raw.ts_ns)
        elif isinstance(raw, Insert):
            key = (raw.dev, raw.ino, raw.ts_ns)
        kept[key] = raw
    return list(kept.values())


def collect(kernel: Kernel, pid: int) -> list[Raw]:
    """All records until the process has ended, replaced ones left out."""
    found: list[Raw] = []

    def ended() -> bool:
        found.extend(kernel.drain())
        return any(isinstance(raw, Exit) and raw.tgid == pid for raw in found)

    wait_for(ended, 10, f"the end of process {pid}")
    return latest([*found, *kernel.sweep(time.monotonic_ns())])


@dataclass(frozen=True)
class Watching:
    """`said`: what the workload counted itself. `pages`: inserted while it worked."""

    pid: int
    said: dict[str, Any]
    records: list[Raw]
    totals: dict[tuple[int, int, int, Op], Total]
    pages: dict[Key, int]

    @classmethod
    def run(
        cls, kernel: Kernel, binary: Path, what: str, count: int, size: int,
        files: Sequence[Path],
    ) -> Self:  # fmt: skip
        kernel.drain()
        before = kernel.inserted()
        with FileIo(binary, what, count, size, files) as work:
            kernel.watch(work.pid)
            if "minor" in kernel.probes.attached:
                kernel.probes.cover("minor", work.pid)
            said = work.go()
            work.end()
            records = collect(kernel, work.pid)
            pages = {k: n - before.get(k, 0) for k, n in kernel.inserted().items()}
            return cls(work.pid, said, records, kernel.totals(), pages)

    def of(self, kind: type[T], where: Callable[[T], bool] = lambda _: True) -> list[T]:
        return [raw for raw in self.records if isinstance(raw, kind) and where(raw)]

    def spans(self, path: Path, op: Op) -> list[Span]:
        key = key_of(path)
        return self.of(Span, lambda s: (s.dev, s.ino) == key and s.op == op)

    def opens(self, path: Path) -> list[Open]:
        key = key_of(path)
        return self.of(Open, lambda o: (o.dev, o.ino) == key)

    def total(self, path: Path, op: Op) -> Total | None:
        """The exact total, found equal to the sum of the spans."""
        total = self.totals.get((self.pid, *key_of(path), op))
        spans = self.spans(path, op)
        summed = Total(
            sum(s.count for s in spans), sum(s.bytes for s in spans), sum(s.busy_ns for s in spans)
        )
        assert total == (summed if spans else None)
        assert all(0 <= s.busy_ns <= s.end_ns - s.ts_ns for s in spans)
        return total
