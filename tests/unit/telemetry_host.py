"""A made-up host with devices: folders like /proc and /sys, and a stand-in for NVIDIA's library."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tracer.telemetry.places import Places

SOURCE = Path(__file__).with_name("standin_nvml.c")
BUS = "0000:01:00.0"
ZONE = "devices/pci0000:00/0000:00:01.0"
HOLDER = 4242
"""The process that the stand-in says has memory of its device."""


def compiled(folder: Path, *flags: str) -> Path:
    """The stand-in, under the name of the real library."""
    made = folder / "libnvidia-ml.so.1"
    soname = f"-Wl,-soname,{made.name}"
    command = ["gcc", "-O1", "-w", "-shared", "-fPIC", "-pthread", soname, *flags]
    subprocess.run([*command, "-o", str(made), str(SOURCE)], check=True)
    return made


@cache
def _library() -> ctypes.CDLL:
    """Loaded once in a process, before `pynvml` asks for it: its name is taken then."""
    with tempfile.TemporaryDirectory() as folder:
        return ctypes.CDLL(str(compiled(Path(folder))))


class StandIn:
    """The loaded stand-in: what each of its functions does from now on."""

    def __init__(self) -> None:
        self._lib = _library()
        self._lib.standin_value.argtypes = [ctypes.c_char_p, ctypes.c_ulonglong]

    def reset(self) -> None:
        self._lib.standin_reset()

    def fails(self, function: str, code: int) -> None:
        self._lib.standin_return(function.encode(), code)

    def tells(self, function: str, value: int) -> None:
        self._lib.standin_value(function.encode(), value)

    def hangs(self, function: str, hangs: bool = True) -> None:
        self._lib.standin_hang(function.encode(), int(hangs))

    def calls(self, function: str) -> int:
        return int(self._lib.standin_calls(function.encode()))


class Host:
    """Folders of a host; `places` is what the code under test is given."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys, self.dev = root / "proc", root / "sys", root / "dev"
        self._numbers: dict[str, tuple[int, int]] = {}
        self.places = Places(self.proc, self.sys, self.dev, self._number_of)
        (self.proc).mkdir(parents=True)
        (self.sys).mkdir()

    def write(self, path: str, text: str | bytes) -> Path:
        """A file below the host's root, such as `sys/...`."""
        made = self.proc.parent / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(text.encode() if isinstance(text, str) else text)
        return made

    def holds(self, tgid: int, fd: int, node: str, number: tuple[int, int] | None) -> None:
        """A process has a file open."""
        folder = self.proc / str(tgid) / "fd"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(fd)).symlink_to(node)
        if number is not None:
            self._numbers[node] = number

    def lets_go(self, tgid: int) -> None:
        """A process ends."""
        folder = self.proc / str(tgid) / "fd"
        for entry in folder.iterdir():
            entry.unlink()

    def nvidia(self, minor: int = 0, bus: str = BUS) -> None:
        """A device of NVIDIA's driver."""
        self.write("dev/nvidiactl", "")
        self.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Module  595.45.04  x\n")
        self.write(
            f"proc/driver/nvidia/gpus/{bus}/information",
            f"Model: \t\t Stand-in\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n",
        )

    def drm(self, driver: str, files: dict[str, str], minor: int = 128) -> Path:
        """A device of one of the kernel's drivers, behind a bridge, with files in its folder."""
        path = self.sys / ZONE / BUS
        for name, text in files.items():
            self.write(f"sys/{ZONE}/{BUS}/{name}", text)
        path.mkdir(parents=True, exist_ok=True)
        module = self.sys / "bus/pci/drivers" / driver
        module.mkdir(parents=True, exist_ok=True)
        (path / "driver").symlink_to(module)
        (module / BUS).symlink_to(path)
        char = self.sys / "dev/char" / f"226:{minor}"
        char.mkdir(parents=True)
        (char / "device").symlink_to(path)
        (self.sys / "class/drm" / f"renderD{minor}").mkdir(parents=True)
        return path

    def _number_of(self, path: str) -> tuple[int, int] | None:
        return self._numbers.get(os.readlink(path))
