"""Each way to install, on a real systemd: from nothing to an answer, and to nothing again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pack import wheels
from tests.service.machine import Said, Story

pytestmark = pytest.mark.service

#: A server that behaves like llama-server, with the port 8080, and one request to it.
SERVER = (
    "systemd-run -q --unit=server --setenv=PYTHONPATH=/mnt/checkout:/opt/libs bash -c "
    "'cd /mnt/checkout; sleep infinity | (exec -a llama-server python3 -m"
    " tests.workloads.stub_server --port 8080)'; "
    "until ss -Htln 'sport = 8080' | grep -q .; do sleep 0.5; done; "
    "until ttft status --json | grep -q '\"port\": 8080'; do sleep 0.5; done"
)
ASK = (
    "python3 /mnt/checkout/tests/service/ask.py 8080; "
    'until ttft requests --json | grep -q \'"outcome": "ok"\'; do sleep 1; done'
)
USERS = "useradd -m -G ttft alice && useradd -m bob"
RESTARTED = "until [ $(systemctl show -p NRestarts --value ttftd) -ge 1 ]; do sleep 1; done"
#: Set for the test only: so long a hang is not noticed otherwise.
SOON = (
    "mkdir -p /etc/systemd/system/ttftd.service.d && printf '[Service]\\nWatchdogSec=12\\n'"
    " > /etc/systemd/system/ttftd.service.d/soon.conf && systemctl daemon-reload"
    " && systemctl restart ttftd"
)
HANG = (
    "kill -STOP $(systemctl show -p MainPID --value ttftd); "
    f"{RESTARTED}; "
    "until systemctl is-active -q ttftd; do sleep 1; done; "
    "journalctl -u ttftd --no-pager | grep -o 'Watchdog timeout'"
)
KILLED = (
    "systemctl kill -s KILL ttftd; "
    f"{RESTARTED}; "
    "until systemctl is-active -q ttftd; do sleep 1; done; ttft requests --json"
)
BAD_CONFIG = (
    "printf 'nonsense' > /etc/ttft/config.toml; systemctl reload ttftd; "
    "until journalctl -u ttftd --no-pager | grep -o 'configuration not taken.*'; do sleep 0.5;"
    " done; systemctl is-active ttftd; "
    "printf '[spike]\\nmin_ms = 111.0\\n' > /etc/ttft/config.toml; systemctl reload ttftd; "
    "until journalctl -u ttftd --no-pager | grep -o 'read again: .*'; do sleep 0.5; done"
)
LEFT = "ls -d /var/lib/ttft /etc/ttft /etc/systemd/system/ttftd.service; getent passwd ttft"
FIRST_STEPS = {
    "users": USERS,
    "server": SERVER,
    "ask": ASK,
    "member": "su - alice -c 'ttft requests --json'",
    "outsider": "su - bob -c 'ttft requests'",
    "who": "ps -o user=,comm= -p $(systemctl show -p MainPID --value ttftd)",
    "exposure": "systemd-analyze security ttftd | tail -1",
}


def requests(said: Said) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(said.output)
    return found


def assert_first_steps(said: dict[str, Said]) -> None:
    """A member of the group gets the answer, an outsider what to do; nobody is root."""
    (answer,) = requests(said["member"])
    assert (answer["outcome"], answer["server"]) == ("ok", "llama-server:8080")
    assert answer["ttft_ms"] > 0
    assert said["outsider"] == Said(
        1,
        "ttft: no permission to use /run/ttft/ttft.sock\n"
        "hint: use sudo, or join the group ttft: sudo usermod -aG ttft $USER, "
        "then log out and in again",
    )
    assert said["who"].output.split()[0] == "ttft"
    exposure = float(said["exposure"].output.partition(": ")[2].split()[0])
    assert exposure <= 2.5


def test_the_debian_package_on_debian_12(tmp_path: Path, package: Path) -> None:
    story = Story("6.1", "bookworm", tmp_path, [package])
    story.boot(
        {
            "install": f"dpkg -i /mnt/out/{package.name}",
            **FIRST_STEPS,
            "refused": "ttft service uninstall",
        },
        timeout_s=1800,
    )
    said = story.said
    assert said["install"].status == 0, said["install"].output
    assert "  done     start" in said["install"].output.splitlines()
    assert_first_steps(said)
    assert said["refused"].status == 1
    assert "hint: apt remove ttft" in said["refused"].output
    story.boot(
        {
            "booted": "until systemctl is-active -q ttftd; do sleep 1; done; ttft requests --json",
            "config": BAD_CONFIG,
            "killed": KILLED,
            "soon": SOON,
            "hang": HANG,
            "again": f"dpkg -i /mnt/out/{package.name}; ttft requests --json | head -c 1",
            "remove": f"dpkg -r ttft; systemctl is-active ttftd; {LEFT}",
            "purge": f"dpkg -P ttft; {LEFT}",
        },
        timeout_s=1800,
    )
    first = requests(said["member"])
    assert requests(said["booted"]) == first
    lines = said["config"].output.splitlines()
    assert lines[0].startswith("configuration not taken, all stays as it was: /etc/ttft/config")
    assert lines[1:] == ["active", "read again: spike changed"]
    assert requests(said["killed"]) == first
    assert said["hang"].output.splitlines()[0] == "Watchdog timeout"
    assert said["again"].status == 0, said["again"].output
    assert said["remove"].output.splitlines()[-3:-1] == ["/etc/ttft", "/var/lib/ttft"]
    assert said["purge"].status != 0
    assert "/ttft\n" not in said["purge"].output.replace("cannot access", "")


def test_a_venv_on_debian_13(tmp_path: Path, package: Path) -> None:
    wheel = next(package.parent.glob("ttft-*.whl"))
    brought = [wheel, *wheels.needed(wheel, "3.13", "x86_64", tmp_path / "wheels")]
    story = Story("6.12", "trixie", tmp_path, brought)
    story.boot(
        {
            "pip": "python3 -m venv --without-pip /opt/ttft && PYTHONPATH=$(echo "
            "/usr/share/python-wheels/pip-*.whl) python3 -m pip --python /opt/ttft install -q"
            " --no-compile --no-index --find-links /mnt/out ttft"
            " && ln -sf /opt/ttft/bin/ttft /usr/local/bin/ttft",
            "dry": "ttft service install --dry-run; getent passwd ttft; ls -d /etc/ttft",
            "install": "ttft service install",
            "twice": "ttft service install",
            **FIRST_STEPS,
            "status": "ttft service status --json",
            "uninstall": f"ttft service uninstall; systemctl is-active ttftd; {LEFT}",
            "purge": f"ttft service install >/dev/null && ttft service uninstall --purge; {LEFT}",
        },
        timeout_s=1800,
    )
    said = story.said
    assert said["pip"].status == 0, said["pip"].output
    assert all(line.startswith("  would ") for line in said["dry"].output.splitlines()[:-1])
    assert said["dry"].status != 0
    assert said["install"].status == 0, said["install"].output
    assert {line[:9].strip() for line in said["twice"].output.splitlines()[:6]} == {"already"}
    assert_first_steps(said)
    status = json.loads(said["status"].output)
    assert (status["state"], status["at_boot"], status["restarts"]) == ("active", True, 0)
    lines = said["uninstall"].output.splitlines()
    assert [line for line in lines if line.startswith("/")] == ["/etc/ttft", "/var/lib/ttft"]
    assert "inactive" in lines
    assert said["purge"].status != 0
    assert [line for line in said["purge"].output.splitlines() if line.startswith("/")] == []


def test_the_bundle_without_python_on_a_read_only_system(tmp_path: Path, archive: Path) -> None:
    folder = "/data/" + archive.name.removesuffix(".tar.gz")
    story = Story("6.1", "bookworm", tmp_path, [archive])
    story.boot(
        {
            "bare": "rm -rf /usr/bin/python3* /usr/lib/python3* /usr/lib/x86_64-linux-gnu/libbpf*; "
            "mkdir -p /data; mount -t tmpfs data /data; mount -t tmpfs state /var/lib;"
            f" tar -xzf /mnt/out/{archive.name} -C /data;"
            " for at in /etc /usr; do mount --bind $at $at; mount -o remount,bind,ro $at; done;"
            " touch /etc/x; touch /usr/x; command -v python3",
            "install": f"{folder}/install",
            "status": f"{folder}/bin/ttft status --json",
            "unit": "systemctl show -p FragmentPath,UnitFileState,ActiveState ttftd",
            "doctor": f"{folder}/bin/ttft doctor",
            "uninstall": f"{folder}/uninstall --purge; systemctl is-active ttftd; ls /var/lib/ttft",
        },
        timeout_s=1800,
    )
    said = story.said
    assert said["bare"].output.count("Read-only file system") == 2
    assert said["bare"].status != 0, "a python3 is still there"
    assert said["install"].status == 0, said["install"].output
    assert json.loads(said["status"].output)["servers"] == []
    assert set(said["unit"].output.splitlines()) == {
        "FragmentPath=/run/systemd/system/ttftd.service",
        "UnitFileState=disabled",
        "ActiveState=active",
    }
    assert said["doctor"].status == 0, said["doctor"].output
    assert "inactive" in said["uninstall"].output.splitlines()
