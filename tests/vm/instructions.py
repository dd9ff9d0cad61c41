"""What a probe adds to an operation, in instructions, counted by an emulated processor's clock.

`python -m tests.vm.instructions [--kernel 6.12]` prints a table. The same each time, whatever
else this machine does; but an emulator knows no caches and no pipelines: compare, don't convert.
A copy counts an instruction for each byte (4,096 of a read of 4 KiB).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.vm.cache import BuildError
from tests.vm.catalogue import catalogue
from tests.vm.machine import GuestError, Options, run_guest

SOURCE = Path(__file__).parent / "guest" / "operations.c"
TIMEOUT_S = 600
_NAMES = {
    "empty_syscall": "empty syscall",
    "read_4k": "4 KiB read",
    "file_fault": "file fault",
    "anonymous_fault": "other fault",
}


def compile_operations(folder: Path) -> None:
    """A static program: the guest has its own libraries."""
    compiler = shutil.which("clang") or shutil.which("cc")
    if compiler is None:
        raise BuildError("a C compiler is needed: apt-get install clang")
    target = folder / "operations"
    subprocess.run([compiler, "-O2", "-static", SOURCE, "-o", target], check=True)


def count(kernel: str, out: Path) -> tuple[str, dict[str, Any]]:
    """The kernel's release and what tests/vm/guest/instructions.py found on it."""
    compile_operations(out)
    options = Options(icount=0, command_s=TIMEOUT_S)
    command = "python3 tests/vm/guest/instructions.py"
    result = run_guest(kernel, [command], options, timeout_s=TIMEOUT_S, out=out)
    if result.commands[0].status:
        raise GuestError(result.commands[0].output)
    found: dict[str, Any] = json.loads((out / "instructions.json").read_text())
    return result.release, found


def table(release: str, found: dict[str, Any]) -> list[str]:
    """A table in Markdown: the operation by itself, then what is added to it."""
    none = found["none"]
    lines = [
        f"| {release} | process | {' | '.join(_NAMES.values())} |",
        "|---|---|" + "---:|" * len(_NAMES),
        f"| no probes | any | {' | '.join(f'{none[name]:,.0f}' for name in _NAMES)} |",
    ]
    for groups in next(iter(found[v] for v in found if v != "none")):
        for role in ("unwatched", "watched"):
            for variant in (v for v in found if v != "none"):
                costs = found[variant][groups][role]
                added = [f"{costs[name] - none[name]:+,.0f}" for name in _NAMES]
                lines.append(f"| {groups}, {variant} | {role} | {' | '.join(added)} |")
    return lines


def main() -> int:
    """Exit status for the shell."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm.instructions", description=__doc__)
    parser.add_argument("--kernel", default="6.12", choices=list(catalogue().kernels))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ttft-instructions-") as out:
        try:
            release, found = count(given.kernel, Path(out))
        except (GuestError, BuildError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print("\n".join(table(release, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
