"""Which file the code at an address of a process comes from: /proc/PID/maps, looked at again only
where an address is in nothing known. Not the process's memory, nor its files. Mappings that are not
to be had, for a process can keep whoever reads them waiting, are none."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial

from tracer.host import reach

#: Code that no file has: made while running. What the kernel itself maps has names like it.
MADE = "[made]"
#: A process's mappings are looked at so often at most, ns.
_AGAIN_NS = 200_000_000
_PROCESSES_MAX = 256
_TEXT_MAX = 16 << 20
_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ..x. ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) ([0-9]+) *(.*)$",
    re.MULTILINE,
)
_DELETED = " (deleted)"
_PATH_MAX = 512


@dataclass(frozen=True)
class Mapping:
    """Executable addresses [start, end): what is at `start` lies at `offset` of the file.

    `file`: device and inode, as text; empty where there is none.
    """

    start: int
    end: int
    offset: int
    module: str
    file: str

    def place(self, address: int) -> int:
        """The offset of an address in the file; of code without one always 0, if it is made
        while running: it is at another address each time."""
        return 0 if self.module == MADE else address - self.start + self.offset


def parse(text: bytes) -> list[Mapping]:
    """Executable mappings in order of address."""
    found = []
    for start, end, offset, device, ino, name in _LINE.findall(text):
        path = name.decode("utf-8", "replace").removesuffix(_DELETED)[:_PATH_MAX]
        if not path.startswith("/"):
            path = path if path in ("[vdso]", "[vsyscall]") else MADE
        file = "" if int(ino) == 0 else f"{device.decode()} {int(ino)}"
        found.append(Mapping(int(start, 16), int(end, 16), int(offset, 16), path, file))
    return sorted(found, key=lambda m: m.start)


class _Known:
    """What was seen at a time."""

    def __init__(self, looked_ns: int, mappings: list[Mapping]) -> None:
        self.looked_ns = looked_ns
        self.mappings = mappings
        self._starts = [m.start for m in mappings]

    def at(self, address: int) -> Mapping | None:
        n = bisect_right(self._starts, address) - 1
        return self.mappings[n] if n >= 0 and address < self.mappings[n].end else None


class Mappings:
    """Of the processes asked for last. Owned by one thread."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def at(self, tgid: int, address: int, now_ns: int, *, sure: bool = True) -> Mapping | None:
        """The mapping of an address; None where it is not known to be code.

        `sure`: it is code; else it may be, and the process is not looked at again for it.
        """
        known = self._known.get(tgid)
        found = known.at(address) if known is not None else None
        again = known is None or (sure and now_ns - known.looked_ns >= _AGAIN_NS)
        if found is not None or not again:
            return found
        fresh = _read(tgid)
        # Of a process that is gone, or does not answer, what was known stays.
        mappings = known.mappings if fresh is None and known is not None else fresh or []
        self._known.pop(tgid, None)
        self._known[tgid] = _Known(now_ns, mappings)
        while len(self._known) > _PROCESSES_MAX:
            del self._known[next(iter(self._known))]
        return self._known[tgid].at(address)

    def of(self, tgid: int) -> list[Mapping]:
        """Those last seen of a process."""
        known = self._known.get(tgid)
        return list(known.mappings) if known is not None else []

    def forget(self, tgid: int) -> None:
        """Another program runs in it from now on."""
        self._known.pop(tgid, None)


def _read(tgid: int) -> list[Mapping] | None:
    try:
        return reach.PATIENCE.ask(tgid, "maps", partial(_parsed, tgid))
    except OSError:
        return None


def _parsed(tgid: int) -> list[Mapping]:
    with open(f"/proc/{tgid}/maps", "rb") as file:
        return parse(file.read(_TEXT_MAX))
