"""What the guests' `check_devices` tried: on one kernel the stand-in for drivers, on all vgem.

The module that answers NVIDIA's and AMD's calls is a stand-in, no device is driven.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.vm import lane
from tests.vm.catalogue import catalogue
from tests.vm.guest import devices_known as known
from tests.vm.machine import Result

#: An object is made, first of all a client's own.
RM_ALLOC = 0x2B
WITH_MODULE = [name for name in lane.kernels() if catalogue().kernels[name].headers]

#: No stand-in is built for others.
TRIED = [name for name in lane.kernels() if catalogue().kernels[name].arch == "amd64"]

pytestmark = [pytest.mark.vm, pytest.mark.parametrize("kernel", TRIED)]


def facts(guest: Result, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((guest.out / name).read_text())
    return found


def test_what_was_tried(guest: Result, kernel: str) -> None:
    """Where a module can be built it was loaded, and every call of the list made."""
    found = facts(guest, "devices.json")
    assert found["module"] == (kernel in WITH_MODULE)
    assert found["steps"] > (len(known.ALL) if found["module"] else 0) + 10
    for what, (theirs, ours) in found["times"].items():
        print(f"{what}: {ours / 1e6:.1f} ms, the program says {theirs / 1e6:.1f}")


def test_a_real_clients_first_calls(guest: Result, kernel: str) -> None:
    """NVIDIA's own library on the stand-in: asks for the version, makes a client, gives up."""
    if kernel in WITH_MODULE:
        library = facts(guest, "devices.json")["libcuda"]
        assert RM_ALLOC in library["numbers"]
        counts = {name: one["count"] for name, one in library["calls"].items()}
        assert counts["nvidiactl open"] == 1
        assert counts["nvidiactl query"] > 1
        assert counts["nvidiactl context"] == 1
        assert {one["failed"] for one in library["calls"].values()} == {0}


def test_slow_open(guest: Result, kernel: str) -> None:
    """A driver that takes long to come up is the cause, and only where it did."""
    if kernel in WITH_MODULE:
        *_, slow, warm = facts(guest, "device-start.json")["requests"]
        assert slow["spike"]["cause"] == "spawn.device"
        assert warm["spike"]["cause"] != "spawn.device"
