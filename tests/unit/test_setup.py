"""scripts/setup.sh where there is no apt-get: what is there is taken, the rest is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("cat", "cksum", "cp", "dirname", "grep", "id", "ls", "mkdir", "seq", "tr")


class Checkout:
    """A copy of the script with an environment made before, on a system of chosen commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        for made in ("bin", "scripts", ".venv/bin"):
            (folder / made).mkdir(parents=True)
        for name in ("scripts/setup.sh", "pyproject.toml", "build_bpf.py"):
            shutil.copy(ROOT / name, folder / name)
        for name in TOOLS:
            found = shutil.which(name)
            assert found
            (self.bin / name).symlink_to(found)
        self.command(".venv/bin/python", "exit 0")

    def command(self, name: str, does: str) -> None:
        """A command that does only this."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(0o755)

    def setup(self, what: str = "test") -> tuple[int, str]:
        """Exit status and what it said."""
        done = subprocess.run(
            ["/bin/sh", "scripts/setup.sh", what], cwd=self.folder, capture_output=True, text=True,
            check=False, env={"PATH": str(self.bin), "LANG": os.environ.get("LANG", "C")},
        )  # fmt: skip
        return done.returncode, done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_what_is_missing_is_named(checkout: Checkout) -> None:
    checkout.command("bin/python3", '[ "$2" != "${2#*version_info}" ]')  # new enough, no libbpf
    code, said = checkout.setup()
    assert code == 1
    assert said.startswith("error: missing: clang libbpf-dev libbpf1 linux-libc-dev \nhint: ")


@pytest.mark.parametrize("name", ["clang", "clang-18"])
def test_what_is_there_is_enough(checkout: Checkout, name: str) -> None:
    checkout.command("bin/python3", "exit 0")
    checkout.command(f"bin/{name}", "cat >/dev/null; exit 0")
    code, said = checkout.setup()
    assert (code, said) == (
        0,
        "setup: installing Python packages into .venv (a few hundred MB with the demo's)\n",
    )
    assert checkout.setup() == (0, "")


def test_headers_are_looked_for_by_the_compiler(checkout: Checkout) -> None:
    checkout.command("bin/python3", "exit 0")
    checkout.command("bin/clang", "! grep -q bpf/bpf_helpers.h")
    code, said = checkout.setup()
    assert code == 1
    assert said.startswith("error: missing: libbpf-dev linux-libc-dev \n")


def test_other_tools_are_told_by_their_commands(checkout: Checkout) -> None:
    checkout.command("bin/python3", "exit 0")
    checkout.command("bin/clang", "cat >/dev/null")
    checkout.command("bin/qemu-system-x86_64", "exit 0")
    code, said = checkout.setup("vm")
    assert code == 1
    assert "missing: mmdebstrap kmod e2fsprogs gcc make \n" in said
