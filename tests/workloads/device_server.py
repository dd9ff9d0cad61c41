"""A server that streams a few words, and calls into a device's driver before it does.

`python -m tests.workloads.device_server --calls 137` prints its port and serves until its standard
input is closed: for each request it opens /dev/random, asks it so often how much it has, and
closes it.
"""

from __future__ import annotations

import argparse
import fcntl
import http.client
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Self

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


class DeviceServer:
    """It, as another process."""

    def __init__(self, calls: int) -> None:
        command = [sys.executable, "-m", "tests.workloads.device_server", "--calls", str(calls)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._child.stdout is not None
        self.port = int(self._child.stdout.readline())
        self.pid = self._child.pid

    def chat(self) -> None:
        """One request, to its end."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = json.dumps({"model": "m", "stream": True, "messages": []})
        client.request("POST", "/v1/chat/completions", body)
        assert b"[DONE]" in client.getresponse().read()
        client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(10)
        self._child.stdout.close()


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
