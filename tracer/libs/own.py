"""Probes on libraries that every program has, in watched processes alone: others do not pay.

The dynamic loader calls an empty function for debuggers when it has mapped libraries. The C
library's open() tells of compile caches.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from tracer.libs import mappings
from tracer.libs.caches import Folders, folders_of
from tracer.libs.calls import Library
from tracer.libs.elf import Elf, ElfError
from tracer.libs.links import Link
from tracer.libs.mappings import Inode, Mapped

_MUSL = "ld-musl-*.so*"
LOADER = Library("loader", ("ld-linux*.so*", "ld-2.*.so", _MUSL), {"_dl_debug_state": 0})
LIBC = Library(
    "libc",
    ("libc.so.6", "libc-2.*.so", _MUSL),
    {"open": 1, "open64": 1, "openat": 2, "openat64": 2},
)
#: A process has one of each, but for those that it mapped before it became another program.
_FILES_MAX = 8


class OwnProbes:
    """Links of each process. Where one cannot be had, less is seen, and nothing is said."""

    def __init__(self, linked: int, opened: int, opened_at: int, folders: Folders) -> None:
        """Descriptors of the programs."""
        self._programs = (linked, opened, opened_at)
        self._folders = folders
        self._links: dict[int, dict[tuple[str, Inode], list[Link]]] = {}

    def add(self, tgid: int, mapped: Iterable[Mapped]) -> bool:
        """Probe what is mapped and not probed yet; whether all of it answered."""
        answered = True
        links = self._links.setdefault(tgid, {})
        if not links:
            self._folders.add(folders_of(tgid))
        for library in (LOADER, LIBC):
            for one in mapped:
                key = (library.name, one.inode)
                if key in links or len(links) >= _FILES_MAX or not library.holds(one.name):
                    continue
                try:
                    links[key] = self._probe(tgid, library, one)
                except TimeoutError:
                    answered = False
        return answered

    def hears(self, tgid: int, mapped: Iterable[Mapped]) -> bool:
        """Whether the process tells by itself, since an earlier look, when it maps more."""
        links = self._links.get(tgid, {})
        return any(links.get((LOADER.name, one.inode)) for one in mapped)

    def _probe(self, tgid: int, library: Library, mapped: Mapped) -> list[Link]:
        """What can be had of it; TimeoutError: it does not answer now."""
        found: list[Link] = []
        try:
            fd = mappings.open_mapped(mapped)
        except TimeoutError:
            raise
        except OSError:
            return found
        with suppress(OSError, ElfError):
            try:
                at = Elf(fd).functions(library.symbols)
                for number, program in enumerate(self._programs):
                    offsets = {o for name, o in at.items() if library.symbols[name] == number}
                    if offsets:
                        points = [(offset, 0) for offset in sorted(offsets)]
                        found.append(Link(program, fd, points, pid=tgid))
            finally:
                os.close(fd)
        return found

    def remove(self, tgid: int) -> list[Link]:
        """The links of a process, to be closed."""
        return [link for links in self._links.pop(tgid, {}).values() for link in links]

    def all(self) -> list[Link]:
        """The links of all processes, to be closed."""
        return [link for tgid in list(self._links) for link in self.remove(tgid)]
