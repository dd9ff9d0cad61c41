"""A process held to a part of a processor, as by the CPU limit of a container."""

from __future__ import annotations

import os
from pathlib import Path

V1 = Path("/sys/fs/cgroup/cpu")
V2 = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000


class Quota:
    """A control group with a CPU quota that can be set and lifted; `with` makes and removes it."""

    def __init__(self, name: str = "ttft-quota") -> None:
        self._first = (V1 / "cpu.cfs_quota_us").exists()
        self._group = (V1 if self._first else V2) / f"{name}-{os.getpid()}"

    def __enter__(self) -> Quota:
        if not self._first:
            (V2 / "cgroup.subtree_control").write_text("+cpu")
        self._group.mkdir()
        self.limit(10.0)  # so that it has one, that does not bite
        return self

    def add(self, pid: int) -> None:
        """Moves a process in; its later children are born inside."""
        (self._group / "cgroup.procs").write_text(str(pid))

    def limit(self, processors: float) -> None:
        """How many processors it may use."""
        quota = round(processors * _PERIOD_US)
        if self._first:
            (self._group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (self._group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")

    def __exit__(self, *_: object) -> None:
        for pid in (self._group / "cgroup.procs").read_text().split():
            (self._group.parent / "cgroup.procs").write_text(pid)
        self._group.rmdir()
