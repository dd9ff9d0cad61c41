"""A stand-in for a router and its runners on an accelerator: no model, no engine, needs nothing.

Run as `llama-server THIS --models-dir DIR --nodes DIR --said FILE --port PORT`, where
`llama-server` is a copy of Python's interpreter, so that it is known by its name. The front starts
a runner for the model that is asked for, ends the one before, and passes bytes on. A runner opens
the device nodes as CUDA does, reads its model and serves; how long the driver took, by its own
clock, is a line in FILE.
"""

import argparse
import fcntl
import json
import os
import socket
import subprocess
import sys
import time

TOKENS = 3
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: close\r\n\r\n"
)
_HOST = "127.0.0.1"
#: RM_ALLOC of an object: 48 bytes; what a context is made of.
_RM_ALLOC = 3 << 30 | 48 << 16 | ord("F") << 8 | 0x2B
_CLASSES = (0x41, 0x80, 0x2080, 0x90F1, 0x9067)
_POLL_S = 0.02


def _part(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _token(model: str, text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    body = {"object": "chat.completion.chunk", "model": model, "choices": [choice]}
    return _part(b"data: " + json.dumps(body).encode() + b"\n\n")


def _request(sock: socket.socket) -> tuple[bytes, dict[str, str]]:
    """All its bytes, and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-le"))
    while len(body) < length:
        more = sock.recv(65536)
        data, body = data + more, body + more
    return data, json.loads(body)


def _bring_up(nodes: str) -> int:
    """Opens the devices and makes a context; ns in these calls."""
    took = 0
    opened = []
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        began = time.monotonic_ns()
        opened.append(os.open(os.path.join(nodes, name), os.O_RDWR))
        took += time.monotonic_ns() - began
    for class_ in _CLASSES:
        argument = bytearray(48)
        argument[12:16] = class_.to_bytes(4, "little")
        began = time.monotonic_ns()
        fcntl.ioctl(opened[0], _RM_ALLOC, argument)
        took += time.monotonic_ns() - began
    return took


def _load(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 18):
            pass


def run(given: argparse.Namespace) -> None:
    """A runner: serves its model until it is ended."""
    took = _bring_up(given.nodes)
    _load(given.model)
    with open(given.said, "a") as said:
        said.write(f"{took}\n")
    with socket.create_server((_HOST, given.port)) as listener:
        while True:
            sock, _ = listener.accept()
            with sock:
                if not sock.recv(1, socket.MSG_PEEK):
                    continue  # the front only looked
                _, asked = _request(sock)
                sock.sendall(_HEAD)
                for _ in range(TOKENS):
                    sock.sendall(_token(asked["model"], " word"))
                sock.sendall(_part(b"data: [DONE]\n\n") + b"0\r\n\r\n")


class Front:
    """Keeps one runner."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._model = ""
        self._runner: subprocess.Popen[bytes] | None = None

    def switch(self, model: str) -> None:
        """Has the runner of this model ready."""
        if model == self._model:
            return
        if self._runner is not None:
            self._runner.terminate()
            self._runner.wait()
        given = self._given
        self._model = model
        self._runner = subprocess.Popen(
            [sys.executable, __file__, "-m", os.path.join(given.models_dir, f"{model}.gguf"),
             "--nodes", given.nodes, "--said", given.said, "--port", str(given.port + 1)]
        )  # fmt: skip
        while not self._ready():
            time.sleep(_POLL_S)

    def _ready(self) -> bool:
        try:
            socket.create_connection((_HOST, self._given.port + 1)).close()
        except ConnectionRefusedError:
            return False
        return True

    def serve(self) -> None:
        """Passes requests on, one after the other."""
        with socket.create_server((_HOST, self._given.port)) as listener:
            while True:
                sock, _ = listener.accept()
                with sock:
                    data, asked = _request(sock)
                    self.switch(asked["model"])
                    with socket.create_connection((_HOST, self._given.port + 1)) as runner:
                        runner.sendall(data)
                        while part := runner.recv(65536):
                            sock.sendall(part)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models-dir")
    parser.add_argument("-m", dest="model")
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--said", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    if given.model is None:
        Front(given).serve()
    else:
        run(given)


main()
