"""Files that a process may run code of, from /proc/PID/maps."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import struct
from dataclasses import dataclass
from functools import partial

from tracer.host import files, mounts, reach

_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ..x. [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) ([1-9][0-9]*) +(/.*)$",
    re.MULTILINE,
)
_DELETED = " (deleted)"

#: Device and inode, as that file numbers them.
Inode = tuple[str, int]


#: Of /proc/PID/maps, bytes: a process may map as much as it likes.
_MAPS_MAX = 16 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value
#: FS_IOC_FIEMAP: from, length, flags, how many are told, room for so many; and the room.
_FIEMAP = 0xC020660B
_ONE_EXTENT = struct.Struct("=QQIIII56x")


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
    """A descriptor of the very file that is mapped; OSError, TimeoutError: no answer now.

    None of a file system that another process or machine serves: the kernel reads the file when
    a probe is put in, and lets no process of the host fork meanwhile.
    """
    work = partial(_open, mapped)
    fd = reach.PATIENCE.ask(mapped.tgid, mapped.inode, work, late=os.close)
    if fd is None:  # it hangs, or has kept us waiting before
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), mapped.path)
    return fd


def _open(mapped: Mapped) -> int:
    try:
        named = os.open(mapped.link, os.O_PATH | os.O_CLOEXEC)
    except PermissionError:
        _refuse_served(mapped, mounts.read(mapped.tgid))
        named = reach.place(mapped.tgid, mapped.path)
    try:
        seen = mounts.read(mapped.tgid)
        layered = _refuse_served(mapped, seen)
        mount = files.mount_of(seen, named)
        if not seen.whole if mount is None else mounts.served(mount.fs):
            raise _served(mapped)
    except OSError:
        os.close(named)
        raise
    fd = reach.read_regular(named)
    try:
        if layered and not _on_disk(fd):  # before it is mapped: that would ask who serves it
            raise _served(mapped)
        if listed(fd) != mapped.inode:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), mapped.path)
    except OSError:
        os.close(fd)
        raise
    return fd


def listed(fd: int) -> Inode:
    """Device and inode of a file as a mapping of it is listed; OSError.

    Whether a file that is open is one that another process maps can be told in no stricter way:
    its number alone is also that of a file of any other file system, which the process may have
    mounted there since. And the devices cannot be compared by what stat() or mountinfo says: in
    btrfs each subvolume has a device that no listing shows, and a listing has, before 6.8, the
    layer's device and inode for a file of overlayfs, whose mount has others, and whose number
    there, after a change or with `xino`, is another as well. But the kernel lists a mapping of
    ours just as it lists theirs, whatever lies below. What is left are files of equal number in
    two subvolumes of one btrfs. Nothing is read of the file; shared, so that no probe comes in.
    """
    at = _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if at == _MAP_FAILED:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed))
    end = at + mmap.PAGESIZE
    try:
        with open("/proc/self/maps", "rb") as maps:
            for line in maps:
                where, _, _, device, ino, *_ = line.split(maxsplit=5)
                if int(where.partition(b"-")[0], 16) == at:
                    end = int(where.partition(b"-")[2], 16)  # of huge pages it is longer
                    return device.decode(), int(ino)
    finally:
        _libc.munmap(at, end - at)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _served(mapped: Mapped) -> OSError:
    return OSError(errno.EREMOTE, os.strerror(errno.EREMOTE), mapped.path)


def _refuse_served(mapped: Mapped, seen: mounts.Mounts) -> bool:
    """OSError, or whether what lies below its file system may still be served."""
    major, minor = (int(part, 16) for part in mapped.inode[0].split(":"))
    device = (major, minor)
    theirs = seen.devices.get(device)
    own = mounts.read(os.getpid()).devices if theirs is None or theirs.fs == "overlay" else {}
    mount = theirs or own.get(device)
    # Only file systems without a device are served, and those that are no longer mounted unnamed.
    if mounts.served(mount.fs) if mount is not None else major == 0:
        raise _served(mapped)
    # Anybody may lay one over what he serves, in a name space of his own; the host's own are its
    # administrator's.
    return mount is not None and mount.fs == "overlay" and device not in own


def _on_disk(fd: int) -> bool:
    """Whether a file has extents, which overlayfs asks the layer for: none that is served has."""
    try:
        fcntl.ioctl(fd, _FIEMAP, _ONE_EXTENT.pack(0, mmap.PAGESIZE, 0, 0, 1, 0))
    except OSError:
        return False
    return True


def executable(tgid: int) -> list[Mapped] | None:
    """Each file once; OSError where the process is gone, None where it does not answer."""
    text = reach.proc_file(tgid, "maps", _MAPS_MAX)
    if text is None:
        return None
    found: dict[Inode, Mapped] = {}
    whose = reach.speaker(tgid) or tgid
    for match in _LINE.finditer(text):
        start, end, device, ino, path = match.groups()
        inode = (device.decode(), int(ino))
        if inode in found:
            continue
        link = f"/proc/{whose}/map_files/{int(start, 16):x}-{int(end, 16):x}"
        name = path.decode("utf-8", "replace").removesuffix(_DELETED)
        found[inode] = Mapped(inode, name, link, tgid)
    return list(found.values())
