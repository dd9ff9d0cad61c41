"""The table of driver calls: `devicecalls.toml` and nothing of this host."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec

from tracer.errors import ConfigError
from tracer.kernel import layouts
from tracer.kernel.wire import DEVICE_WHATS
from tracer.records import DeviceWhat

DEVICE_CALLS = Path(__file__).parent / "devicecalls.toml"
#: The driver of nodes that the configuration names.
EXTRA = "extra"
#: Entries of the kernel's map.
CALLS_MAX = 2048
_WRAPS, _LATE = 1, 2
_NUMBER = re.compile(r"0x[0-9a-fA-F]{1,8}|[0-9]{1,10}")
_FORM = re.compile(
    r"(?P<name>[A-Z][A-Za-z0-9_:]*) (?P<what>[a-z]+)(?: bytes=(?P<bytes>[^ ]+))?"
    r"(?: by=@(?P<by>\d{1,4})(?:&(?P<mask>0x[0-9a-f]{1,8}))?)?(?P<wraps> wraps)?"
)
_AMOUNT = re.compile(
    r"(?:(?P<kind>u32|out)?@(?P<at>\d{1,4})|@(?P<through>\d{1,4})->@(?P<there>\d{1,4}))(?P<plus>\+1)?"
)

Major = Annotated[int, msgspec.Meta(ge=1, le=4095)]
Letter = Annotated[str, msgspec.Meta(min_length=1, max_length=1)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table `[[driver]]`."""

    name: str
    source: str
    major: Major | None = None
    devices: tuple[str, ...] = ()
    misc: str | None = None
    drm: tuple[str, ...] = ()
    names: dict[str, str] = {}
    type: Letter | None = None
    whole: bool = False
    also: str | None = None
    calls: dict[str, str] = {}


@dataclass(frozen=True)
class Size:
    """How the bytes of a call are read; fields of `struct ttft_device_spec`."""

    kind: str = "none"
    offset: int = 0
    through: int = 0
    plus: int = 0
    late: bool = False


@dataclass(frozen=True)
class DriverCall:
    """A row. `sub`: the value that the argument must hold, None for a call as such.

    `by`: (offset, mask) of what is looked up as `sub`.
    """

    number: int
    sub: int | None
    name: str
    what: DeviceWhat
    size: Size
    by: tuple[int, int] | None
    wraps: bool

    def key(self, driver: int) -> bytes:
        """Its key in the map `device_calls`."""
        has_sub = self.sub is not None
        return layouts.DEVICE_KEY.packer.pack(driver, self.number, self.sub or 0, has_sub)

    def spec(self) -> bytes:
        """Its value there."""
        offset, mask = self.by or (0, 0)
        s = self.size
        return layouts.DEVICE_SPEC.packer.pack(
            DEVICE_WHATS.index(self.what), layouts.DEVICE_SIZES.index(s.kind), s.offset,
            s.through, s.plus, mask, offset, self.wraps * _WRAPS | s.late * _LATE,
        )  # fmt: skip


@dataclass(frozen=True)
class Driver:
    """`number`: in the kernel's maps, from 1. `own` are its calls, `calls` with those of `also`."""

    number: int
    entry: Entry
    own: tuple[DriverCall, ...]
    calls: tuple[DriverCall, ...]

    @property
    def name(self) -> str:
        return self.entry.name

    def node(self) -> bytes:
        """The value of its nodes in the map `device_nodes`."""
        letter = ord(self.entry.type) if self.entry.type else 0
        return layouts.DEVICE_NODE.packer.pack(self.number, letter, self.entry.whole, 0)

    def node_name(self, minor: int, device: str = "") -> str:
        """How a node of it is called. `device`: its name in /proc/devices."""
        names = self.entry.names
        pattern = names.get(str(minor)) or names.get("*") or self.name
        return pattern.replace("{minor}", str(minor)).replace("{device}", device)

    def call(self, number: int) -> DriverCall | None:
        """The row of a number, whatever its argument holds."""
        return next((c for c in self.calls if c.number == number and c.sub is None), None)


class Table:
    """All drivers. ConfigError where the file means nothing."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        entries = tuple(entries)
        rows = {entry.name: tuple(_rows(entry)) for entry in entries}
        if len(rows) != len(entries):
            raise ConfigError("two drivers of one name in the table of driver calls")
        self.drivers: list[Driver] = []
        for number, entry in enumerate(entries, 1):
            if entry.also is not None and entry.also not in rows:
                raise ConfigError(f"{entry.name}: there is no driver {entry.also}")
            own = rows[entry.name]
            merged = {(c.number, c.sub): c for c in (*rows.get(entry.also or "", ()), *own)}
            self.drivers.append(Driver(number, entry, own, tuple(merged.values())))
        self._by_name = {driver.name: driver for driver in self.drivers}
        if sum(len(driver.calls) for driver in self.drivers) > CALLS_MAX:
            raise ConfigError(f"more than {CALLS_MAX} driver calls")

    def __getitem__(self, name: str) -> Driver:
        return self._by_name[name]

    def by_number(self, number: int) -> Driver | None:
        return self.drivers[number - 1] if 1 <= number <= len(self.drivers) else None

    def drm(self, sysfs: str) -> Driver:
        """The driver of a /dev/dri node: by its own name before `*`."""
        exact = (d for d in self.drivers if sysfs in d.entry.drm)
        wild = (d for d in self.drivers if any(fnmatchcase(sysfs, p) for p in d.entry.drm))
        return next(exact, None) or next(wild)

    def calls(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values of the map `device_calls`."""
        for driver in self.drivers:
            for call in driver.calls:
                yield call.key(driver.number), call.spec()


def _number(entry: Entry, text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text, 0) >= 1 << 32:
        raise ConfigError(f"{entry.name}: `{text}` is no number of a call")
    return int(text, 0)


def _rows(entry: Entry) -> Iterator[DriverCall]:
    seen: set[tuple[int, int | None]] = set()
    asked: set[int] = set()
    for key, text in entry.calls.items():
        number_text, slash, sub_text = key.partition("/")
        number = _number(entry, number_text)
        sub = _number(entry, sub_text) if slash else None
        call = parse(entry, number, sub, text)
        if (number, sub) in seen:
            raise ConfigError(f"{entry.name}: `{key}` is there twice")
        if sub is not None and number not in asked:
            raise ConfigError(f"{entry.name}: nothing says where `{key}` finds its value")
        seen.add((number, sub))
        if call.by is not None:
            asked.add(number)
        yield call


def parse(entry: Entry, number: int, sub: int | None, text: str) -> DriverCall:
    """One line of the table."""
    form = _FORM.fullmatch(text)
    what = next((w for w in DEVICE_WHATS if form and w == form["what"]), None)
    if form is None or what is None or what == "other":
        known = ", ".join(w for w in DEVICE_WHATS if w != "other")
        raise ConfigError(
            f"{entry.name}: `{text}` says nothing about a driver call",
            f"for instance `GEM_CREATE allocate bytes=@0`; the classes are {known}",
        )
    if not entry.whole and number > 0xFF:
        raise ConfigError(f"{entry.name}: {number} is more than 8 bits")
    by = None if form["by"] is None else (int(form["by"]), int(form["mask"] or "0xffffffff", 0))
    if sub is not None and (by is not None or form["wraps"]):
        raise ConfigError(f"{entry.name}: `{text}` looks further than one value")
    size = _size(entry, form["bytes"])
    return DriverCall(number, sub, form["name"], what, size, by, bool(form["wraps"]))


def _size(entry: Entry, text: str | None) -> Size:
    if text is None:
        return Size()
    form = _AMOUNT.fullmatch(text)
    if form is None or (form["kind"] == "out" and form["plus"]):
        raise ConfigError(
            f"{entry.name}: `{text}` is no amount", "one of @N, u32@N, out@N, @P->@N, also with +1"
        )
    plus = 1 if form["plus"] else 0
    if form["through"] is not None:
        return Size("pointed", int(form["there"]), int(form["through"]), plus)
    kind = "u32" if form["kind"] == "u32" else "u64"
    return Size(kind, int(form["at"]), 0, plus, form["kind"] == "out")


def read(text: str) -> Table:
    """The table in `text`."""
    try:
        data = tomllib.loads(text)
        entries = msgspec.convert(data.get("driver", []), tuple[Entry, ...])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"the table of driver calls: {error}") from None
    return Table(entries)


@lru_cache(maxsize=1)
def table() -> Table:
    """The table that comes with ttft."""
    return read(DEVICE_CALLS.read_text())
