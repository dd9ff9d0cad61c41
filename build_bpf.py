"""Compiles bpf/ttft.bpf.c to two CO-RE objects per architecture; also the wheel's build hook.

By hand: `python build_bpf.py` writes tracer/kernel/objects/ttft.{x86_64,aarch64}.bpf.o, and the
same with `plain` in the name, for kernels with an older BPF.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ARCHITECTURES = {"x86_64": "x86", "aarch64": "arm64"}
VARIANTS: dict[str, tuple[str, ...]] = {"": (), "plain.": ("-DTTFT_PLAIN",)}
FLAGS = ("-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3")
HINT = "apt-get install clang llvm libbpf-dev linux-libc-dev"


def hook_base() -> Any:
    """Hatchling's base class; run by hand, without the build system, any will do."""
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    except ImportError:
        return object
    return BuildHookInterface


class BuildError(Exception):
    """The object could not be built; the message says what to install or mend."""


def header_folders() -> list[Path]:
    """Where asm/types.h may be: Debian keeps it in a folder per architecture."""
    return [path.parent for path in sorted(Path("/usr/include").glob("*-linux-gnu*/asm"))]


def find(tool: str) -> str | None:
    """The newest installed `tool`: Debian may have only the versioned name."""
    names = [tool, *(f"{tool}-{version}" for version in range(22, 11, -1))]
    return next((path for path in map(shutil.which, names) if path), None)


def execute(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()}\n({HINT})")


def compile_object(root: Path, machine: str, target: Path, defines: tuple[str, ...] = ()) -> None:
    """One object; DWARF is stripped, BTF stays."""
    clang = find("clang")
    if clang is None:
        raise BuildError(f"clang is needed to build the BPF object ({HINT})")
    includes = [part for path in header_folders() for part in ("-idirafter", str(path))]
    source = str(root / "bpf" / "ttft.bpf.c")
    arch = f"-D__TARGET_ARCH_{ARCHITECTURES[machine]}"
    building = target.with_suffix(f".{os.getpid()}.tmp")
    execute([clang, *FLAGS, arch, *defines, *includes, "-c", source, "-o", str(building)])
    strip = find("llvm-strip")
    if strip:
        execute([strip, "-g", str(building)])
    building.replace(target)


def is_fresh(root: Path, target: Path) -> bool:
    sources = [*(root / "bpf").glob("*.[ch]"), root / "build_bpf.py"]
    return target.exists() and target.stat().st_mtime > max(p.stat().st_mtime for p in sources)


def build(root: Path) -> list[Path]:
    """Build what is older than its sources; the objects, x86_64 first, plain ones last."""
    folder = root / "tracer" / "kernel" / "objects"
    folder.mkdir(parents=True, exist_ok=True)
    objects = []
    for variant, defines in VARIANTS.items():
        for machine in ARCHITECTURES:
            target = folder / f"ttft.{machine}.{variant}bpf.o"
            if not is_fresh(root, target):
                compile_object(root, machine, target, defines)
            objects.append(target)
    return objects


class BpfBuildHook(hook_base()):  # type: ignore[misc]
    """Hatchling calls this before it packs the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # A checkout without clang (no root to install it) can still replay recordings.
        if version != "editable" or find("clang"):
            build(Path(self.root))


if __name__ == "__main__":
    try:
        for path in build(Path(__file__).resolve().parent):
            sys.stdout.write(f"{path}\n")
    except BuildError as error:
        sys.exit(str(error))
