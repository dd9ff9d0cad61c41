"""Files that a process may run code of, from /proc/PID/maps."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from tracer.host import files, reach

_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ..x. [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) ([1-9][0-9]*) +(/.*)$"
)
_DELETED = " (deleted)"

#: Device and inode, as that file numbers them.
Inode = tuple[str, int]


#: Of /proc/PID/maps, bytes: a process may map as much as it likes.
_MAPS_MAX = 16 << 20


@dataclass(frozen=True)
class Mapped:
    """An executable mapping. `path` as the process sees it; `link` names the very file.

    Who may not follow such links (that takes CAP_CHECKPOINT_RESTORE) goes by the path.
    """

    inode: Inode
    path: str
    link: str
    tgid: int = 0

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def open_mapped(mapped: Mapped) -> int:
    """A descriptor of the file; OSError.

    None of a file system that another process or machine serves: the kernel reads the file when
    a probe is put in, and lets no process of the host fork meanwhile.
    """
    try:
        named = os.open(mapped.link, os.O_PATH | os.O_CLOEXEC)
    except PermissionError:
        _refuse_served(mapped)
        named = reach.place(mapped.tgid, mapped.path)
    try:
        _refuse_served(mapped)
    except OSError:
        os.close(named)
        raise
    return reach.read_regular(named, mapped.inode[1])


def _refuse_served(mapped: Mapped) -> None:
    major, minor = (int(part, 16) for part in mapped.inode[0].split(":"))
    known = files.mounts(mapped.tgid), files.mounts(os.getpid())
    mount = next((table[major, minor] for table in known if (major, minor) in table), None)
    # Only file systems without a device are served, and those that are no longer mounted unnamed.
    if files.served(mount.fs) if mount is not None else major == 0:
        raise OSError(errno.EREMOTE, os.strerror(errno.EREMOTE), mapped.path)


def executable(tgid: int) -> list[Mapped] | None:
    """Each file once; None where the process is gone."""
    found: dict[Inode, Mapped] = {}
    try:
        with open(f"/proc/{tgid}/maps", "rb") as maps:
            left = _MAPS_MAX
            while left > 0 and (line := maps.readline(left)):
                left -= len(line)
                match = _LINE.match(line)
                if match is None:
                    continue
                start, end, device, ino, path = match.groups()
                inode = (device.decode(), int(ino))
                if inode in found:
                    continue
                link = f"/proc/{tgid}/map_files/{int(start, 16):x}-{int(end, 16):x}"
                name = path.decode("utf-8", "replace").removesuffix(_DELETED)
                found[inode] = Mapped(inode, name, link, tgid)
    except OSError:
        return None
    return list(found.values())
