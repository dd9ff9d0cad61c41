"""The device nodes of this host: which numbers are whose, by /proc and sysfs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import iglob
from itertools import chain, islice
from pathlib import Path

from tracer.devices.table import EXTRA, Driver, Table
from tracer.kernel import layouts

#: Of the configuration's nodes: more are not looked at.
NODES_MAX = 512
_DRM, _ACCEL, _MISC = 226, 261, 10
#: Of all devices without hardware, from Linux 6.14 on.
_FAUX = "faux_driver"
#: Nodes that compute, not just show: what has none is no accelerator.
_RENDER = "renderD"


@dataclass(frozen=True)
class Node:
    """`rdev`: kernel's number; with all bits of the minor set it means all minors."""

    rdev: int
    driver: Driver
    name: str


@dataclass(frozen=True)
class Nodes:
    """`families`: names in /proc/devices by major, for nodes that are told by their major."""

    nodes: dict[int, Node]
    families: dict[int, str]

    def of(self, rdev: int) -> Node | None:
        """The node of a number, by itself or by its major."""
        return self.nodes.get(rdev) or self.nodes.get(rdev | layouts.ANY_MINOR)

    def name(self, rdev: int) -> str:
        """What a node is called; its number where it is not known."""
        node, minor = self.of(rdev), rdev & layouts.ANY_MINOR
        if node is None:
            return f"{rdev >> 20}:{minor}"
        return node.name or node.driver.node_name(minor, self.families.get(rdev >> 20, ""))


def find(table: Table, patterns: Sequence[str] = (), root: Path = Path("/")) -> Nodes:
    """Look at this host. `patterns`: of further nodes, by path. `root`: where it is."""
    families = _families(root / "proc" / "devices")
    found = [
        *_by_major(table, families),
        *_by_misc(table, root / "proc" / "misc"),
        *_by_class(table, root / "sys", "drm", _DRM, families),
        *_by_class(table, root / "sys", "accel", _ACCEL, families),
    ]
    nodes: dict[int, Node] = {}
    for node in found:
        nodes.setdefault(node.rdev, node)
    for node in _extra(table, patterns, root):  # of what the table knows, it knows more
        if Nodes(nodes, families).of(node.rdev) is None:
            nodes[node.rdev] = node
    return Nodes(nodes, families)


def traces(patterns: Sequence[str] = (), root: Path = Path("/")) -> tuple[object, ...]:
    """What `find` looks at, cheaply: nothing has changed where it is the same."""
    sys = root / "sys"
    further = (_entries(sys / "dev" / "char"), tuple(_globbed(patterns, root))) if patterns else ()
    return (
        _text(root / "proc" / "devices"), _text(root / "proc" / "misc"),
        *(_entries(sys / "class" / kind) for kind in ("drm", "accel")), *further,
    )  # fmt: skip


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _entries(path: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(path)))
    except OSError:
        return ()


def _families(path: Path) -> dict[int, str]:
    """Names of character devices by major."""
    found: dict[int, str] = {}
    text = _text(path).partition("Block devices:")[0]
    for line in text.splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isascii() and number.isdigit() and name:
            found.setdefault(int(number), name.strip())
    return found


def _by_major(table: Table, families: dict[int, str]) -> Iterator[Node]:
    for driver in table.drivers:
        entry = driver.entry
        for major, name in families.items():
            fixed = major == entry.major and not entry.drm and major != _ACCEL
            if fixed or name in entry.devices:
                yield Node(major << 20 | layouts.ANY_MINOR, driver, "")


def _by_misc(table: Table, path: Path) -> Iterator[Node]:
    for line in _text(path).splitlines():
        minor, _, name = line.strip().partition(" ")
        driver = next((d for d in table.drivers if d.entry.misc and d.entry.misc == name), None)
        if driver is not None and minor.isascii() and minor.isdigit():
            yield Node(_MISC << 20 | int(minor), driver, driver.node_name(int(minor)))


def _by_class(
    table: Table, sys: Path, kind: str, major: int, families: dict[int, str]
) -> Iterator[Node]:
    """Nodes of /sys/class/drm or accel; of graphics cards those that can also render."""
    if major not in families:
        return
    places: dict[str, list[tuple[int, str]]] = {}
    for name in _entries(sys / "class" / kind):
        numbers = _text(sys / "class" / kind / name / "dev").strip().partition(":")
        if numbers[0] == str(major) and numbers[2].isdigit():
            device = os.path.realpath(sys / "class" / kind / name / "device")
            places.setdefault(device, []).append((int(numbers[2]), name))
    for device, minors in places.items():
        if kind == "drm" and not any(name.startswith(_RENDER) for _, name in minors):
            continue
        driver = table.drm(_driver(device)) if kind == "drm" else table["accel"]
        for minor, name in minors:
            yield Node(major << 20 | minor, driver, name)


def _driver(device: str) -> str:
    """The kernel's driver of a device; one without hardware has its own name."""
    try:
        name = os.path.basename(os.readlink(f"{device}/driver"))
    except OSError:
        return os.path.basename(device)
    return os.path.basename(device) if name == _FAUX else name


def _extra(table: Table, patterns: Sequence[str], root: Path) -> Iterator[Node]:
    """By the names that sysfs has, as a service may have no view of /dev; and by path."""
    if not patterns:
        return
    found: dict[int, str] = {}
    for number in _entries(root / "sys" / "dev" / "char"):
        major, _, minor = number.partition(":")
        path = f"/dev/{_node_name(root / 'sys' / 'dev' / 'char' / number)}"
        if any(fnmatchcase(path, p) for p in patterns) and major.isdigit() and minor.isdigit():
            found[int(major) << 20 | int(minor)] = os.path.basename(path)
    for path in _globbed(patterns, root):
        try:
            facts = os.stat(path)
        except OSError:
            continue
        if stat.S_ISCHR(facts.st_mode):
            rdev = os.major(facts.st_rdev) << 20 | os.minor(facts.st_rdev)
            found.setdefault(rdev, os.path.basename(path))
    for rdev, name in list(found.items())[:NODES_MAX]:
        yield Node(rdev, table[EXTRA], os.fsencode(name).decode("utf-8", "replace"))


def _node_name(folder: Path) -> str:
    lines = _text(folder / "uevent").splitlines()
    return next((x.removeprefix("DEVNAME=") for x in lines if x.startswith("DEVNAME=")), "")


def _globbed(patterns: Sequence[str], root: Path) -> list[str]:
    every = chain.from_iterable(iglob(p if root == Path("/") else f"{root}{p}") for p in patterns)
    return sorted(islice(every, NODES_MAX))
