"""`python -m bench`: measure every budget, print the table, write build/bench/*.json.

Needs root and a kernel that takes BPF. Exit code 0 when all budgets are met, 1 when one is missed
or its bench failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import (
    accuracy,
    arming,
    decode,
    footprint,
    library_calls,
    memory,
    overhead,
    probes,
    sampling,
    scale,
    unrelated,
)
from bench.common import Plan, Row, Size, say
from tests.workloads import bpf, interrupts
from tracer.errors import TtftError

BENCHES: dict[str, Callable[[Plan], Iterator[Row]]] = {
    "overhead": overhead.run,
    "unrelated": unrelated.run,
    "probes": probes.run,
    "sampling": sampling.run,
    "calls": library_calls.run,
    "footprint": footprint.run,
    "memory": memory.run,
    "scale": scale.run,
    "accuracy": accuracy.run,
    "arming": arming.run,
    "decode": decode.run,
}
TROUBLE = (
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    subprocess.SubprocessError,
    TtftError,
)
WORD = {True: "ok", False: "MISSED", None: ""}


def main() -> int:
    """Run what is asked for; returns the exit code."""
    interrupts.heed()
    if sys.argv[1:2] == ["gpu_check"]:
        from bench import gpu_check  # it measures nothing

        return gpu_check.main(sys.argv[2:])
    given = arguments()
    refusal = bpf.refusal()
    if refusal is not None:
        say(f"cannot measure here: {refusal}")
        say("hint: run it as root on a kernel with BTF that takes BPF programs")
        return 1
    out: Path = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    as_installed(out)
    plan = Plan(given.size, given.models.resolve(), out)
    rows: list[Row] = []
    for name in given.benches or BENCHES:
        began = time.monotonic()
        found = attempt(name, plan)
        write(out / f"{name}.json", plan.size, found)
        say(f"{name} took {time.monotonic() - began:.0f} s")
        rows += found
    print(table(rows))
    say(f"wrote {out}/*.json")
    return 0 if all(row.ok is not False for row in rows) else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", dest="size", action="store_const", const="quick", default="normal",
        help="only show that it runs: the figures mean nothing",
    )  # fmt: skip
    size.add_argument(
        "--full", dest="size", action="store_const", const="full",
        help="100 cold pairs and more: hours",
    )  # fmt: skip
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("benches", nargs="*", metavar="BENCH", help=", ".join(BENCHES))
    given = parser.parse_args()
    unknown = sorted(set(given.benches) - set(BENCHES))
    if unknown:
        parser.error(f"no bench {', '.join(unknown)}; there are: {', '.join(BENCHES)}")
    return given


def as_installed(out: Path) -> None:
    """Let the programs that are measured start from bytecode, as from an installed package."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(out / "bytecode"))


def attempt(name: str, plan: Plan) -> list[Row]:
    """The rows of one bench; where it fails, those before it and a missed one."""
    rows: list[Row] = []
    try:
        rows.extend(BENCHES[name](plan))
    except TROUBLE as error:
        rows.append(Row(f"{name}: {type(error).__name__}", str(error)[:200], "-", False))
    return rows


def write(path: Path, size: Size, rows: Sequence[Row]) -> None:
    """The rows with all their figures, and what they were measured on."""
    result = {
        "schema": 1,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "plan": size,
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def table(rows: Sequence[Row]) -> str:
    """The table, as Markdown."""
    cells = [("what", "measured", "budget", ""), *(
        (row.what, row.measured, row.budget, WORD[row.ok]) for row in rows)]  # fmt: skip
    widths = [max(len(line[n]) for line in cells) for n in range(4)]
    lines = [_line(line, widths) for line in cells]
    return "\n".join([lines[0], _line(tuple("-" * w for w in widths), widths), *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |"


if __name__ == "__main__":
    sys.exit(main())
