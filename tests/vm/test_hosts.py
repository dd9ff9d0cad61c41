"""Hosts as they come: the daemon starts there or says why not, and the doctor what is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.vm import lane
from tests.vm.machine import Result

pytestmark = [pytest.mark.vm, pytest.mark.parametrize("host", lane.hosts())]


def told(guest: Result) -> dict[str, Any]:
    """What was said there, without what differs from one day to the next."""
    failed = [c for c in guest.commands if c.status]
    assert not failed, f"{failed[0].command}: {failed[0].status}\n{failed[0].output}"
    found: dict[str, Any] = json.loads((guest.out / "host.json").read_text())
    del found["doctor_text"]  # for people; has the kernel's version
    return found | {"doctor": lane.normal(found["doctor"])}


def test_host(guest: Result, host: str) -> None:
    found, path = told(guest), lane.EXPECTED / "hosts" / f"{host}.json"
    if lane.RENEW:
        lane.write_json(path, found)
    expected = json.loads(path.read_text())
    doctors = expected["doctor"], found["doctor"]
    assert found == expected, "\n".join([*found["said"], *lane.differences(*doctors)])


def test_kernel_is_content(guest: Result, host: str) -> None:
    assert lane.trouble(guest.dmesg) == []
