"""A server in a container: reads its model at the first request, then streams; needs nothing.

Run as `llama-server THIS -m MODEL --port PORT`, where `llama-server` is a copy of Python's
interpreter, so that it is known by its name.
"""

import json
import socket
import sys

TOKENS = 3
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: close\r\n\r\n"
)


def _part(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _token(model: str, text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    body = {"object": "chat.completion.chunk", "model": model, "choices": [choice]}
    return _part(b"data: " + json.dumps(body).encode() + b"\n\n")


def _load(path: str) -> int:
    size = 0
    with open(path, "rb", buffering=0) as file:
        while part := file.read(1 << 18):
            size += len(part)
    return size


def _request(sock: socket.socket) -> dict[str, str]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Le")
    )
    while len(body) < length:
        body += sock.recv(65536)
    found: dict[str, str] = json.loads(body)
    return found


def main() -> None:
    """Serves until it is ended."""
    path = sys.argv[sys.argv.index("-m") + 1]
    port = int(sys.argv[sys.argv.index("--port") + 1])
    loaded = 0
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            sock, _ = listener.accept()
            with sock:
                asked = _request(sock)
                loaded = loaded or _load(path)
                sock.sendall(_HEAD)
                for _ in range(TOKENS):
                    sock.sendall(_token(asked["model"], " word"))
                sock.sendall(_part(b"data: [DONE]\n\n") + b"0\r\n\r\n")


main()
