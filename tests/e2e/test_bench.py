"""The benchmark runs, says what it should, and leaves a file; its figures are no matter here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.unrelated import NAMED, SEGMENTS, WHEN
from bench.workload import WORKS
from tests.e2e.conftest import ROOT

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]


def test_quick(weights: Path, tmp_path: Path) -> None:
    names = ["unrelated", "probes", "memory", "calls"]
    command = [sys.executable, "-m", "bench", "--quick", *names]
    where = ["--out", str(tmp_path), "--models", str(weights)]
    done = subprocess.run([*command, *where], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    told = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in names}
    assert {one["plan"] for one in told.values()} == {"quick"}
    rows = {row["what"]: row for one in told.values() for row in one["rows"]}
    assert all(f"| {what} " in done.stdout for what in rows)

    works = [f"{WORKS[work][0]}, {named}" for named in NAMED.values() for work in WORKS]
    works.append(f"{WORKS[SEGMENTS][0]}, {WHEN['root']}")
    assert all(rows[what]["data"]["slices"] > 0 for what in works)
    assert all(rows[what]["data"]["control_slices"] > 0 for what in works)
    assert rows["ttft_ingress"]["data"]["warm"]["runs"] > 0
    assert rows["ttft_insert"]["data"]["cold"]["runs_each"] > 1000
    assert rows["a watched call: cuda, an argument"]["data"]["ns"]["watched"] > 0
    start = rows["daemon memory (PSS) after the start"]["data"]
    assert sum(start["parts"].values()) == start["bytes"] > 20_000_000
    assert start["parts"]["rings"] > 1 << 20
