"""Hosts as they come: it works with the right facts, or says what is lost and what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.vm import lane, setups
from tests.vm.guest.setups_containers import MODEL, PAGE, PORT, SIZES
from tests.vm.machine import Result

pytestmark = [
    pytest.mark.vm,
    pytest.mark.parametrize("made_on", [k for k in lane.kernels() if k == setups.KERNEL]),
]
_WATCHING = "watching; answers at"
#: Nothing was installed in these guests.
_NO_GROUP = "ttftd: there is no group ttft: only root may ask"
_ON_HOST = "run ttftd on the host itself: from there it sees the servers in containers, too"
_CGROUP = "requests cannot be seen without the cgroup v2 root"
_NO_TYPES = "no type information (BTF) in /sys/kernel/btf/vmlinux: No such file or directory"
#: Where the daemon does not run: what it says, and what to do.
REFUSED = {
    "v1-service": (
        f"{_CGROUP}: not mounted, and it may not be mounted for ttftd alone: "
        "Operation not permitted",
        "mkdir -p /sys/fs/cgroup/unified; mount -t cgroup2 none /sys/fs/cgroup/unified",
    ),
    "no-sysfs": (_NO_TYPES, "mount -t sysfs sysfs /sys"),
    "no-types": (
        _NO_TYPES,
        "use a kernel with CONFIG_DEBUG_INFO_BTF=y, or give its types by --btf FILE",
    ),
    "unprivileged-container": (
        "ttftd is in an unprivileged container (a user namespace), where the kernel takes no "
        "BPF programs",
        _ON_HOST,
    ),
    "container": (
        "ttftd is in a container with process ids of its own (a pid namespace), so it cannot "
        "tell whose events the kernel reports",
        f"{_ON_HOST}; docker has --pid=host",
    ),
    "container-host-pid": (
        f"{_CGROUP}: only this container's own part is here",
        "run ttftd on the host, or give its container the host's cgroups and processes",
    ),
    "confidentiality": (
        "this kernel is locked down: programs may not read its memory",
        "boot without lockdown=confidentiality; lockdown=integrity takes nothing away",
    ),
    "memlock-unraisable": (
        "too little locked memory for the BPF maps: 64 KiB are allowed, 65536 are enough",
        "LimitMEMLOCK=infinity in the unit, ulimit -l unlimited in a shell",
    ),
}


def test_all_set_ups_were_made(guest: Result, made_on: str) -> None:
    done = guest.commands[0]
    assert done.status == 0, done.output
    assert lane.trouble(guest.dmesg) == []


@pytest.mark.parametrize("setup", setups.SETUPS, ids=lambda setup: setup.name)
def test_doctor(guest: Result, made_on: str, setup: setups.Setup) -> None:
    found = setups.screen(guest.out, setup.name)
    path = setups.EXPECTED / f"{setup.name}.txt"
    if lane.RENEW:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize(
    "setup", [s for s in setups.SETUPS if s.ttftd is not None], ids=lambda setup: setup.name
)
def test_daemon(guest: Result, made_on: str, setup: setups.Setup) -> None:
    outcome, *lines = (guest.out / f"{setup.name}.ttftd").read_text().splitlines()
    said = [line for line in lines if not line.startswith(_NO_GROUP)]
    assert len(lines) - len(said) <= 1
    if setup.name in REFUSED:
        message, hint = REFUSED[setup.name]
        assert (outcome, said) == ("1", [f"ttftd: {message}", f"hint: {hint}"])
    else:
        assert outcome == "runs, 0"
        assert [line for line in said if _WATCHING not in line] == []


@pytest.fixture
def containers(guest: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((guest.out / "containers.json").read_text())
    return found


NAMES = [f"llama-server:{PORT}", f"llama-server:{PORT}@second"]


def test_two_containers_with_the_same_port(containers: dict[str, Any], made_on: str) -> None:
    """On a host with cgroup v1 only, and neither tracefs nor bpffs mounted."""
    servers = containers["status"]["servers"]
    assert [(s["name"], s["port"], s["requests"]) for s in servers] == [
        (NAMES[0], PORT, 2), (NAMES[1], PORT, 1),
    ]  # fmt: skip
    assert len({server["pid"] for server in servers}) == 2
    assert containers["status"]["lost"] == {}
    off = [
        p["group"] for p in containers["status"]["probes"] if p["required"] and not p["attached"]
    ]
    assert off == []
    models = {model["server"]: model for model in containers["models"]}
    assert [models[name]["size_bytes"] for name in NAMES] == list(SIZES.values())


def test_files_of_containers(containers: dict[str, Any], made_on: str) -> None:
    """On a bind mount and in the image: paths as the server has them, bytes from the disk."""
    told = []
    for request in containers["requests"]:
        detail = request["evidence_detail"]
        weights = [file for file in detail["files"] if file["path"] == MODEL]
        told.append((request["server"], request["complete"], request["evidence"], weights))
    cold = [(name, e["weights_bytes"], e["weights_bytes_from_disk"]) for name, _, e, _ in told]
    sizes = list(SIZES.values())
    pages = [-(-size // PAGE) * PAGE for size in sizes]
    assert cold == [
        (NAMES[0], sizes[0], pages[0]), (NAMES[1], sizes[1], pages[1]), (NAMES[0], 0, 0),
    ]  # fmt: skip
    assert all(complete for _, complete, _, _ in told)
    places = {(f["size"], f["file_system"], f["device"]) for *_, files in told for f in files}
    assert places == {(size, "ext4", "/dev/vda") for size in sizes}
