"""Each kernel that people run: the object loads, the daemon runs, and says what it lacks there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.vm import lane
from tests.vm.machine import Result

pytestmark = [pytest.mark.vm, pytest.mark.parametrize("kernel", lane.kernels())]


def artefact(guest: Result, name: str) -> dict[str, Any]:
    path = guest.out / name
    assert path.exists(), f"the guest left no {name}"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("check", lane.checks())
def test_check(guest: Result, kernel: str, check: str) -> None:
    done = next(c for c in guest.commands if c.command.endswith(f"/check_{check}.py"))
    assert done.status == 0, f"{guest.release}: status {done.status}\n{done.output}"


def test_doctor(guest: Result, kernel: str) -> None:
    found = lane.normal(artefact(guest, "doctor.json"))
    path = lane.EXPECTED / f"{kernel}.json"
    if lane.RENEW:
        lane.write_json(path, found)
    expected = json.loads(path.read_text())
    assert found == expected, "\n".join(lane.differences(expected, found))


def test_verified_instructions(guest: Result, kernel: str) -> None:
    programs = artefact(guest, "object.json")["programs"]
    found = {name: sizes["verified"] for name, sizes in programs.items()}
    path = lane.EXPECTED / "verified.json"
    expected = json.loads(path.read_text()) if path.exists() else {}
    if lane.RENEW:
        expected[kernel] = found
        lane.write_json(path, dict(sorted(expected.items())))
    assert lane.nearing(expected[kernel], found) == []


def test_kernel_is_content(guest: Result, kernel: str) -> None:
    assert lane.trouble(guest.dmesg) == []
