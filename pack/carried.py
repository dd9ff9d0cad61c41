"""The libbpf that a wheel carries for systems without one, with the libraries that it needs."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
from pathlib import Path

from pack.wheels import PackError, run

WANTED = ("libbpf.so.1", "libelf.so.1", "libz.so.1", "libzstd.so.1")
"""The others are part of every system with the GNU C library."""


def carry(root: Path) -> list[Path]:
    """Copy them from this machine to where the wheel takes them from; none where it has none."""
    places = located()
    if WANTED[0] not in places:
        return []
    into = root / "tracer" / "kernel" / "libs" / platform.machine()
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for name, place in places.items():
        shutil.copy(place, into / name)
        _terms(place, into / f"{name}.copyright")
    return sorted(into.iterdir())


def located() -> dict[str, Path]:
    """Where this machine has each of them: loaded, the kernel tells."""
    try:
        ctypes.CDLL(WANTED[0])
    except OSError:
        return {}
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = sorted({line.split()[-1] for line in lines if ".so" in line})
    found: dict[str, Path] = {}
    for name in WANTED:
        # `libelf.so.1` is a link to libelf-0.188.so.
        start = re.compile(rf"/{name.partition('.')[0]}[.-][^/]*$")
        path = next(filter(start.search, mapped), None)
        if path is not None:
            found[name] = Path(path)
    return found


def _terms(library: Path, into: Path) -> None:
    """The library's licence, as Debian's package of it has it."""
    # The package may know it by the path from before /usr was merged.
    for path in (library, Path("/", *library.parts[2:])):
        try:
            owner = run("dpkg", "-S", path).partition(":")[0]
        except PackError:
            continue
        shutil.copy(Path("/usr/share/doc") / owner / "copyright", into)
        return
