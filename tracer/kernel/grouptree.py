"""The cgroup v2 hierarchy: whose group is where, by inode and path."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: So many folders are looked through for a group of which only the inode is known.
WALK_MAX = 4096
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class Group:
    """A control group. `inode`: of its folder, which is also its number in the kernel.

    `path` begins at the root of the hierarchy, which is `/`; `shown` is the same to be told: who
    makes groups may name them as he likes, and what is not UTF-8 can be written nowhere.
    """

    inode: int
    path: str

    @property
    def shown(self) -> str:
        return os.fsencode(self.path).decode("utf-8", "replace")

    def within(self, other: Group) -> bool:
        """Whether it is `other` or lies below it."""
        return f"{self.path.rstrip('/')}/".startswith(f"{other.path.rstrip('/')}/")


#: Nobody can tell which.
UNKNOWN = Group(0, "")


def outermost(groups: Iterable[Group]) -> list[Group]:
    """Those that lie below no other one."""
    found: list[Group] = []
    for group in sorted(groups, key=lambda g: (len(g.path), g.path)):
        if not any(group.within(other) for other in found):
            found.append(group)
    return found


class GroupTree:
    """The hierarchy below a descriptor of its root, which it closes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.root = Group(os.fstat(fd).st_ino, "/")

    def close(self) -> None:
        os.close(self._fd)

    def open(self, group: Group) -> int:
        """A descriptor of its folder; FileNotFoundError where it is gone."""
        fd = os.open(_below(group.path), _FLAGS, dir_fd=self._fd)
        if os.fstat(fd).st_ino != group.inode:  # another one of the same name
            os.close(fd)
            raise FileNotFoundError(group.path)
        return fd

    def there(self, group: Group) -> bool:
        """Whether it still is."""
        return self._inode(group.path) == group.inode

    def of_process(self, tgid: int) -> Group | None:
        """The group a process is in now; None where the process is gone."""
        try:
            text = Path(f"/proc/{tgid}/cgroup").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError:
            return UNKNOWN
        rows = (row[3:] for row in text.split(b"\n") if row.startswith(b"0::"))
        path = os.fsdecode(next(rows, b"/"))  # without a row nobody ever used the hierarchy
        if path.startswith("/.."):  # outside of the part that a namespace shows
            return UNKNOWN
        inode = self._inode(path)
        return None if inode is None else Group(inode, path)

    def by_inode(self, inode: int, near: Iterable[Group | None] = ()) -> Group:
        """The group with this inode: of those `near`, else by a walk; UNKNOWN if not found."""
        for group in (self.root, *near):
            if group is not None and group.inode == inode:
                return group
        return self._walk(inode)

    def _walk(self, inode: int) -> Group:
        waiting, seen = deque([""]), 0
        while waiting and seen < WALK_MAX:
            above = waiting.popleft()
            seen += 1
            for name, number in self._folders(above):
                if number == inode:
                    return Group(inode, f"{above}/{name}")
                waiting.append(f"{above}/{name}")
        return UNKNOWN

    def _folders(self, path: str) -> list[tuple[str, int]]:
        """(name, inode) of the groups right below."""
        with contextlib.suppress(OSError):  # it went meanwhile
            fd = os.open(_below(path), _FLAGS, dir_fd=self._fd)
            try:
                with os.scandir(fd) as entries:
                    return [(e.name, e.inode()) for e in entries if e.is_dir(follow_symlinks=False)]
            finally:
                os.close(fd)
        return []

    def _inode(self, path: str) -> int | None:
        try:
            return os.stat(_below(path), dir_fd=self._fd).st_ino
        except OSError:
            return None


def _below(path: str) -> str:
    return path.lstrip("/") or "."
