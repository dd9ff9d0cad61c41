"""In a guest: the daemon comes up, says what this kernel gives, and goes when it is told to."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.vm.guest.daemon import tried


def main() -> None:
    """Writes $OUT/doctor.json and doctor.txt (with the daemon's answer) and daemon.log."""
    out, found = Path(os.environ["OUT"]), tried()
    (out / "doctor.json").write_text(found.doctor_json)
    (out / "doctor.txt").write_text(found.doctor)
    (out / "daemon.log").write_text(found.said)
    answered = json.loads(found.doctor_json)["daemon"]
    if not answered or found.status:
        raise SystemExit(f"the daemon answered: {answered}, ended: {found.status}\n{found.said}")


if __name__ == "__main__":
    main()
