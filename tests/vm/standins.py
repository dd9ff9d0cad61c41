"""Stand-ins for accelerators: a kernel module, the program that calls it, NVIDIA's user library.

The module has the devices' numbers and drives none. The library is NVIDIA's own, as Debian has
it; without a driver its functions fail, but their names and beginnings are real.

`python -m tests.vm.standins KERNEL...` makes them for guests that are started by hand.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from pathlib import Path

from tests.vm import cache, images, packages
from tests.vm.cache import BuildError, run
from tests.vm.catalogue import ROOT, KernelSpec, catalogue
from tests.vm.packages import Suite
from tests.workloads import device_calls

MODULE = "ttft_standin"
SOURCES = Path(__file__).parent / "guest" / "module"
#: Where guests find them, below the checkout.
FOLDER = ROOT / "build" / "stand-ins"
_HEADERS = re.compile(r"linux-(headers|kbuild)-\d")
#: Where Debian has NVIDIA's driver library, and in which suite.
_LIBRARY, _LIBRARY_SUITE = "libcuda1", "bookworm"


def prepare(kernel: str) -> Path:
    """All that a guest of this kernel can have, in a folder that it finds by its release.

    Without headers for it there is no module.
    """
    spec = catalogue().kernels[kernel]
    folder = FOLDER / images.kernel(spec).version
    folder.mkdir(parents=True, exist_ok=True)
    found = [program()] if spec.arch == "amd64" else []
    if spec.headers is not None:
        found += [module(spec), libcuda()]
    for old in folder.iterdir():
        old.unlink()
    for path in found:
        shutil.copy(path, folder / path.name)
    return folder


def program() -> Path:
    """The program that makes known calls."""
    recipe = [device_calls.SOURCE.read_text(), inspect.getsource(device_calls.make_program)]

    def build(folder: Path) -> None:
        device_calls.make_program(folder / "device_calls")

    return cache.built(f"calls-{cache.digest(recipe)}", build) / "device_calls"


def module(spec: KernelSpec) -> Path:
    """The stand-in for drivers, for the newest kernel of the suite."""
    suite = Suite(spec.suite, spec.arch)
    parts = suite.closure(spec.headers or "", _HEADERS)
    named = [[part.name, part.version] for part in parts]
    text = [path.read_text() for path in sorted(SOURCES.iterdir())]
    recipe = [named, text, inspect.getsource(_build_module)]

    def build(folder: Path) -> None:
        _build_module(folder, suite.download(parts, folder / "debs"))

    name = f"module-{spec.suite}-{spec.arch}-{cache.digest(recipe)}"
    return cache.built(name, build) / f"{MODULE}.ko"


def _build_module(folder: Path, debs: list[Path]) -> None:
    tree, work = folder / "tree", folder / "work"
    tree.mkdir()
    for deb in debs:
        packages.unpack(deb, tree)
    [headers] = [path.parent for path in tree.glob("usr/src/linux-headers-*/.config")]
    makefile = headers / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{tree}/usr/src/"))
    shutil.copytree(SOURCES, work)
    run("make", "-C", headers, f"M={work}", "CC=gcc", "modules")
    shutil.copy(work / f"{MODULE}.ko", folder)
    for used in ("debs", "tree", "work"):
        shutil.rmtree(folder / used)


def libcuda() -> Path:
    """NVIDIA's own libcuda.so.1, fetched through the machine's package configuration."""
    suite = Suite(_LIBRARY_SUITE, "amd64", "non-free")
    parts = suite.find(_LIBRARY)
    recipe = [[part.name, part.version] for part in parts]

    def build(folder: Path) -> None:
        tree = folder / "tree"
        tree.mkdir()
        for deb in suite.download(parts, folder / "debs"):
            packages.unpack(deb, tree)
        versions = [path for path in tree.rglob("libcuda.so.*") if not path.is_symlink()]
        if len(versions) != 1:
            raise BuildError(f"{_LIBRARY} has {versions} instead of one library")
        shutil.copy(versions[0], folder / "libcuda.so.1")
        for used in ("debs", "tree"):
            shutil.rmtree(folder / used)

    return cache.built(f"libcuda-{cache.digest(recipe)}", build) / "libcuda.so.1"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(prepare(name))
