"""Runs tests/workloads/fileio.c: file work with known answers, under the test's control."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SOURCE = Path(__file__).with_name("fileio.c")


def compiled(folder: Path) -> Path:
    """The workload, built into `folder`."""
    compiler = shutil.which("clang") or shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError("a C compiler is needed: apt-get install clang")
    target = folder / "fileio"
    subprocess.run([compiler, "-O2", "-pthread", SOURCE, "-o", target], check=True)
    return target


class FileIo:
    """A workload that is ready; `go()` lets it work, leaving the context ends it."""

    def __init__(
        self, binary: Path, what: str, count: int, size: int, files: Sequence[Path]
    ) -> None:
        self._process = subprocess.Popen(
            [binary, what, str(count), str(size), *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _say(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def go(self) -> dict[str, Any]:
        """Let it work; what it counted itself, {} where it could not say."""
        self._say()
        line = self._line()
        return dict(json.loads(line)) if line else {}

    def end(self) -> int:
        """Let it end; its exit status."""
        if self._process.poll() is None:
            self._say()
        return self._process.wait(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def make_file(path: Path, size: int, first: bytes = b"GGUF") -> Path:
    """A file of `size` bytes that is on the disk."""
    with path.open("wb") as file:
        file.write(first + b"\x5a" * (size - len(first)))
        file.flush()
        os.fsync(file.fileno())
    return path


def drop_cache(path: Path) -> None:
    """Take a file's pages out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
