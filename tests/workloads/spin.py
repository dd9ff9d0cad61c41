"""A program that spends its time in functions of known names, and says how much."""

from __future__ import annotations

import json
import select
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

SOURCE = Path(__file__).with_suffix(".c")


def compiled(folder: Path) -> Path:
    """The program, its symbols kept."""
    target = folder / "spin"
    command = ["cc", "-O2", "-Wall", "-Werror", "-o", str(target), str(SOURCE)]
    subprocess.run(command, check=True)
    return target


@dataclass(frozen=True)
class Spent:
    """Processor time in ns, by the program's own count."""

    pid: int
    long_ns: int
    short_ns: int
    turns: int = 0

    @property
    def ns_per_turn(self) -> float:
        return (self.long_ns + self.short_ns) / self.turns

    @property
    def share(self) -> float:
        """Of spin_long."""
        return self.long_ns / (self.long_ns + self.short_ns)


class Spin:
    """One run: `go()`, then `spent()`. It lives until the `with` ends."""

    def __init__(self, program: Path, length_ms: int, *args: str) -> None:
        self._process = subprocess.Popen(
            [str(program), str(length_ms), *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def done(self, timeout_s: float) -> bool:
        """Whether the work is over within that time."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], timeout_s)[0])

    def spent(self) -> Spent:
        """Waits for the end of the work."""
        assert self._process.stdout is not None
        return Spent(**json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
