"""A program that others collect with, running in `with`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.workloads.waiting import wait_for

START_S = 60.0


class Running:
    """Its words go to `NAME.log` in `folder`. `command()` and `ready()` are the program's own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str | Path]:
        """What is run; writes what that reads."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether it answers."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        path = self.folder / f"{self._name}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(self.command(), stdout=log, stderr=log)

        def answers() -> bool:
            if process.poll() is not None:
                raise RuntimeError(path.read_text())
            return self.ready()

        try:
            wait_for(answers, START_S, f"{self._name} to answer", 0.1)
        except BaseException:
            process.kill()
            raise
        self._process = process
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)
