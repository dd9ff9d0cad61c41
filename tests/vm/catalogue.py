"""What is to be built, as `kernels.toml` says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]


class KernelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel: the newest version of `package` in `suite`. `lane`: of `make test-vm`.

    `headers`: the package for modules of its own; those can be built by this machine's compiler.
    """

    suite: str
    package: str
    arch: str = "amd64"
    lane: bool = False
    headers: str | None = None


class UserlandSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A root file system. `python`: the version its suite has."""

    suite: str
    python: str
    packages: list[str]
    systemd: bool = False


class Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kernels: dict[str, KernelSpec]
    userlands: dict[str, UserlandSpec]


def catalogue() -> Catalogue:
    """The whole list."""
    data = tomllib.loads((Path(__file__).parent / "kernels.toml").read_text())
    return msgspec.convert(data, Catalogue)


def lane() -> list[str]:
    """Names of the kernels that `make test-vm` tries."""
    return [name for name, spec in catalogue().kernels.items() if spec.lane]
