"""A server of tests/workloads as a process of its own, which prints its port when it listens."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
Word = str | bytes | Path


class Served:
    """`with Served(COMMAND) as server: server.port`; it is killed in the end."""

    def __init__(self, command: Sequence[Word]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process, while it is served."""
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def chat(self, **options: object) -> None:
        """One streamed request, to its end; `options` go into its body."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = json.dumps({"model": "m", "stream": True, "messages": [], **options})
        client.request("POST", "/v1/chat/completions", body)
        assert b"[DONE]" in client.getresponse().read()
        client.close()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.process.kill()
        self.process.communicate()
