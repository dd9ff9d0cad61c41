"""Reads of some processes held to a slow disk's speed, by cgroup v1 blkio or v2 io."""

from __future__ import annotations

import os
from pathlib import Path

from tests.workloads.waiting import wait_for

V1 = Path("/sys/fs/cgroup/blkio")
V2 = Path("/sys/fs/cgroup")


class ThrottleError(Exception):
    """This machine cannot hold reads back, with the reason."""


def whole_disk(path: Path) -> str:
    """`MAJ:MIN` of the disk under the file system of `path`; a partition has no throttle."""
    device = path.stat().st_dev
    if os.major(device) == 0:  # btrfs, overlay and others have numbers of their own
        device = _mounted_device(path)
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if not node.exists():
        raise ThrottleError(f"no block device under {path}")
    if (node / "partition").exists():
        node = node.parent
    return (node / "dev").read_text().strip()


def _mounted_device(path: Path) -> int:
    wanted = f"{os.major(path.stat().st_dev)}:{os.minor(path.stat().st_dev)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        source = rest.split()[1]
        if fields.split()[2] == wanted and source.startswith("/dev/"):
            return Path(source).stat().st_rdev
    raise ThrottleError(f"no block device under {path}")


class Throttle:
    """A cgroup with a read limit that can be set and lifted; `with` makes and removes it."""

    def __init__(self, path: Path, name: str = "ttft-demo") -> None:
        """`path`: any file on the disk. ThrottleError where it cannot be done."""
        self._disk = whole_disk(path)
        self._enabled = False
        if (V1 / "blkio.throttle.read_bps_device").exists():
            self.by = "blkio.throttle (cgroup v1)"
            self._root, self._file = V1, "blkio.throttle.read_bps_device"
            self._none = "0"
        elif "io" in _words(V2 / "cgroup.controllers"):
            self.by = "io.max (cgroup v2)"
            self._root, self._file = V2, "io.max"
            self._none = "rbps=max"
        else:
            raise ThrottleError("no cgroup controller for block devices (v1 blkio or v2 io)")
        self._group = self._root / f"{name}-{os.getpid()}"

    def __enter__(self) -> Throttle:
        try:
            if self._root == V2 and "io" not in _words(V2 / "cgroup.subtree_control"):
                (V2 / "cgroup.subtree_control").write_text("+io")
                self._enabled = True
            self._group.mkdir()
            if not (self._group / self._file).exists():
                raise ThrottleError(f"no {self._file} in {self._group}")
        except OSError as error:
            self.close()
            raise ThrottleError(f"{self._group}: {error.strerror}") from None
        return self

    def add(self, pid: int) -> None:
        """Moves a process in; its later children are born inside."""
        (self._group / "cgroup.procs").write_text(str(pid))

    def limit(self, bytes_per_s: int | None) -> None:
        """Sets the limit; None lifts it."""
        if bytes_per_s is None:
            value = self._none
        else:
            value = str(bytes_per_s) if self._root == V1 else f"rbps={bytes_per_s}"
        (self._group / self._file).write_text(f"{self._disk} {value}")

    def close(self) -> None:
        """Removes the group once its processes are gone (at most 10 s)."""
        if self._group.exists():
            procs = self._group / "cgroup.procs"
            wait_for(lambda: not procs.read_text(), 10, f"{self._group} to empty")
            self._group.rmdir()
        if self._enabled:
            (V2 / "cgroup.subtree_control").write_text("-io")
            self._enabled = False

    def __exit__(self, *_: object) -> None:
        self.close()


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
