"""In a guest, whose clock may be set: times of day follow it, and the status says so."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.workloads.llama import free_port
from tests.workloads.stub_clients import call, stream
from tests.workloads.stub_server import StubServer
from tests.workloads.ttftd import Ttftd
from tests.workloads.waiting import wait_for

#: Ahead by a year, as where the battery of a clock is empty, and back.
STEPS_S = (365 * 86_400.0, -365 * 86_400.0)
_PATIENCE_S = 120
#: An emulated guest takes its time.
_NEAR_S = 60.0


def main() -> None:
    """Writes $OUT/clock.json: after each step how far off the next request's time was."""
    if platform.machine() != "x86_64":
        print("not tried: clocks are the same everywhere, and this guest is slow")
        return
    port = free_port()
    config = f'[[server]]\nname = "stub"\nport = {port}\n'
    found: list[dict[str, Any]] = []
    with StubServer(chunks=2, port=port), Ttftd(Path("/tmp/clock"), config) as daemon:
        daemon.wait_server(port, _PATIENCE_S)
        for step in (0.0, *STEPS_S):
            time.clock_settime(time.CLOCK_REALTIME, time.time() + step)
            before = len(ended(daemon))
            asyncio.run(stream("127.0.0.1", port, call("stub", 2)))

            def explained(known: int = before) -> bool:
                return len(ended(daemon)) > known

            wait_for(explained, _PATIENCE_S, "the request", 0.2)
            came = max(ended(daemon), key=lambda one: int(one["id"]))["wall_time"]
            off = time.time() - datetime.fromisoformat(came).timestamp()
            clock = daemon.get("/v1/status")["clock"]
            found.append({"step_s": step, "off_s": round(off, 3), "clock": clock})
    (Path(os.environ["OUT"]) / "clock.json").write_text(json.dumps(found, indent=1) + "\n")
    wrong = [one for one in found if not -1 < one["off_s"] < _NEAR_S]
    steps = [one["clock"]["steps"] for one in found]
    last = [one["clock"]["last_step_s"] for one in found[1:]]
    near = [abs(told - step) < _NEAR_S for told, step in zip(last, STEPS_S, strict=True)]
    if wrong or steps != [0, 1, 2] or not all(near):
        raise SystemExit(f"the clock: {json.dumps(found)}")


def ended(daemon: Ttftd) -> list[dict[str, Any]]:
    """All there are; a clock that was set back makes none of them the last."""
    return [one for one in daemon.requests() if one["outcome"] != "open"]


if __name__ == "__main__":
    main()
