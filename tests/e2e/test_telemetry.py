"""Devices are read while a request waits, and let go of after it; on a stand-in for NVML."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.telemetry_host import BUS, Host, compiled
from tests.workloads.held_device import NODE, HoldingServer, TelemetryDaemon
from tests.workloads.ttftd import Json, ttft
from tests.workloads.waiting import wait_for

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]


class Setup:
    """A server that holds a device, and the daemon on the host that has it."""

    def __init__(self, folder: Path, server: HoldingServer, host: Host) -> None:
        self.server = server
        entry = f'[[server]]\nname = "held"\nport = {server.port}\n'
        self.daemon = TelemetryDaemon(folder, host.proc.parent, entry)

    def mine(self) -> list[Json]:
        """Requests of this server: others of this machine are watched, too."""
        return [x for x in self.daemon.requests() if x["server"].startswith("held")]

    def asked(self, wait_ms: int, count: int) -> Json:
        """The answer to the `count`th request, once it is over."""
        self.server.chat(max_tokens=wait_ms)

        def over() -> bool:
            found = self.mine()
            return len(found) == count and all(one["outcome"] != "open" for one in found)

        wait_for(over, 15, "it to be explained", 0.05)
        return dict(self.daemon.get(f"/v1/requests/{self.mine()[-1]['id']}"))

    def restart(self) -> None:
        self.daemon.stop()
        self.daemon.start()
        self.daemon.wait_server(self.server.port)

    def loaded(self) -> bool:
        return "libnvidia-ml" in Path(f"/proc/{self.daemon.pid}/maps").read_text()

    def told(self) -> Json:
        return dict(self.daemon.get("/v1/status")["telemetry"])


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    (tmp_path / "lib").mkdir()
    compiled(tmp_path / "lib")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    host = Host(tmp_path / "host")
    host.nvidia()
    node = host.write(f"dev/{NODE}", "")
    with HoldingServer(node) as server:
        (host.proc / str(server.pid)).symlink_to(f"/proc/{server.pid}")
        one = Setup(tmp_path / "ttftd", server, host)
        with one.daemon:
            one.daemon.wait_server(server.port)
            yield one


def test_read_while_it_waits_and_let_go(setup: Setup) -> None:
    for count in range(1, 4):
        quick = setup.asked(30, count)
        assert quick["evidence_detail"]["telemetry"] == []
        if not setup.loaded():
            break
        setup.restart()  # a daemon that is kept from its work sees the answer late
    assert not setup.loaded(), "a quick answer is left alone"
    slow = setup.asked(2500, count + 1)
    (seen,) = slow["evidence_detail"]["telemetry"]
    assert (seen["device"], seen["source"], seen["name"]) == (BUS, "nvml", "Stand-in [2J GPU")
    assert (seen["clock_mhz"], seen["clock_max_mhz"], seen["limits"]) == (
        210, 2100, ["power", "thermal"],
    )  # fmt: skip
    assert 3 <= seen["readings"] <= 12
    assert setup.loaded()
    wait_for(lambda: not setup.told()["holding"], 10, "it to let go", 0.05)
    assert setup.told()["devices"] == {BUS: "Stand-in [2J GPU"}
    assert setup.told()["troubles"] == []
    shown = ttft("show", str(slow["id"]), socket=setup.daemon.socket).stdout
    assert "210 of 2100 MHz (P8)" in " ".join(shown.split())
    assert "Stand-in [2J GPU (0000:01:00.0)" in ttft("status", socket=setup.daemon.socket).stdout
    trace = setup.daemon.get(f"/v1/requests/{slow['id']}/trace")
    clocks = [e for e in trace["traceEvents"] if e["name"] == "clock in MHz"]
    assert len(clocks) >= 2 * seen["readings"] - 2


def test_a_recording_has_the_readings(setup: Setup, tmp_path: Path) -> None:
    path = tmp_path / "out.ttft"
    with setup.daemon.recording(path):
        slow = setup.asked(2500, 1)
    replayed = ttft("replay", str(path), "--json").stdout
    assert '"prefill"' in replayed
    lines = path.read_text().splitlines()
    told = [line for line in lines if '"t":"telemetry"' in line]
    assert len(told) >= slow["evidence_detail"]["telemetry"][0]["readings"] >= 2


def test_the_daemon_ends_at_once_while_it_reads(setup: Setup) -> None:
    setup.asked(600, 1)
    began = time.monotonic()
    setup.daemon.stop()
    assert time.monotonic() - began < 10
    log = setup.daemon.log.read_text()
    assert "Traceback" not in log
    assert "NVML" not in log
    setup.daemon.start()  # for the fixture to end
