"""Wheels of the project and of what it needs, unpacked for chosen Pythons and machines."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The oldest C library that is catered for is Debian 12's.
_GLIBC_MINORS = (17, 24, 26, 27, 28, 31, 34, 35, 36)


class PackError(Exception):
    """Why it could not be made; the message says what to do."""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Output of a tool; PackError with its last words when it fails."""
    try:
        done = subprocess.run(
            list(map(str, command)),
            cwd=cwd,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise PackError(f"{command[0]} is needed: apt-get install it") from None
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise PackError(f"{Path(command[0]).name} failed ({done.returncode}):\n{tail}")
    return done.stdout


def own(folder: Path) -> Path:
    """The project's own wheel, made from this tree."""
    for old in folder.glob("ttft-*.whl"):
        old.unlink()
    run(sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "-w", folder, ROOT)
    (made,) = folder.glob("ttft-*.whl")
    return made


def needed(wheel: Path, python: str, machine: str, folder: Path) -> list[Path]:
    """Wheels of all that `wheel` needs, for Python `3.11` on `x86_64`."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
    platforms += [f"manylinux2014_{machine}", f"linux_{machine}"]
    folder.mkdir(parents=True, exist_ok=True)
    run(
        sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check",
        "--only-binary=:all:", "--dest", folder,
        "--python-version", python, "--implementation", "cp",
        *(f"--platform={name}" for name in platforms), wheel,
    )  # fmt: skip
    return sorted(path for path in folder.glob("*.whl") if not path.name.startswith("ttft-"))


def is_bound(wheel: Path) -> bool:
    """Whether it is for one version of Python only."""
    tag = wheel.stem.split("-")[-3:]
    return tag[0].startswith("cp") and tag[1] != "abi3"


def unpack(wheels: Iterable[Path], folder: Path) -> None:
    """As pip would install them, without scripts."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if ".data/" not in name]
            archive.extractall(folder, names)
    for name in ("entry_points.txt",):
        for left in folder.glob(f"*.dist-info/{name}"):
            left.unlink()
