"""In a guest: a runner whose driver takes long to come up, as the daemon explains it.

The driver, the router and its runner are stand-ins; what the daemon tells is compared with the
runner's own clock.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.vm.guest import setups_making as making
from tests.workloads.waiting import wait_for
from tracer.client import Client

PORT = 8090
MIB = 1 << 20
OPEN_US, CALL_US = 2_500_000, 3000
_CALLS = 5
#: A busy host stops a guest where it likes: that makes a try worse, never better.
TRIES = 4
#: How near the delay is to be recovered.
NEAR = 0.03
#: A start of a device that was up already is less than this, ms.
WARM_MS = 100.0
_SERVER = Path(__file__).with_name("devices_server.py")
_PROGRAM = Path("/usr/local/bin/llama-server")
_MODELS = Path("/var/tmp/device-models")
_SAID = Path("/run/devices.said")
_WAIT_S = 90.0
NAMES = ("first", "second")
STAGE = "spawn.device"


def _prepare() -> None:
    _MODELS.mkdir()
    for name in NAMES:
        (_MODELS / f"{name}.gguf").write_bytes(b"GGUF" + bytes(3 * MIB))
    shutil.copy(Path(sys.executable).resolve(), _PROGRAM)


def _listens() -> bool:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(f":{PORT:04X} " in line and " 0A " in line for line in lines)


def _ask(model: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=_WAIT_S)
    body = json.dumps({"model": model, "messages": [], "stream": True})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse().read()
    if b"[DONE]" not in answer:
        raise SystemExit(f"{model} was answered {answer!r}")


def _explained(client: Client, count: int) -> dict[str, Any]:
    """The latest of so many requests."""

    def get(path: str) -> Any:
        return json.loads(client.get(path))

    wait_for(lambda: len(get("/v1/requests")) == count, _WAIT_S, f"{count} requests", poll_s=0.2)
    latest = max(one["id"] for one in get("/v1/requests"))
    found: dict[str, Any] = get(f"/v1/requests/{latest}")
    return found


class Story:
    """Requests, each for another model than the one before, so that a runner starts."""

    def __init__(self, module: Path) -> None:
        self._module = module
        self._client = Client("/run/devices.sock")
        self.requests: list[dict[str, Any]] = []

    @property
    def measured_ms(self) -> list[float]:
        """In driver calls, by the runners themselves."""
        return [int(line) / 1e6 for line in _SAID.read_text().split()]

    def _ask(self) -> tuple[dict[str, Any], list[str]]:
        name = NAMES[len(self.requests) % len(NAMES)]
        _ask(name)
        one = _explained(self._client, len(self.requests) + 1)
        self.requests.append(one)
        told = [] if one["model"] == name else [f"{name} is told as {one['model']}"]
        if abs(sum(one["phases_ms"].values()) - one["ttft_ms"]) > 1e-6:
            told.append(f"the phases of request {one['id']} do not add up")
        if not one["evidence"]["gpu_calls"]:
            told.append(f"request {one['id']}: gpu_calls {one['evidence']['gpu_calls']}")
        return one, told

    def slow(self) -> list[str]:
        """The device is brought up for each runner: that is the cause, as long as it took."""
        delay = (OPEN_US + _CALLS * CALL_US) / 1000
        for _ in range(TRIES):
            one, told = self._ask()
            stage, own = one["stages_ms"].get(STAGE, 0.0), self.measured_ms[-1]
            for who, took in (("the runner says", own), ("the driver was told to take", delay)):
                if abs(stage - took) > NEAR * took:
                    told.append(f"{STAGE} {stage} ms, {who} {took}")
            spike = one["spike"]
            if spike["cause"] != STAGE or "persistence" not in (spike["advice"] or ""):
                told.append(f"the verdict on a slow open: {spike}")
            if not told:
                break
        return told

    def warm(self) -> list[str]:
        """From here on the device stays up, as with persistence mode: something else is slow."""
        (self._module / "persistent").write_text("1")
        one, told = self._ask()
        stage = one["stages_ms"].get(STAGE, 0.0)
        if not _CALLS * CALL_US / 1000 <= stage < WARM_MS or one["spike"]["cause"] == STAGE:
            told.append(f"of a device that was up: {stage} ms, {one['spike']}")
        return told


def run(out: Path, nodes: Path, module: Path) -> list[str]:
    """What is wrong. Leaves device-start.json: the requests, and what the runners measured."""
    _prepare()
    for name, value in (("open_us", OPEN_US), ("call_us", CALL_US)):
        (module / name).write_text(str(value))
    said = out / "device-start.said"
    front = subprocess.Popen(
        [_PROGRAM, _SERVER, "--models-dir", _MODELS, "--nodes", nodes, "--said", _SAID,
         "--port", str(PORT)],
        start_new_session=True,
    )  # fmt: skip
    daemon = 0
    try:
        wait_for(_listens, _WAIT_S, "the front to listen")
        daemon = making.fork(making.ttftd("devices"), said)
        if making.settled(daemon, said) is not None:
            return [f"the daemon does not run: {said.read_text()}"]
        story = Story(module)
        wrong = [*story.slow(), *story.warm()]
    finally:
        os.killpg(front.pid, signal.SIGKILL)  # its runner too
        front.wait()
        if daemon:
            os.kill(daemon, signal.SIGTERM)
            making.ended(daemon)
    facts = {"requests": story.requests, "measured_ms": story.measured_ms}
    (out / "device-start.json").write_text(json.dumps(facts, indent=1))
    return wrong
