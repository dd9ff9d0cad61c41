"""Which devices watched processes have open, by their descriptors alone: no device is touched."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tracer.telemetry.places import Places
from tracer.telemetry.texts import text

NVIDIA_MAJOR, DRM_MAJOR = 195, 226
#: nvidia-modeset and nvidiactl, and what is left for such: no devices.
_NVIDIA_NONE = 248
_MOST_FDS = 4096
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_KEY = re.compile(r"[\w:.@-]{1,64}", re.ASCII)
_NODE = re.compile(r"/(?:nvidia\d{1,3}|renderD\d{1,3}|card\d{1,3})$")
_MINOR = re.compile(r"^Device Minor:\s*(\d{1,3})\s*$", re.MULTILINE)
_NVIDIA = ("nvidia", "nvidia-drm")


@dataclass(frozen=True)
class Device:
    """`key`: PCI address, else its name. `path`: its folder in /sys, where it has one."""

    key: str
    driver: str = field(compare=False)
    path: Path | None = field(default=None, compare=False)
    minor: int | None = field(default=None, compare=False)

    @property
    def address(self) -> str | None:
        """Its PCI address."""
        return self.key if _ADDRESS.fullmatch(self.key) else None

    @property
    def asleep(self) -> bool:
        """Whether asking it anything might wake it."""
        status = None if self.path is None else text(self.path / "power" / "runtime_status")
        return (status or "").strip() in ("suspended", "suspending")


#: Descriptors on a device, by process.
Users = dict[int, list[int]]


class Finder:
    """Owned by one thread."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._known: dict[tuple[int, int], Device | None] = {}

    def held(self, tgids: Iterable[int]) -> dict[Device, Users]:
        """Devices that processes have open now."""
        found: dict[Device, Users] = {}
        for tgid in tgids:
            for fd, number in self._nodes(tgid):
                device = self._device(number)
                if device is not None:
                    found.setdefault(device, {}).setdefault(tgid, []).append(fd)
        return found

    def forget(self) -> None:
        """Numbers may mean other devices after a module was loaded again."""
        self._known.clear()

    def _nodes(self, tgid: int) -> Iterator[tuple[int, tuple[int, int]]]:
        folder = self._places.proc / str(tgid) / "fd"
        try:
            names = os.listdir(folder)[:_MOST_FDS]
        except OSError:
            return
        for name in names:
            try:
                where = os.readlink(folder / name)
            except OSError:
                continue
            # Only what is named like a device is asked for its number: a file may hang.
            if name.isdecimal() and _NODE.search(where):
                number = self._places.number_of(str(folder / name))
                if number is not None:
                    yield int(name), number

    def _device(self, number: tuple[int, int]) -> Device | None:
        if number not in self._known:
            self._known[number] = self._resolve(*number)
        return self._known[number]

    def _resolve(self, major: int, minor: int) -> Device | None:
        if major == NVIDIA_MAJOR and minor < _NVIDIA_NONE:
            address = self._nvidia_address(minor)
            if address is None:
                return Device(f"nvidia{minor}", "nvidia", None, minor)
            return Device(address, "nvidia", self._places.sys / "bus/pci/devices" / address, minor)
        if major != DRM_MAJOR:
            return None
        link = self._places.sys / "dev/char" / f"{major}:{minor}" / "device"
        path = Path(os.path.realpath(link))
        if not path.is_dir():
            return None
        driver = os.path.basename(os.path.realpath(path / "driver"))
        if not _KEY.fullmatch(driver) or driver == "driver":
            return None
        key = path.name if _KEY.fullmatch(path.name) else f"drm{minor}"
        return Device(key, "nvidia" if driver in _NVIDIA else driver, path)

    def _nvidia_address(self, minor: int) -> str | None:
        folder = self._places.proc / "driver/nvidia/gpus"
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return None
        for name in names:
            found = _MINOR.search(text(folder / name / "information") or "")
            if found and int(found[1]) == minor and _ADDRESS.fullmatch(name):
                return name
        return None
