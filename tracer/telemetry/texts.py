"""Small texts of /proc and /sys about devices: bounded, and no figure that makes no sense."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MOST_BYTES = 16384
_NUMBER = re.compile(r"\s*(\d{1,19})(?!\d)")
_LABEL = re.compile(r"[^!-~]+")
_LABEL_LENGTH = 64
#: GT/s a lane to generation of PCI Express.
_GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5,
                "32.0": 5, "64": 6, "64.0": 6}  # fmt: skip
#: Beyond these a figure is a mistake of whoever tells it.
MOST_MHZ = 20_000
MOST_BYTES = 1 << 50
_MOST_LANES = 32


def text(path: Path) -> str | None:
    """The beginning of a small file, None where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return os.read(fd, _MOST_BYTES).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)


def number(path: Path, most: int) -> int | None:
    """The number that a file begins with, None where it has none or one that is too large."""
    return leading(text(path), most)


def leading(words: str | None, most: int) -> int | None:
    """The number that a text begins with, None where it has none or one that is too large."""
    found = _NUMBER.match(words or "")
    return bounded(int(found[1]), most) if found else None


def bounded(value: object, most: int, least: int = 0) -> int | None:
    """A whole number within bounds, else None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if least <= value <= most else None


def megahertz(value: object) -> int | None:
    """A clock; 0 is one that is not told."""
    return bounded(value, MOST_MHZ, 1)


def label(words: object) -> str | None:
    """A device's name as one short line of printable ASCII."""
    if isinstance(words, bytes):
        words = words.decode("ascii", "replace")
    if not isinstance(words, str):
        return None
    return _LABEL.sub(" ", words).strip()[:_LABEL_LENGTH] or None


def generation(speed: str | None) -> int | None:
    """`16.0 GT/s PCIe` to 4."""
    return _GENERATIONS.get((speed or "").split(" ", 1)[0].strip())


def lanes(value: object) -> int | None:
    return bounded(value, _MOST_LANES, 1)
