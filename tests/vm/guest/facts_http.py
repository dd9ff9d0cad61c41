"""A server, watched, and its client, not: requests whose every byte and boundary is known."""

from __future__ import annotations

import json
import socket
from pathlib import Path

BODY_BYTES = 3 << 20
TOKENS = 5
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: close\r\n\r\n"
)


def _event(value: object) -> bytes:
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _token(text: str | None) -> bytes:
    delta = {"role": "assistant", "content": None} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return _event({"object": "chat.completion.chunk", "model": "facts", "choices": [choice]})


def request() -> bytes:
    """A chat request with a body of BODY_BYTES, the model at its end."""
    tail = b'"}],"stream":true,"model":"facts"}'
    begin = b'{"messages":[{"role":"user","content":"'
    body = begin + b"x" * (BODY_BYTES - len(begin) - len(tail)) + tail
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: facts\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def _serve(listener: socket.socket) -> None:
    """Answers one connection: reads all, then streams TOKENS tokens."""
    sock, _ = listener.accept()
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wanted = len(request())
        while wanted > 0:
            wanted -= len(sock.recv(1 << 20))
        sock.sendall(_HEAD + _token(None))
        for _ in range(TOKENS):
            sock.sendall(_token(" word"))
        done = b"data: [DONE]\n\n"
        sock.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done))
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)


def server(host: str) -> dict[str, int]:
    """Listens, says its port by a file, answers one request, connects once itself, ends."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        # Room from the first byte on: a window that grows slowly makes the sender send little.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        listener.bind((host, 0))
        listener.listen()
        port = listener.getsockname()[1]
        said = Path(port_file(host))
        said.with_suffix(".new").write_text(str(port))
        said.with_suffix(".new").rename(said)
        _serve(listener)
        with socket.create_connection((host, port)):
            listener.accept()[0].close()
    return {"port": port}


def port_file(host: str) -> str:
    """Where the server says its port."""
    return f"/tmp/facts-port-{'6' if ':' in host else '4'}"


def ask(host: str, port: int) -> tuple[tuple[str, int], bytes]:
    """Sends the request: the client's own address, and all of the answer."""
    with socket.create_connection((host, port), timeout=60) as sock:
        name = sock.getsockname()[:2]
        sock.sendall(request())
        answer = b""
        while part := sock.recv(1 << 16):
            answer += part
    return (name[0], name[1]), answer
