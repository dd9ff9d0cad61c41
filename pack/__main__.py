"""`python -m pack wheel|deb|bundle`: what `make wheel`, `make deb` and `make bundle` run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pack import carried, deb, wheels
from pack.wheels import ROOT, PackError
from tests.vm.cache import BuildError

DIST = ROOT / "dist"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def wheel() -> list[Path]:
    """The wheel, with the BPF objects and this machine's libbpf in it."""
    if not carried.carry(ROOT):
        sys.stderr.write("no libbpf.so.1 here: the wheel carries none\n")
    return [wheels.own(DIST)]


def debs(arches: list[str]) -> list[Path]:
    """A Debian package for each machine."""
    (made,) = wheel()
    return [deb.make(made, arch, MACHINES[arch], DIST) for arch in arches]


def bundles(arches: list[str]) -> list[Path]:
    """A self-contained archive for each machine."""
    from pack import bundle

    (made,) = wheel()
    return [bundle.make(made, arch, MACHINES[arch], DIST) for arch in arches]


def main() -> int:
    """Exit status for the shell."""
    parser = argparse.ArgumentParser(prog="python -m pack", description=__doc__)
    parser.add_argument("what", choices=["wheel", "deb", "bundle"])
    parser.add_argument("--arch", choices=list(MACHINES), help="only for this  [default: all]")
    given = parser.parse_args()
    DIST.mkdir(exist_ok=True)
    arches = [given.arch] if given.arch else list(MACHINES)
    try:
        match given.what:
            case "deb":
                made = debs(arches)
            case "bundle":
                made = bundles(arches)
            case _:
                made = wheel()
    except (PackError, BuildError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for path in made:
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
