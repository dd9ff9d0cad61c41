"""Files that belong to watched processes, reached without being led anywhere else.

A path that a process names is data: it is walked below that process's own root, as the process
itself would. What is opened is a regular file or nothing: a device or a pipe is not touched. A
file system may be served by a process that does not answer, so whoever may not wait asks with
`Patience`.
"""

from __future__ import annotations

import errno
import os
import queue
import stat
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import TypeVar

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_MAX = 40
#: A file that is there answers in a millisecond; our own thread may have to wait for its turn.
_PATIENCE_S = 0.5
_STUCK_MAX = 8

T = TypeVar("T")


def _walk(root: int, path: bytes) -> int:
    """A step at a time: openat2(), made for this, is refused where RestrictSUIDSGID holds.

    Links are text, resolved below `root`, those of /proc too. `..` goes back to where the walk
    came from, whatever was moved meanwhile.
    """
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


def place(tgid: int, path: str) -> int:
    """A descriptor that only names what is at `path` for this process (O_PATH); OSError."""
    if "\0" in path:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    root = os.open(f"/proc/{tgid}/root", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        return _walk(root, path.encode("utf-8", "surrogateescape"))
    finally:
        os.close(root)


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


def text(tgid: int, path: str, limit: int) -> str | None:
    """The first `limit` bytes of a text file as this process sees it; None: not readable."""
    try:
        fd = read_regular(place(tgid, path))
    except OSError:
        return None
    try:
        return os.read(fd, limit).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)


class _Worker:
    """A thread for one piece of work after the other; never waited for at the end."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ttft-reach", daemon=True).start()

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job()


class Patience:
    """Does work that may hang in a thread of its own, and waits for it only so long."""

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # threads do not come along

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._stuck: set[Hashable] = set()

    @property
    def stuck(self) -> frozenset[Hashable]:
        """Places that do not answer now."""
        return frozenset(self._stuck)

    def ask(self, where: Hashable, work: Callable[[], T]) -> T | None:
        """What `work` returns or raises; None where `where` does not answer.

        After it did not, it is not asked again until that first work has come back.
        """
        with self._lock:
            if where in self._stuck or len(self._stuck) >= _STUCK_MAX:
                return None
            worker = self._worker = self._worker or _Worker()
            answer: Future[T] = Future()

            def job() -> None:
                try:
                    answer.set_result(work())
                except BaseException as error:
                    answer.set_exception(error)

            worker.jobs.put(job)
            try:
                return answer.result(self._patience_s)
            except TimeoutError:
                if answer.done():  # just now, or it is the work's own
                    return answer.result()
            self._stuck.add(where)
            self._worker = None
            worker.jobs.put(None)
        answer.add_done_callback(lambda _: self._stuck.discard(where))
        return None


PATIENCE = Patience()
"""Of the threads that may not wait."""
