"""In a guest that is an unusual host: does the daemon start there, and what is said about it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.vm.guest.daemon import tried


def main() -> None:
    """Writes $OUT/host.json."""
    found = tried()
    told = {
        "status": found.status,
        "said": found.said.splitlines(),
        "doctor": json.loads(found.doctor_json),
        "doctor_text": found.doctor.splitlines(),
    }
    (Path(os.environ["OUT"]) / "host.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
