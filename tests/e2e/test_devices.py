"""Driver calls of a server that is asked, on a device that the configuration names."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.workloads.device_server import DEVICE, DeviceServer
from tests.workloads.ttftd import Json, Ttftd, ttft
from tests.workloads.waiting import wait_for

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]

CALLS = 137


def _config(server: DeviceServer, nodes: str) -> str:
    return f'[devices]\nnodes = [{nodes}]\n[[server]]\nname = "driven"\nport = {server.port}\n'


def _group(daemon: Ttftd) -> Json:
    (found,) = (p for p in daemon.get("/v1/status")["probes"] if p["group"] == "devices")
    return dict(found)


def _asked(daemon: Ttftd, server: DeviceServer, times: int) -> list[Json]:
    daemon.wait_server(server.port)
    for count in range(1, times + 1):
        server.chat()
        wait_for(partial(_over, daemon, count), 15, f"{count} explained requests", 0.05)
    return daemon.requests()


def _over(daemon: Ttftd, count: int) -> bool:
    found = daemon.requests()
    return len(found) == count and all(one["outcome"] != "open" for one in found)


def test_each_request_has_its_calls(tmp_path: Path) -> None:
    """Open, ioctls and close, of each request its own; and nothing once all is quiet."""
    with (
        DeviceServer(CALLS) as server,
        Ttftd(tmp_path, _config(server, f'"{DEVICE}"')) as daemon,
    ):
        found = _asked(daemon, server, 3)
        assert [one["evidence"]["gpu_calls"] for one in found] == [CALLS + 2] * 3
        shown = daemon.get(f"/v1/requests/{found[1]['id']}")
        rows = [
            (x["tgid"], x["device"], x["driver"], x["what"], x["count"], x["failed"])
            for x in shown["evidence_detail"]["devices"]
        ]
        assert sorted(rows) == [
            (server.pid, "random", "extra", "free", 1, 0),
            (server.pid, "random", "extra", "open", 1, 0),
            (server.pid, "random", "extra", "other", CALLS, 0),
        ]
        assert f"driver calls  {CALLS + 2}: " in ttft("show", "2", socket=daemon.socket).stdout
        doctor = ttft("doctor", socket=daemon.socket).stdout
        assert "driver calls: of random; launches" in doctor
        turned = shown["evidence_detail"]["probes_changed"]
        assert [x["on"] for x in turned if x["group"] == "devices"][-1]
        wait_for(lambda: not _group(daemon)["attached"], 30, "the probes to go off", 0.1)


def test_without_such_a_device_nothing_is_attached(tmp_path: Path) -> None:
    """And how many calls there were is not known, rather than none."""
    with DeviceServer(CALLS) as server, Ttftd(tmp_path, _config(server, "")) as daemon:
        (found,) = _asked(daemon, server, 1)
        assert found["evidence"]["gpu_calls"] is None
        group = _group(daemon)
        assert (group["attached"], group["off_because"]) == (False, "this host has no accelerator")


def test_a_recording_has_them(tmp_path: Path) -> None:
    """Replayed, the answer is the same to the last byte."""
    recording = tmp_path / "recording"
    with (
        DeviceServer(CALLS) as server,
        Ttftd(tmp_path, _config(server, f'"{DEVICE}"')) as daemon,
    ):
        daemon.wait_server(server.port)
        with daemon.recording(recording):
            (found,) = _asked(daemon, server, 1)
        assert found["evidence"]["gpu_calls"] == CALLS + 2
        live = ttft("show", str(found["id"]), "--json", socket=daemon.socket).stdout
    again = ttft("replay", str(recording), "--show", str(found["id"]), "--json")
    assert (again.returncode, again.stdout) == (0, live)
