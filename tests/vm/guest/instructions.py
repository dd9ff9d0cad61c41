"""In a guest whose clock counts instructions: what each way to see things adds to an operation.

`$OUT/operations` is tests/vm/guest/operations.c. Writes $OUT/instructions.json.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracer.errors import KernelError
from tracer.kernel.loader import Kernel

OPERATIONS = ("empty_syscall", "read_4k", "file_fault", "anonymous_fault")
VARIANTS = ("tracepoint", "fentry")
#: Always attached together with what is in the row.
BASE = ("lifecycle", "cache")
ROWS = (("files",), ("files", "devices"), ("faults",), ("faults", "minor"))
_SIZE = 4 << 20
Costs = dict[str, float]


class Operations:
    """The process that does them; it can be watched."""

    def __init__(self, binary: Path, file: Path) -> None:
        self._process = subprocess.Popen(
            [binary, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._line()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def cost(self, name: str) -> float:
        """Nanoseconds of the guest's clock, the least of many."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return float(self._line())

    def all(self) -> Costs:
        """Instructions of each operation."""
        thousand = self.cost("thousand")
        return {name: self.cost(name) / thousand * 1000 for name in OPERATIONS}

    def end(self) -> None:
        self._process.communicate()


@contextmanager
def operations(binary: Path, file: Path) -> Iterator[Operations]:
    """A process, ended afterwards."""
    process = Operations(binary, file)
    try:
        yield process
    finally:
        process.end()


def measure(kernel: Kernel, groups: tuple[str, ...], binary: Path, file: Path) -> dict[str, Costs]:
    """With these groups attached: a process that is not watched, and one that is."""
    for group in (*BASE, *groups):
        kernel.attach(group)
    found = {}
    for role in ("unwatched", "watched"):
        with operations(binary, file) as process:
            if role == "watched":
                kernel.watch(process.pid)
                kernel.probes.cover("minor", process.pid)
            found[role] = process.all()
            kernel.unwatch(process.pid)
    for group in groups:
        kernel.detach(group)
    kernel.probes.settle()
    return found


def main() -> None:
    """Writes the costs: {"none": ..., VARIANT: {GROUPS: {"unwatched": ..., "watched": ...}}}."""
    out = Path(os.environ["OUT"])
    binary, file = out / "operations", Path("/var/tmp/cached.bin")
    file.write_bytes(b"\x5a" * _SIZE)
    with operations(binary, file) as process:
        found: dict[str, object] = {"none": process.all()}
    for variant in VARIANTS:
        try:
            kernel = Kernel.open(variant=variant, attach=False)
        except KernelError as error:
            print(f"{variant}: {error.message}")
            continue
        with kernel:
            found[variant] = {" ".join(row): measure(kernel, row, binary, file) for row in ROWS}
    (out / "instructions.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
