"""The catalogue: functions of user libraries, and what a call of each means.

One data file, to which the configuration may add; nothing here touches a process.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal, get_args

import msgspec

from tracer.config import Layer, LibraryTable
from tracer.errors import ConfigError
from tracer.kernel import layouts
from tracer.records import CallWhat

Unit = Literal["bytes", "tokens"]

WHATS: tuple[CallWhat, ...] = get_args(CallWhat)
#: A longer silence of the thread ends a run of like calls, ns.
GAP_NS = 50_000_000
#: Tokens are decoded one by one for a long time; a run of them is one record a second.
DECODE_GAP_NS = 400_000_000
ROWS_MAX = 1024

_ARG = r"arg([1-6])"
_FORM = re.compile(
    r"(?P<what>[a-z]+)(?: (?P<unit>bytes|tokens)=(?P<amount>[^ ](?:.*?[^ ])?))?"
    rf"(?: if {_ARG}==(?P<value>\d+))?"
)
_AMOUNTS: tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...] = (
    ("arg", re.compile(_ARG), ("arg",)),
    ("u32", re.compile(rf"int {_ARG}"), ("arg",)),
    ("product", re.compile(rf"{_ARG}\*{_ARG}"), ("arg", "other")),
    ("pointed", re.compile(rf"\[{_ARG}\+(\d+)\]"), ("arg", "offset")),
    (
        "array",
        re.compile(rf"sum {_ARG}\*\[{_ARG}\+(\d+)/(\d+)\]"),
        ("other", "arg", "offset", "stride"),
    ),
    ("batch", re.compile(r"batch\+(\d+)"), ("offset",)),
)


class LibraryEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table `[[library]]` of catalogue.toml."""

    files: tuple[str, ...]
    calls: dict[str, str]
    name: str = ""
    layer: Layer = "driver"
    twins: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Measure:
    """How an amount is read from the arguments; fields of `struct ttft_call_spec`."""

    kind: str = "none"
    arg: int = 0
    other: int = 0
    offset: int = 0
    stride: int = 0


@dataclass(frozen=True)
class Function:
    """A row: one function and its twins. `when`: (argument, value) that a call must have."""

    library: str
    layer: Layer
    symbol: str
    what: CallWhat
    unit: Unit | None
    measure: Measure
    when: tuple[int, int] | None

    def spec(self) -> bytes:
        """The row of the map `call_specs`."""
        gap_ns = DECODE_GAP_NS if self.what == "decode" else GAP_NS
        m, (when_arg, when_value) = self.measure, self.when or (0, 0)
        kind = layouts.MEASURES.index(m.kind)
        return layouts.CALL_SPEC.packer.pack(
            gap_ns, kind, m.arg, m.other, m.offset, m.stride, when_arg, when_value, 0
        )


@dataclass(frozen=True)
class Library:
    """Where the functions are: `symbols` are exported names, with their row.

    `given`: the configuration named it, so what is not there is worth a word.
    """

    name: str
    files: tuple[str, ...]
    symbols: dict[str, int]
    given: bool = False

    def holds(self, file: str) -> bool:
        """Whether a mapped file of this name may be it."""
        return any(fnmatch(file, pattern) for pattern in self.files)


class Catalogue:
    """All libraries and rows. The index of a row is what the kernel reports."""

    def __init__(
        self, entries: Collection[LibraryEntry], given: Iterable[LibraryTable] = ()
    ) -> None:
        """`given`: those of the configuration. ConfigError where a line means nothing."""
        self.rows: list[Function] = []
        self.libraries: list[Library] = []
        for entry in entries:
            self._add(entry, False)
        waiting = tuple(sorted({name for entry in entries for name in entry.never}))
        for table in given:
            self._add(LibraryEntry(**msgspec.structs.asdict(table), never=waiting), True)

    def of(self, file: str) -> list[Library]:
        """The libraries that a mapped file of this name may be."""
        return [library for library in self.libraries if library.holds(file)]

    def _add(self, entry: LibraryEntry, given: bool) -> None:
        name = entry.name or entry.files[0].partition(".")[0].removeprefix("lib")
        symbols: dict[str, int] = {}
        for symbol, text in entry.calls.items():
            if symbol in entry.never:
                raise ConfigError(
                    f"{symbol} of {name} is called in loops while waiting: not probed"
                )
            row = parse(name, entry.layer, symbol, text)
            if len(self.rows) >= ROWS_MAX:
                raise ConfigError(f"more than {ROWS_MAX} functions to watch")
            for ending in ("", *entry.twins):
                symbols[symbol + ending] = len(self.rows)
            self.rows.append(row)
        self.libraries.append(Library(name, entry.files, symbols, given))


def parse(library: str, layer: Layer, symbol: str, text: str) -> Function:
    """One line of a catalogue; ConfigError says what is wrong with it."""
    form = _FORM.fullmatch(text)
    if form is None or form["what"] not in WHATS:
        raise ConfigError(
            f"{symbol} of {library}: `{text}` says nothing about a call",
            f"for instance `upload bytes=arg3`; the kinds are {', '.join(WHATS)}",
        )
    what: CallWhat = next(w for w in WHATS if w == form["what"])
    unit: Unit | None = {"bytes": "bytes", "tokens": "tokens"}.get(form["unit"] or "")  # type: ignore[assignment]
    when = None if form["value"] is None else (int(form[4]), int(form["value"]))
    measure = _measure(library, symbol, form["amount"])
    return Function(library, layer, symbol, what, unit, measure, when)


def _measure(library: str, symbol: str, text: str | None) -> Measure:
    if text is None:
        return Measure()
    for kind, pattern, names in _AMOUNTS:
        found = pattern.fullmatch(text)
        if found:
            values = dict(zip(names, map(int, found.groups()), strict=True))
            return Measure(kind, **values)
    raise ConfigError(
        f"{symbol} of {library}: `{text}` is no amount",
        "one of argN, int argN, argN*argM, [argN+OFFSET], sum argM*[argN+OFFSET/STRIDE], "
        "batch+OFFSET",
    )


def shipped() -> tuple[LibraryEntry, ...]:
    """The tables of catalogue.toml."""
    text = (Path(__file__).parent / "catalogue.toml").read_text()
    return msgspec.convert(tomllib.loads(text)["library"], tuple[LibraryEntry, ...])
