"""In a guest: a daemon for a moment, and what is said about it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.workloads.waiting import wait_for

_PATIENCE_S = 120


@dataclass(frozen=True)
class Try:
    """What came of a start. `status` 0: it watched, and ended when it was told to."""

    status: int
    said: str
    doctor_json: str
    doctor: str


def tried() -> Try:
    """Starts the daemon, asks the doctor once it watches or has given up, and ends it."""
    words = Path("/tmp/daemon.log")
    with words.open("w") as log:
        daemon = subprocess.Popen(["ttftd", "run", "--state", "/tmp/state"], stderr=log)

    def settled() -> bool:
        return "watching" in words.read_text() or daemon.poll() is not None

    try:
        wait_for(settled, _PATIENCE_S, "the daemon to watch", poll_s=0.2)
        as_json, as_text = _answered(daemon), _doctor()
    finally:
        daemon.send_signal(signal.SIGTERM)
        status = daemon.wait(_PATIENCE_S)
    return Try(status, words.read_text(), as_json, as_text)


def _answered(daemon: subprocess.Popen[bytes]) -> str:
    """What the doctor says once the daemon answers it, which a slow guest's may take a while to."""
    until = time.monotonic() + _PATIENCE_S
    found = _doctor("--json")
    while not json.loads(found)["daemon"] and time.monotonic() < until and daemon.poll() is None:
        found = _doctor("--json")
    return found


def _doctor(*options: str) -> str:
    done = subprocess.run(["ttft", "doctor", *options], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:  # 1: something is missing, and told
        raise SystemExit(f"ttft doctor: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
