"""The fixed workload that every kernel is tried with (tests/vm), on this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workloads.pagecache import refaulted_bytes

pytestmark = pytest.mark.kernel
ROOT = Path(__file__).parents[2]


def test_facts(built: Path, disk: Path) -> None:
    """Counts, bytes, boundaries and processes, whole; again where the host put pages out."""
    for attempt in range(3):
        before = refaulted_bytes()
        done = subprocess.run(
            [sys.executable, "tests/vm/guest/check_facts.py"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "FACTS_FOLDER": str(disk / f"{attempt}")},
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.returncode or refaulted_bytes() == before:
            break
    assert done.returncode == 0, done.stdout + done.stderr
