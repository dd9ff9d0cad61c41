"""Guests with a systemd of their own, whose disk lasts from one boot to the next."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.vm.cache import run
from tests.vm.machine import Command, Machine, Options

#: No single step of a story takes longer, even emulated beside others.
_COMMAND_S = 420


class Lasting(Machine):
    """What a boot writes to the root is there at the next one."""

    def __init__(self, kernel: str, userland: str, folder: Path) -> None:
        # On a busy host an emulated timer is late, and a kernel that checks it gives up.
        options = Options(userland=userland, command_s=_COMMAND_S, append="no_timer_check")
        super().__init__(kernel, options)
        self.overlay = folder / "root.qcow2"
        if not self.overlay.exists():
            run(
                "qemu-img",
                "create",
                "-q",
                "-f",
                "qcow2",
                "-F",
                "raw",
                "-b",
                self.root,
                self.overlay,
            )

    def _command(self, control: Path, out: Path, console: Path) -> list[str]:
        given = super()._command(control, out, console)
        given.remove("-snapshot")
        root, fixed = f"file={self.root},", f"file={self.libraries},"
        return [
            text.replace(root, f"file={self.overlay},").replace("format=raw", "format=qcow2")
            if text.startswith(root)
            else f"{text},readonly=on"
            if text.startswith(fixed)
            else text
            for text in given
        ]


@dataclass(frozen=True)
class Said:
    """What one command of a story printed and returned."""

    status: int
    output: str


class Story:
    """Named commands, run in one boot after the other; `said[name]` is what came of each."""

    def __init__(self, kernel: str, userland: str, folder: Path, brought: Sequence[Path]) -> None:
        """`brought`: files that the guest finds in $OUT."""
        self.said: dict[str, Said] = {}
        self._out = folder / "out"
        self._out.mkdir(parents=True, exist_ok=True)
        for path in brought:
            shutil.copy(path, self._out)
        self._machine = Lasting(kernel, userland, folder)

    def boot(self, commands: dict[str, str], timeout_s: float) -> None:
        """Boots, runs them in order, writes the disk out and switches off.

        The guest's own ttft, which runs from the checkout, is put away first.
        """
        away = "rm -f /usr/local/bin/ttft /usr/local/bin/ttftd"
        lines = [f"cd /\nunset PYTHONPATH\n{command}" for command in commands.values()]
        lines[0] = f"{away}\n{lines[0]}"
        result = self._machine.run([*lines, "sync"], timeout_s=timeout_s, out=self._out)
        for name, command in zip(commands, result.commands, strict=False):
            self.said[name] = said(command)


def said(command: Command) -> Said:
    """Its status, and its output without the last line end."""
    return Said(command.status, command.output.rstrip("\n"))
