"""What `ttft doctor` tells of devices; none is touched, no library is loaded."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from tracer.kernel.features import Fact
from tracer.telemetry.nvml import PACKAGE
from tracer.telemetry.places import Places
from tracer.telemetry.texts import text

LINKER_CACHE = Path("/etc/ld.so.cache")
_LIBRARY = b"libnvidia-ml.so.1\0"
_VERSION = re.compile(r"Module(?: for \w+)?\s+(\d[\d.]{1,20})")
_DRIVERS = ("amdgpu", "i915", "xe")
_OPEN = "in the unit: PrivateDevices=no, DeviceAllow=char-nvidia rw (docs/telemetry.md)"
_WITHOUT = "clocks, memory and throttling of NVIDIA devices"


def facts(places: Places | None = None, linker_cache: Path = LINKER_CACHE) -> list[Fact]:
    """One line for each kind of device; none on a host without."""
    at = Places() if places is None else places
    found = _nvidia(at, linker_cache)
    for driver in _DRIVERS:
        count = _count(at, driver)
        if count:
            found.append(Fact(f"{driver} devices", f"{count}, read while a request waits", True))
    return found


def _nvidia(at: Places, linker_cache: Path) -> list[Fact]:
    version = text(at.proc / "driver/nvidia/version")
    if version is None:
        return []
    found = _VERSION.search(version)
    driver = f"driver {found[1]}" if found else "driver of unknown version"
    if importlib.util.find_spec("pynvml") is None:
        return [Fact("NVML", f"{PACKAGE} is missing ({driver})", None, _WITHOUT,
                     f"pip install {PACKAGE}, where ttftd runs")]  # fmt: skip
    if not _linked(linker_cache):
        return [Fact("NVML", f"libnvidia-ml.so.1 is missing ({driver})", None, _WITHOUT,
                     "install the driver's management library, such as libnvidia-ml1")]  # fmt: skip
    if not os.access(at.dev / "nvidiactl", os.R_OK | os.W_OK):
        return [
            Fact("NVML", f"the device nodes are closed to it ({driver})", None, _WITHOUT, _OPEN)
        ]
    return [Fact("NVML", f"{PACKAGE}, {driver}; read while a request waits", True)]


def _linked(linker_cache: Path) -> bool:
    """Whether the linker knows the library; a host without a cache of it is believed to."""
    try:
        return _LIBRARY in linker_cache.read_bytes()
    except OSError:
        return True


def _count(at: Places, driver: str) -> int:
    folder = at.sys / "bus/pci/drivers" / driver
    return sum(1 for entry in folder.glob("*:*:*.*")) if folder.is_dir() else 0
