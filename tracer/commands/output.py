"""Files that commands write: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tracer.commands.shared import harmless, write
from tracer.errors import TtftError


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Write beside `path`, then take its place: never half a file under the final name."""
    if not path.parent.is_dir():
        raise TtftError(
            f"{path}: there is no folder {path.parent}", "make it, or give another path"
        )
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            yield file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def save(path: str, data: bytes) -> None:
    """`data` as the file `path`; `-` is standard output."""
    if path == "-":
        return write(harmless(data) if sys.stdout.isatty() else data)
    target = Path(path)
    if target.exists() and not target.is_file():
        # A device or a pipe is written to, not replaced.
        target.write_bytes(data)
        return None
    with _replacing(target) as file:
        file.write(data)
    return None
