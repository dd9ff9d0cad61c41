"""Guests with a systemd of their own, whose disk lasts from one boot to the next."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.service import tiny
from tests.vm.cache import run
from tests.vm.machine import Command, GuestError, Machine, Options

#: No single step of a story takes longer, even emulated beside others.
_COMMAND_S = 600
#: What each step begins with; the guest's own ttft, which runs from the checkout, is away then.
_PRELUDE = f"""\
cd /
unset PYTHONPATH PYTHONDONTWRITEBYTECODE
LETTER={tiny.token("a")}
. /mnt/checkout/tests/service/guest/steps.sh
"""


class Lasting(Machine):
    """What a boot writes to the root is there at the next one; other disks are read-only."""

    def __init__(self, kernel: str, userland: str, folder: Path, disks: Sequence[Path]) -> None:
        # On a busy host an emulated timer is late, and a kernel that checks it gives up; so are
        # services, and a systemd that waits only 90 s for them.
        line = "no_timer_check systemd.default_timeout_start_sec=900"
        options = Options(
            userland=userland, command_s=_COMMAND_S, append=line, disks=disks, memory_mb=1536
        )
        super().__init__(kernel, options)
        self.overlay = folder / "root.qcow2"
        if not self.overlay.exists():
            backing = ("-b", self.root, "-F", "raw")
            run("qemu-img", "create", "-q", "-f", "qcow2", *backing, self.overlay)

    def _command(self, control: Path, out: Path, console: Path) -> list[str]:
        given = super()._command(control, out, console)
        given.remove("-snapshot")
        root = f"file={self.root},"
        for at, text in enumerate(given):
            if text.startswith(root):
                changed = text.replace(root, f"file={self.overlay},")
                given[at] = changed.replace("format=raw", "format=qcow2")
            elif text.startswith("file="):
                given[at] = f"{text},readonly=on"
        return given


@dataclass(frozen=True)
class Said:
    """What one step of a story printed and returned."""

    status: int
    output: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()


class Story:
    """Named steps, run in one boot after the other; `said(name)` is what came of each."""

    def __init__(
        self, kernel: str, userland: str, folder: Path, brought: Sequence[Path], disk: Path
    ) -> None:
        """`brought`: files that the guest finds in $OUT; `disk`: its third one."""
        self.times: list[str] = []
        self._name = userland
        self._said: dict[str, Said] = {}
        self._trouble: GuestError | None = None
        self._out = folder / "out"
        self._steps = self._out / "steps"
        self._steps.mkdir(parents=True, exist_ok=True)
        for path in brought:
            shutil.copy(path, self._out)
        self._machine = Lasting(kernel, userland, folder, [disk])

    def said(self, name: str) -> Said:
        """What came of a step; AssertionError where the guest did not get so far."""
        if name not in self._said:
            raise AssertionError(f"the guest did not come to {name}: {self._trouble}")
        return self._said[name]

    def boot(self, steps: dict[str, str], timeout_s: float) -> None:
        """Boots, runs them in order, writes the disk out and switches off.

        A guest that hangs or crashes is told by the steps that it did not come to.
        """
        if self._trouble is not None:
            return
        names = list(steps)
        for name in names:
            (self._steps / name).write_text(f"{_PRELUDE}{steps[name]}\n")
        # At the first boot: what lies there later was put there by a step.
        away = "" if self._said else "rm -f /usr/local/bin/ttft /usr/local/bin/ttftd"
        commands = [away, *(f"bash /mnt/out/steps/{name}" for name in names), "sync"]
        try:
            result = self._machine.run(commands, timeout_s=timeout_s, out=self._out)
        except GuestError as error:
            self._trouble = error
            self._keep(names, _reached(self._out / "vm", len(names)))
            return
        self._keep(names, result.commands[1:-1])
        steps_s = sum(command.seconds for command in result.commands)
        self._tell(f"boot and switching off: {result.seconds - steps_s:.0f} s")

    def _keep(self, names: list[str], commands: Sequence[Command]) -> None:
        for name, command in zip(names, commands, strict=False):
            self._said[name] = Said(command.status, command.output.rstrip("\n"))
            self._tell(f"{name}: status {command.status}, {command.seconds:.1f} s")

    def _tell(self, text: str) -> None:
        self.times.append(f"{self._name}: {text}")


def _reached(folder: Path, count: int) -> list[Command]:
    """Steps that a guest ended before it hung or crashed."""
    found = []
    for number in range(1, count + 1):
        base = folder / f"{number:03}"
        if not base.with_suffix(".status").exists():
            break
        begun, ended = map(float, base.with_suffix(".times").read_text().split())
        status = int(base.with_suffix(".status").read_text())
        output = base.with_suffix(".out").read_text(errors="replace")
        found.append(Command("", status, output, ended - begun))
    return found
