"""`python -m pack wheel|deb|bundle`: what `make wheel`, `make deb` and `make bundle` run."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

from pack import carried, wheels
from pack.wheels import ROOT, PackError

DIST = ROOT / "dist"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def wheel() -> list[Path]:
    """The wheel, with the BPF objects and this machine's libbpf in it."""
    if not carried.carry(ROOT):
        sys.stderr.write("no libbpf.so.1 here: the wheel carries none\n")
    return [wheels.own(DIST)]


def main() -> int:
    """Exit status for the shell."""
    parser = argparse.ArgumentParser(prog="python -m pack", description=__doc__)
    parser.add_argument("what", choices=["wheel"])
    here = {machine: arch for arch, machine in MACHINES.items()}.get(platform.machine(), "amd64")
    parser.add_argument("--arch", default=here, choices=list(MACHINES), help=f"  [default: {here}]")
    given = parser.parse_args()
    DIST.mkdir(exist_ok=True)
    makers = {"wheel": wheel}
    try:
        made = makers[given.what]()
    except PackError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for path in made:
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
