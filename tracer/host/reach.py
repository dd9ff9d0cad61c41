"""Files that belong to watched processes, reached without being led anywhere else.

A path that a process names is data: it is walked below that process's own root, as the process
itself would. What is opened is a regular file or nothing: a device or a pipe is not touched. A
file system may be served by a process that does not answer, and of /proc/PID what tells of its
memory waits for locks that it may hold for ever. So whoever may not wait asks with `Patience`.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from tracer.host import walk
from tracer.host.families import Family, family_of, to_blame

#: A file that is there answers in a millisecond; our own thread may have to wait for its turn.
_PATIENCE_S = 0.5
#: What a process is, is worth some times as much: a server that is taken for none goes unseen.
IDENTITY_TIMES = 4
#: Threads that wait for places that do not answer: for all there are, for those of one family.
_STUCK_MAX = 24
#: Of the former the last are for families of which nothing hangs yet.
_STUCK_KNOWN_MAX = 16
_STUCK_OF_FAMILY = 4
#: A process may keep us waiting for so long at once, and for this part of the time; its family,
#: which may be all that runs on a slow host, for some times as much.
_SPENT_MAX_S = 2.0
_PART = 20
_FAMILY_TIMES = 5
#: What an answer may take without being charged: a busy host, short of memory, explains it.
_FREE_S = 0.05
_FORGOTTEN_S = 0.001
_ACCOUNTS_MAX = 512
_FAMILY_KEPT_S = 1.0
_IDLE_MAX = 2
#: Threads of a process of which the first ended that are asked whether they go on.
_SPEAKERS_MAX = 256

T = TypeVar("T")


read_regular = walk.read_regular


def place(tgid: int, path: str) -> int:
    """A descriptor that only names what is at `path` for this process (O_PATH); OSError."""
    return walk.below(f"/proc/{speaker(tgid) or tgid}/root", path)


def content(tgid: int, path: str, limit: int) -> bytes | None:
    """The first `limit` bytes of a file as this process sees it; None: not readable."""
    try:
        fd = read_regular(place(tgid, path))
    except OSError:
        return None
    try:
        return os.read(fd, limit)
    except OSError:
        return None
    finally:
        os.close(fd)


def text(tgid: int, path: str, limit: int) -> str | None:
    """`content`, of a text file."""
    found = content(tgid, path, limit)
    return None if found is None else found.decode("utf-8", "replace")


class _Work(Generic[T]):
    """One piece of work; `took_s`: what it took, once it is done."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.answer: Future[T] = Future()
        self.took_s = 0.0
        self._work = work

    def do(self) -> None:
        began = time.monotonic()
        try:
            found = self._work()
        except BaseException as error:
            self.took_s = time.monotonic() - began
            self.answer.set_exception(error)
        else:
            self.took_s = time.monotonic() - began
            self.answer.set_result(found)


class _Worker:
    """A thread for one piece of work after the other; never waited for at the end."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ttft-reach", daemon=True).start()

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job()
            del job  # it may hold what a process gave, as long as nothing comes


class Patience:
    """Does work that may hang in a thread of its own, and waits for it only so long.

    Each process is charged for what it makes us wait, with its family (families.py), and so can
    not keep us from the others.
    """

    def __init__(self, patience_s: float = _PATIENCE_S, spent_max_s: float = _SPENT_MAX_S) -> None:
        self._patience_s = patience_s
        self._spent_max_s = spent_max_s
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # threads do not come along

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        #: What has not come back: of which process and place, and of which family.
        self._stuck: dict[object, tuple[int, Hashable, Family]] = {}
        #: Of a process, what we waited for it and it has not paid back yet, as of when; its family.
        self._spent: dict[int, tuple[float, float, Family]] = {}
        self._families: dict[int, tuple[float, Family]] = {}

    @property
    def stuck(self) -> frozenset[tuple[int, Hashable]]:
        """(process, place) that do not answer now."""
        with self._lock:
            return frozenset((tgid, where) for tgid, where, _ in self._stuck.values())

    def ask(
        self,
        tgid: int,
        where: Hashable,
        work: Callable[[], T],
        late: Callable[[T], object] = lambda _: None,
        times: int = 1,
    ) -> T | None:
        """What `work` returns or raises; None where `where`, of this process, does not answer.

        `times` as long as usual it is waited for.
        After it did not, it is not asked again until that first work has come back; `late` is
        given what that brought. None as well where the process has kept us waiting too much.
        """
        with self._lock:
            if not self._may_ask(tgid, where):
                return None
            worker = self._idle.pop() if self._idle else None
        try:
            worker = worker or _Worker()
        except RuntimeError:  # the system gives us no more threads
            return None
        asked = _Work(work)
        worker.jobs.put(asked.do)
        patience_s = self._patience_s * times
        if wait([asked.answer], patience_s).done:
            with self._lock:
                if asked.took_s > _FREE_S:
                    self._spend(tgid, asked.took_s - _FREE_S)
                if len(self._idle) < _IDLE_MAX:
                    self._idle.append(worker)
                else:
                    worker.jobs.put(None)
            return asked.answer.result()
        with self._lock:
            self._spend(tgid, patience_s)
            self._stuck[asked.answer] = (tgid, where, self._family(tgid))
        worker.jobs.put(None)
        asked.answer.add_done_callback(lambda answer: self._came_back(answer, late))
        return None

    def charge(self, tgid: int, took_s: float) -> None:
        """What we did for a process ourselves."""
        with self._lock:
            self._spend(tgid, took_s)

    def may_ask(self, tgid: int) -> bool:
        """Whether it has not kept us busy too much."""
        with self._lock:
            return self._may_ask(tgid, None)

    def _came_back(self, answer: Future[T], late: Callable[[T], object]) -> None:
        with self._lock:
            del self._stuck[answer]
        if answer.exception() is None:
            late(answer.result())

    def _may_ask(self, tgid: int, where: Hashable) -> bool:
        if not self._stuck and not self._spent:
            return True
        hung = [(owner, place) for owner, place, _ in self._stuck.values()]
        if (tgid, where) in hung or len(hung) >= _STUCK_MAX:
            return False
        if len(hung) >= _STUCK_KNOWN_MAX:
            kin = {node for *_, family in self._stuck.values() for node in family}
            if not kin.isdisjoint(self._family(tgid)):
                return False
        now_s = time.monotonic()
        owed = {other: self._owed_s(*account[:2], now_s) for other, account in self._spent.items()}
        if owed.get(tgid, 0.0) >= self._spent_max_s:
            return False
        self._spent = {o: account for o, account in self._spent.items() if owed[o] > _FORGOTTEN_S}
        costs = [(family, owed[other]) for other, (_, _, family) in self._spent.items()]
        blamed = to_blame(costs, self._spent_max_s * _FAMILY_TIMES)
        blamed |= to_blame([(family, 1.0) for *_, family in self._stuck.values()], _STUCK_OF_FAMILY)
        return not blamed or blamed.isdisjoint(self._family(tgid))

    def _family(self, tgid: int) -> Family:
        now_s = time.monotonic()
        known = self._families.get(tgid)
        if known is None or now_s - known[0] > _FAMILY_KEPT_S:
            if len(self._families) >= _ACCOUNTS_MAX:
                self._families.clear()
            known = self._families[tgid] = (now_s, family_of(tgid))
        return known[1]

    def _spend(self, tgid: int, took_s: float) -> None:
        now_s = time.monotonic()
        before_s, at_s, _ = self._spent.pop(tgid, (0.0, now_s, ()))
        owed_s = self._owed_s(before_s, at_s, now_s) + took_s
        self._spent[tgid] = (owed_s, now_s, self._family(tgid))
        while len(self._spent) > _ACCOUNTS_MAX:
            del self._spent[next(iter(self._spent))]

    def _owed_s(self, spent_s: float, at_s: float, now_s: float) -> float:
        """What is not paid back yet: the more is owed the more is paid, so sums of it are, too."""
        return spent_s * math.exp((at_s - now_s) / (self._spent_max_s * _PART))


PATIENCE = Patience()
"""Of the threads that may not wait."""


#: Of /proc/TGID, what waits for the memory map of the process; all else that waits does for an
#: exec, where descriptors that close with it are a file system's to close.
_OF_MEMORY = frozenset({"maps", "cmdline", "environ"})


def speaker(tgid: int) -> int | None:
    """A thread by which /proc tells of the memory and files of a process: its first, or another
    where that ended and others go on. None: it has none, as one that ended, or of the kernel.

    Nothing that is read here waits for the process.
    """
    if _has_memory(tgid):
        return tgid
    try:
        others = os.listdir(f"/proc/{tgid}/task")[:_SPEAKERS_MAX]
    except OSError:
        return None
    return next((int(tid) for tid in others if _has_memory(int(tid))), None)


def _has_memory(tid: int) -> bool:
    try:
        with open(f"/proc/{tid}/statm", "rb") as file:
            return not file.read(2).startswith(b"0 ")
    except OSError:
        return False


def guarded(tgid: int, work: Callable[[], T]) -> T | None:
    """What `work` returns or raises that looks at links of /proc/TGID, or at what else of it waits
    for an exec of the process to be over; None: it does not answer."""
    return PATIENCE.ask(tgid, "exec", work, times=IDENTITY_TIMES)


def proc_file(tgid: int, name: str, limit: int) -> bytes | None:
    """The first `limit` bytes of a file in /proc/TGID; OSError, None: it does not answer.

    Each of them but `status`, `statm`, `cgroup`, `mountinfo`, `net` and `task` may keep its reader
    waiting for as long as a file system hangs that the process has made.
    """

    def work() -> bytes:
        whose = (speaker(tgid) or tgid) if name in _OF_MEMORY else tgid
        with open(f"/proc/{whose}/{name}", "rb") as file:
            return file.read(limit)

    if name in _OF_MEMORY:
        return PATIENCE.ask(tgid, name, work)
    return guarded(tgid, work)
