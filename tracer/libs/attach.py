"""Which files are probed, for whom. A thread of its own: attaching waits for the kernel.

A file is probed while a watched process maps it, and for a while after: the next runner of the
same program is then seen from its first call.
"""

from __future__ import annotations

import heapq
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from tracer.libs import mappings
from tracer.libs.calls import Catalogue, Library
from tracer.libs.elf import Elf, ElfError
from tracer.libs.links import Link, Points, reason
from tracer.libs.mappings import Inode, Mapped
from tracer.libs.own import OwnProbes
from tracer.records import Library as Seen

#: How long a file without users stays probed, ns.
LINGER_NS = 60_000_000_000
#: After a program was started its mappings are looked at again, s, until its loader tells of more:
#: not all do.
AGAIN_S = (0.01, 0.05, 0.5, 2.0)
#: Reading mappings takes at most this part of the time; a file that is found is opened once.
_PART = 20
_SPACE_S = 0.01
#: Where something did not answer it is looked at again after so long, then more and more seldom.
_LATE_S = 1.0
_LATE_MAX_S = 60.0
_POOL = 4
#: Files probed at a time, and things said of files: a process may map thousands, however named.
_FILES_MAX = 512
_SAID_MAX = 1000


@dataclass
class _File:
    """A file of the catalogue. `links` empty: it cannot be probed. `had`: it was opened. `late`:
    it did not answer, and is tried again at the next look."""

    path: str
    libraries: list[Library]
    had: bool = False
    late: bool = False
    links: list[Link] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    users: set[int] = field(default_factory=set)
    idle_ns: int | None = None


@dataclass(frozen=True)
class Programs:
    """The loaded program's descriptor. `many`: one link may hold many functions."""

    call: int
    many: bool = True


class Attacher:
    """`look` at processes, `collect` what was found. All but the thread's own is thread-safe."""

    def __init__(
        self, programs: Programs, own: OwnProbes | None, catalogue: Catalogue,
        say: Callable[[str], None], *, wake: Callable[[], None], linger_ns: int = LINGER_NS,
    ) -> None:  # fmt: skip
        """`wake` is called when there is something to `collect`."""
        self._programs = programs
        self._say = say
        self._wake = wake
        self._linger_ns = linger_ns
        self._files: dict[Inode, _File] = {}
        self._own = own
        self._named: set[tuple[str, str]] = set()
        self._looked: dict[int, tuple[float, float]] = {}
        self._pauses: dict[int, float] = {}
        self._due: list[tuple[float, int]] = []
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[Seen] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(_POOL, "ttft-attach")
        self._libraries_of = lru_cache(4096)(catalogue.of)
        self._thread = threading.Thread(target=self._run, name="ttft-libraries", daemon=True)
        self._thread.start()

    # --- from any thread --------------------------------------------------------------

    def look(self, tgid: int, *, again: bool = False) -> None:
        """Its mappings may have changed. `again`: and will, for it was just started."""
        self._jobs.put(lambda: self._look(tgid, again))

    def forked(self, parent: int, child: int) -> None:
        """A process has the mappings of its parent."""
        self._jobs.put(lambda: self._inherit(parent, child))

    def ended(self, tgid: int) -> None:
        self._jobs.put(lambda: self._forget(tgid))

    def collect(self) -> list[Seen]:
        """Libraries that are newly seen."""
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._found.get_nowait())
        return found

    @property
    def has_found(self) -> bool:
        """Whether there is something to `collect`."""
        return not self._found.empty()

    @property
    def awaits(self) -> bool:
        """Whether it will look at a process again unasked."""
        return bool(self._due)

    def settle(self, timeout_s: float) -> bool:
        """Wait until all that was asked for so far is done; whether it was."""
        done = threading.Event()
        self._jobs.put(done.set)
        return done.wait(timeout_s)

    def close(self) -> None:
        """Take all probes away."""
        self._jobs.put(None)
        self._thread.join()
        links = [link for file in self._files.values() for link in file.links]
        links += self._own.all() if self._own is not None else []
        for _ in self._pool.map(Link.close, links):  # each waits for the kernel
            pass
        self._pool.shutdown()
        self._files.clear()

    # --- the thread's own ---------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._next_s())
            except queue.Empty:
                self._overdue()
                continue
            if job is None:
                return
            job()

    def _next_s(self) -> float | None:
        """Until there is something to do unasked; None: never."""
        times = [self._due[0][0]] if self._due else []
        idle = [f.idle_ns for f in self._files.values() if f.idle_ns is not None]
        times += [(ns + self._linger_ns) / 1e9 for ns in idle]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _overdue(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            self._look(heapq.heappop(self._due)[1], False)
        for inode, file in list(self._files.items()):
            if file.idle_ns is not None and file.idle_ns + self._linger_ns <= now * 1e9:
                del self._files[inode]
                self._pool.submit(_close, file.links)

    def _look(self, tgid: int, again: bool) -> None:
        began = time.monotonic()
        last, took = self._looked.get(tgid, (0.0, 0.0))
        due = last + max(_SPACE_S, took * _PART)
        if again:
            for later in AGAIN_S:
                heapq.heappush(self._due, (began + later, tgid))
        elif began < due:
            self._look_at(due, tgid)
            return
        try:
            mapped = mappings.executable(tgid)
        except OSError:
            self._forget(tgid)
            return
        took = time.monotonic() - began
        # Where it does not answer what was found stays.
        answered = mapped is not None and self._take(tgid, mapped)
        now = time.monotonic()
        self._looked[tgid] = (now, took)
        if answered:
            self._pauses.pop(tgid, None)
        else:
            pause = min(max(2 * self._pauses.get(tgid, 0.0), _LATE_S), _LATE_MAX_S)
            if self._look_at(now + pause, tgid):
                self._pauses[tgid] = pause

    def _look_at(self, due: float, tgid: int) -> bool:
        """Whether it is looked at then; it may be before."""
        if any(other == tgid for _, other in self._due):
            return False
        heapq.heappush(self._due, (due, tgid))
        return True

    def _unschedule(self, tgid: int) -> None:
        self._due = [entry for entry in self._due if entry[1] != tgid]
        heapq.heapify(self._due)

    def _take(self, tgid: int, mapped: list[Mapped]) -> bool:
        """Whether all files that are of interest answered."""
        answered = self._use(tgid, mapped)
        if self._own is not None:
            hears = self._own.hears(tgid, mapped)
            answered = self._own.add(tgid, mapped) and answered
            if hears and answered:
                self._unschedule(tgid)
        return answered

    def _use(self, tgid: int, mapped: Iterable[Mapped]) -> bool:
        wanted = {m.inode: m for m in mapped if self._libraries_of(m.name)}
        for inode, file in self._files.items():
            if tgid in file.users and inode not in wanted:
                self._drop(file, tgid)
        fresh = [m for inode, m in wanted.items() if inode not in self._files]
        fresh = fresh[: max(0, _FILES_MAX - len(self._files))]
        fresh += [m for m in wanted.values() if self._to_try_again(m)]
        for m, file in zip(fresh, self._pool.map(self._open, fresh), strict=True):
            self._replace(m.inode, file)
        files = [self._files[inode] for inode in wanted if inode in self._files]
        for file in files:
            if tgid not in file.users and not file.late:
                file.users.add(tgid)
                file.idle_ns = None
                self._tell(file, tgid)
            elif file.late and not file.users and file.idle_ns is None:
                file.idle_ns = time.monotonic_ns()
        return not any(file.late for file in files)

    def _to_try_again(self, mapped: Mapped) -> bool:
        """Whether a file could not be had from those who had it, but may be from this one: what a
        process does to its own path of a library keeps nobody else from being seen."""
        file = self._files.get(mapped.inode)
        return file is not None and not file.had and mapped.tgid not in file.users

    def _replace(self, inode: Inode, file: _File) -> None:
        before = self._files.get(inode)
        self._files[inode] = file
        if before is not None:
            file.users, file.idle_ns = before.users, before.idle_ns
            for tgid in sorted(file.users):
                self._tell(file, tgid)

    def _tell(self, file: _File, tgid: int) -> None:
        for name, count in file.counts.items():
            if count:
                now_ns = time.monotonic_ns()
                self._found.put(
                    Seen(ts_ns=now_ns, tgid=tgid, name=name, path=file.path, functions=count)
                )
                self._wake()

    def _inherit(self, parent: int, child: int) -> None:
        for file in self._files.values():
            if parent in file.users:
                file.users.add(child)
                self._tell(file, child)

    def _forget(self, tgid: int) -> None:
        self._looked.pop(tgid, None)
        self._pauses.pop(tgid, None)
        self._unschedule(tgid)
        if self._own is not None:
            self._pool.submit(_close, self._own.remove(tgid))
        for file in self._files.values():
            if tgid in file.users:
                self._drop(file, tgid)

    def _drop(self, file: _File, tgid: int) -> None:
        file.users.discard(tgid)
        if not file.users:
            file.idle_ns = time.monotonic_ns()

    # --- a file, in a thread of the pool --------------------------------------------------

    def _open(self, mapped: Mapped) -> _File:
        file = _File(mapped.path, self._libraries_of(mapped.name))
        try:
            fd = mappings.open_mapped(mapped)
        except TimeoutError as error:
            file.late = True
            self._trouble(mapped.path, f"cannot be probed yet: {reason(error)}")
            return file
        except OSError as error:
            self._trouble(mapped.path, f"cannot be probed: {reason(error)}")
            return file
        file.had = True
        try:
            elf = Elf(fd)
            for library in file.libraries:
                self._probe(file, library, elf.functions(library.symbols), fd)
        except ElfError as error:
            self._trouble(mapped.path, f"cannot be probed: {error}")
        finally:
            os.close(fd)
        if not any(file.counts.values()) and ".so" in mapped.name:
            self._trouble(mapped.path, "has none of the functions to watch (stripped?)")
        return file

    def _probe(self, file: _File, library: Library, at: dict[str, int], fd: int) -> None:
        rows: dict[int, int] = {}
        for symbol, offset in at.items():
            rows.setdefault(offset, library.symbols[symbol])
        points = sorted(rows.items())
        count = self._attach(file, fd, points) if points else 0
        file.counts[library.name] = file.counts.get(library.name, 0) + count
        if library.given:
            found = {library.symbols[symbol] for symbol in at}
            for symbol in sorted({s for s, row in library.symbols.items() if row not in found}):
                self._trouble(file.path, f"has no function {symbol}")

    def _attach(self, file: _File, fd: int, points: Points) -> int:
        """How many of the points are probed: one that the kernel refuses spoils no other."""
        try:
            file.links.append(Link(self._programs.call, fd, points, many=self._programs.many))
            return len(points)
        except OSError as error:
            if len(points) == 1:
                self._trouble(file.path, f"cannot be probed: {reason(error)}")
                return 0
        half = len(points) // 2
        return sum(self._attach(file, fd, p) for p in (points[:half], points[half:]))

    def _trouble(self, path: str, text: str) -> None:
        """Say it, once."""
        if (path, text) not in self._named and len(self._named) < _SAID_MAX:
            self._named.add((path, text))
            self._say(f"{Path(path).name} {text} ({path})")


def _close(links: list[Link]) -> None:
    while links:
        links.pop().close()
