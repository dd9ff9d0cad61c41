"""Files that a process may run code of, from /proc/PID/maps."""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass

_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ..x. [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) ([1-9][0-9]*) +(/.*)$",
    re.MULTILINE,
)
_DELETED = " (deleted)"

#: Device and inode, as that file numbers them.
Inode = tuple[str, int]


@dataclass(frozen=True)
class Mapped:
    """An executable mapping. `path` as the process sees it; `link` opens the very file.

    `rooted` opens what is at that path now, for who may not follow such links (that takes
    CAP_CHECKPOINT_RESTORE).
    """

    inode: Inode
    path: str
    link: str
    rooted: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def open_mapped(mapped: Mapped) -> tuple[int, str]:
    """A descriptor of the file, and the path by which it was opened; OSError."""
    try:
        return os.open(mapped.link, os.O_RDONLY | os.O_CLOEXEC), mapped.link
    except PermissionError:
        fd = os.open(mapped.rooted, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    info = os.fstat(fd)
    if info.st_ino != mapped.inode[1] or not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), mapped.path)
    return fd, mapped.rooted


def executable(tgid: int) -> list[Mapped] | None:
    """Each file once; None where the process is gone."""
    try:
        with open(f"/proc/{tgid}/maps", "rb") as maps:
            text = maps.read()
    except OSError:
        return None
    found: dict[Inode, Mapped] = {}
    for start, end, device, ino, path in _LINE.findall(text):
        inode = (device.decode(), int(ino))
        if inode not in found:
            link = f"/proc/{tgid}/map_files/{int(start, 16):x}-{int(end, 16):x}"
            name = path.decode("utf-8", "replace").removesuffix(_DELETED)
            found[inode] = Mapped(inode, name, link, f"/proc/{tgid}/root{name}")
    return list(found.values())
