"""Run `ttft` in this process, as a user would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tracer import cli
from tracer.commands import shared

ROOT = Path(__file__).parents[2]
MAIN = "from tracer.cli import main; main()"


class Ran:
    """What one run of a program left."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return orjson.loads(self.out)


class Runner:
    """Call it with arguments; `socket` goes before them where it is given."""

    def __init__(self, capture: pytest.CaptureFixture[bytes], socket: Path | None = None) -> None:
        self._capture = capture
        self._before = () if socket is None else ("--socket", str(socket))

    def __call__(self, *arguments: str) -> Ran:
        self._capture.readouterr()
        code = shared.run(cli.ttft, "ttft", (*self._before, *arguments))
        out, err = self._capture.readouterr()
        return Ran(code, out.decode(), err.decode())
