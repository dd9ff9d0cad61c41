"""A path walked below a root of another's making, and a regular file opened or nothing.

Standard library alone, Python 3.9 and later: the helper that names functions loads this file by
itself (tracer/stacks/helper.py).
"""

from __future__ import annotations

import errno
import os
import stat

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_MAX = 40


def walk(root: int, path: bytes) -> int:
    """A descriptor that only names what is there (O_PATH); OSError.

    A step at a time: openat2(), made for this, is refused where RestrictSUIDSGID holds.
    Links are text, resolved below `root`, those of /proc too. `..` goes back to where the walk
    came from, whatever was moved meanwhile.
    """
    if b"\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    todo = path.split(b"/")[::-1]
    at: list[int] = []
    links = 0
    try:
        while todo:
            name = todo.pop()
            if name == b"..":
                _close(at[-1:])
                del at[-1:]
            if name in (b"", b".", b".."):
                continue
            fd = os.open(name, _STEP, dir_fd=at[-1] if at else root)
            at.append(fd)
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                continue
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(b"", dir_fd=fd)
            left = at if target.startswith(b"/") else at[-1:]
            _close(left)
            del at[-len(left) :]
            todo += target.split(b"/")[::-1]
        return at.pop() if at else os.dup(root)
    finally:
        _close(at)


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def below(root: str, path: str) -> int:
    """`walk`, below what a path leads to that is not another's making."""
    fd = os.open(root, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        return walk(fd, path.encode("utf-8", "surrogateescape"))
    finally:
        os.close(fd)


def read_regular(named: int, ino: int | None = None, flags: int = 0) -> int:
    """The file that an O_PATH descriptor names, open for reading; closes that one.

    FileNotFoundError if it is not a regular file, or another one than `ino`.
    """
    try:
        info = os.fstat(named)
        if not stat.S_ISREG(info.st_mode) or ino not in (None, info.st_ino):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return os.open(f"/proc/self/fd/{named}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    finally:
        os.close(named)
