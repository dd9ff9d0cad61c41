"""The demo itself: nine scenarios on the real server, every verdict checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo.scenarios import NAMES
from tests.e2e.conftest import ROOT

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]


def test_demo(weights: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo", "--out", str(tmp_path), "--models", str(weights)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RECORDING" not in done.stdout
    requests = json.loads((tmp_path / "requests.json").read_text())
    client = json.loads((tmp_path / "client.json").read_text())
    assert [entry["scenario"] for entry in client] == list(NAMES)
    assert [answer["model"] for answer in requests] == [entry["model"] for entry in client]
    arrivals = [answer["at_ns"]["arrival"] for answer in requests]
    assert arrivals == sorted(arrivals)
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert max(map(len, done.stdout.splitlines())) <= 200
