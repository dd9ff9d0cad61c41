"""The linters, as tests, so that one summary tells of them too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
C_SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "bpf").glob("*.[ch]"))
BIN = Path(sys.executable).parent

COMMANDS = {
    "ruff check": [sys.executable, "-m", "ruff", "check", "."],
    "ruff format": [sys.executable, "-m", "ruff", "format", "--check", "."],
    "mypy": [sys.executable, "-m", "mypy", "--strict"],
    "clang-format": [str(BIN / "clang-format"), "--dry-run", "--Werror", *C_SOURCES],
    "setup.sh": ["sh", "-n", "scripts/setup.sh"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_lint(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_bpf_sources_are_linted() -> None:
    assert len(C_SOURCES) > 1
