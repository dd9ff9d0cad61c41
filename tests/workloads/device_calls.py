"""A program that makes known calls to device nodes, and times each itself.

It is a stand-in for a server that uses an accelerator: its calls have the numbers and sizes of a
real one's, and mean nothing to it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.workloads.library_calls import Caller

SOURCE = Path(__file__).with_suffix(".c")
#: Where pointers in arguments point to, in the program's block of memory.
ELSEWHERE = 2048


def make_program(target: Path) -> Path:
    """Built so that it runs on any system of this machine's architecture."""
    command = ["gcc", "-O1", "-Wall", "-static", "-o", str(target), str(SOURCE)]
    subprocess.run(command, check=True)
    return target


@dataclass(frozen=True)
class Done:
    """What came of a line. `result`: of the last call. `ns`: inside all the calls.

    `ours_ns`: the same as ttft tells it, where it was asked.
    """

    result: int
    errno: int
    failed: int
    ns: int
    ours_ns: int = 0


@dataclass(frozen=True)
class Field:
    """`value` in `width` bytes at `offset` of an argument; `through`: of what it points to."""

    offset: int
    width: int
    value: int
    through: int | None = None


class DeviceCaller(Caller):
    """A running one; slots hold its descriptors."""

    def ask(self, line: str) -> Done:
        """A line that must not go wrong."""
        done = Done(*map(int, self.tell(line).split()))
        assert not done.failed, (line, done)
        return done

    def fill(self, fields: Iterable[Field]) -> None:
        """What the next ioctl's argument holds; the rest is 0."""
        self.tell("clear")
        for field in fields:
            at = field.offset
            if field.through is not None:
                self.tell(f"poke {field.through} 8 m{ELSEWHERE}")
                at += ELSEWHERE
            self.tell(f"poke {at} {field.width} {field.value}")

    def ioctl(self, slot: int, number: int, count: int, fields: Iterable[Field] = ()) -> Done:
        """So many calls with one argument."""
        self.fill(fields)
        return self.ask(f"ioctl {slot} {number} {count} m0")


def encoded(type_: str, number: int, size: int) -> int:
    """An ioctl that reads and writes an argument of `size` bytes: _IOWR(type, number, size)."""
    return 3 << 30 | size << 16 | ord(type_) << 8 | number
