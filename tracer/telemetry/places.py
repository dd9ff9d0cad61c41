"""Where a host tells of its devices, and whether it has any. Small: every daemon has this much."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def _number_of(path: str) -> tuple[int, int] | None:
    """(major, minor) of a device node."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISCHR(found.st_mode):
        return None
    return os.major(found.st_rdev), os.minor(found.st_rdev)


@dataclass(frozen=True)
class Places:
    """Where the host tells of its devices. `number_of`: (major, minor) of the node at a path."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    number_of: Callable[[str], tuple[int, int] | None] = _number_of


def present(places: Places) -> bool:
    """Whether the host has a device that could be read, as far as a glance tells."""
    if (places.proc / "driver/nvidia/version").exists():
        return True
    try:
        names = os.listdir(places.sys / "class/drm")
    except OSError:
        return False
    return any(name.startswith(("renderD", "card")) for name in names)
