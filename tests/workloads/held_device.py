"""A server that holds a file in place of a device's node, and a daemon that takes it for one.

`python -m tests.workloads.held_device serve NODE` prints its port; each request waits for as many
milliseconds as its `max_tokens`. `python -m tests.workloads.held_device daemon HOST run ...` is
ttftd on a host whose devices are told of below the folder HOST (tests/unit/telemetry_host.py).
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.workloads.served import Served
from tests.workloads.stub_server import DONE, HEAD, ROLE, TOKEN
from tests.workloads.ttftd import Ttftd

ROOT = Path(__file__).parents[2]
NODE = "nvidia0"
NUMBER = (195, 0)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for part in (HEAD, ROLE):
            self.wfile.write(part)
            self.wfile.flush()
        time.sleep(body["max_tokens"] / 1e3)  # the work on the prompt
        for part in (TOKEN, TOKEN, DONE):
            self.wfile.write(part)
            self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class HoldingServer(Served):
    """The server, as another process."""

    def __init__(self, node: Path) -> None:
        super().__init__([sys.executable, "-m", "tests.workloads.held_device", "serve", node])


class TelemetryDaemon(Ttftd):
    """ttftd that looks for devices below a folder, and at these processes' descriptors."""

    def __init__(self, folder: Path, host: Path, config: str) -> None:
        super().__init__(folder, config)
        self._host = host

    @property
    def command(self) -> list[str]:
        rest = super().command[3:]
        return [
            sys.executable,
            "-m",
            "tests.workloads.held_device",
            "daemon",
            str(self._host),
            *rest,
        ]


def _serve(node: str) -> None:
    held = os.open(node, os.O_RDONLY)
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
    os.close(held)


def _number_of(path: str) -> tuple[int, int] | None:
    return NUMBER if os.readlink(path).endswith(f"/{NODE}") else None


def _daemon(host: str, *arguments: str) -> None:
    from tracer.cli import daemon_main
    from tracer.telemetry import watch
    from tracer.telemetry.places import Places

    root = Path(host)
    there = Places(root / "proc", root / "sys", root / "dev")
    vars(watch)["Places"] = lambda: replace(there, number_of=_number_of)
    sys.argv = ["ttftd", *arguments]
    daemon_main()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        _daemon(*sys.argv[2:])
