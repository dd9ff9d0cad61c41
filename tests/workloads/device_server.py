"""A server that streams a few words, and calls into a device's driver before it does.

`python -m tests.workloads.device_server --calls 137` prints its port and serves until its standard
input is closed: for each request it opens /dev/random, asks it so often how much it has, and
closes it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.workloads.served import Served
from tests.workloads.stub_server import DONE, HEAD, ROLE, TOKEN

ROOT = Path(__file__).parents[2]
DEVICE = "/dev/random"
_RNDGETENTCNT = 0x80045200


class _Handler(BaseHTTPRequestHandler):
    calls = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        device, answer = os.open(DEVICE, os.O_RDONLY), bytearray(4)
        for _ in range(self.calls):
            fcntl.ioctl(device, _RNDGETENTCNT, answer)
        os.close(device)
        for part in (HEAD, ROLE, TOKEN, TOKEN, DONE):
            self.wfile.write(part)
            self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class DeviceServer(Served):
    """It, as another process."""

    def __init__(self, calls: int) -> None:
        super().__init__(
            [sys.executable, "-m", "tests.workloads.device_server", "--calls", str(calls)]
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, required=True)
    _Handler.calls = parser.parse_args().calls
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
