"""In a guest: the daemon comes up, says what this kernel gives, and goes when it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.workloads.waiting import wait_for

OUT = Path(os.environ["OUT"])
_PATIENCE_S = 120


def _doctor(*options: str) -> str:
    done = subprocess.run(["ttft", "doctor", *options], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:  # 1: something is missing, and told
        raise SystemExit(f"ttft doctor: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Writes $OUT/doctor.json and doctor.txt (with the daemon's answer) and daemon.log."""
    words = OUT / "daemon.log"
    with words.open("w") as log:
        daemon = subprocess.Popen(["ttftd", "run", "--state", "/tmp/state"], stderr=log)

    def settled() -> bool:
        return "watching" in words.read_text() or daemon.poll() is not None

    try:
        wait_for(settled, _PATIENCE_S, "the daemon to watch", poll_s=0.2)
        (OUT / "doctor.json").write_text(_doctor("--json"))
        (OUT / "doctor.txt").write_text(_doctor())
    finally:
        daemon.send_signal(signal.SIGTERM)
        status = daemon.wait(_PATIENCE_S)
    answered = json.loads((OUT / "doctor.json").read_text())["daemon"]
    if not answered or status:
        raise SystemExit(f"the daemon answered: {answered}, ended: {status}\n{words.read_text()}")


if __name__ == "__main__":
    main()
