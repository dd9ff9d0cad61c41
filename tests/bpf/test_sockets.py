"""Real servers over loopback: every boundary, who listens, connects and takes bytes."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.bpf.segments import Listener
from tests.workloads.stub_clients import Seen, call, streams
from tests.workloads.stub_server import ROOT, StubServer
from tests.workloads.waiting import wait_for
from tracer.http import SYN
from tracer.kernel import layouts
from tracer.kernel.loader import Kernel
from tracer.kernel.wire import RawPacket
from tracer.records import (
    Conn,
    Connect,
    HttpBody,
    HttpEnd,
    HttpHead,
    HttpRequest,
    HttpToken,
    Listen,
    Take,
    Unlisten,
)

pytestmark = pytest.mark.kernel


@pytest.fixture
def kernel(built: Path) -> Iterator[Kernel]:
    """Sockets and processes only; this process is watched, and what it starts."""
    with Kernel.open(off=("files", "faults", "cache"), path=built) as opened:
        opened.watch(os.getpid())
        yield opened


class Echo(BaseHTTPRequestHandler):
    """Answers with the length and the sum of the body it got."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = json.dumps({"model": "echo", "got": len(body), "sum": sum(body)}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def echo(host: str) -> Iterator[int]:
    """An HTTP server in this process; its port."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    server = Server((host, 0), Echo)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def post(body: bytes) -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def response(client: socket.socket) -> tuple[bytes, int]:
    """The body of one response and when its last byte was here."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += client.recv(65536)
    return body, time.monotonic_ns()


def unsent(sock: socket.socket) -> int:
    """Bytes not acknowledged yet."""
    answer = fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(answer, sys.byteorder)


def body_of(size: int) -> bytes:
    """JSON of `size` bytes with the model last."""
    tail = b'","model":"last"}'
    text = (b"words \\n " * (size // 9 + 1))[: size - len(tail) - 20]
    return b'{"messages":"' + text.rstrip(b"\\") + tail


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_long_body_arrives_whole_and_in_order(kernel: Kernel, host: str) -> None:
    body = body_of(3 << 20)
    listener = Listener(kernel)
    with echo(host) as port, socket.create_connection((host, port)) as client:
        sent_ns = time.monotonic_ns()
        threading.Thread(target=client.sendall, args=(post(body),)).start()
        answer, got_ns = response(client)
        ours = client.getsockname()[1]
        listener.until(lambda: any(isinstance(f, HttpEnd) for f in listener.facts), "the end")
    assert json.loads(answer) == {"model": "echo", "got": len(body), "sum": sum(body)}
    request, whole, head, end = listener.facts
    assert isinstance(request, HttpRequest) and isinstance(whole, HttpBody)
    assert isinstance(head, HttpHead) and isinstance(end, HttpEnd)
    netns = os.stat("/proc/self/ns/net").st_ino
    assert request.conn == Conn(netns, host, port, host, ours)
    assert (whole.bytes, whole.model, end.why, end.bytes) == (
        len(body),
        "last",
        "complete",
        len(answer),
    )
    assert sent_ns < request.ts_ns < whole.ts_ns < head.ts_ns <= end.ts_ns < got_ns
    payload = stream_of(listener, egress=False)
    assert payload == post(body)
    assert kernel.lost() == {}


def test_a_request_wakes_a_sleeping_reader(kernel: Kernel) -> None:
    """Else it would be seen a minute later."""
    listener = Listener(kernel)
    awake = kernel.table("awake")
    with echo("127.0.0.1") as port, socket.create_connection(("127.0.0.1", port)) as client:
        kernel.wait(10, 100)
        listener.drain()
        kernel.wait(10, 60_000)  # from now on nobody looks by himself
        listener.until(lambda: awake.get(bytes(4)) == bytes(4), "the reader to doze")
        client.sendall(post(b'{"model":"m"}'))
        began = time.monotonic()
        response(client)
        while not any(isinstance(f, HttpRequest) for f in listener.facts):
            kernel.wait(10_000, 60_000)
            listener.drain()
        assert time.monotonic() - began < 5


def stream_of(listener: Listener, egress: bool) -> bytes:
    """The bytes of one connection, put together by sequence number alone."""
    parts = [r for r in listener.raws if isinstance(r, RawPacket) and r.egress == egress]
    syn = next(r for r in parts if r.tcp_flags & SYN)
    data = bytearray()
    for part in sorted(parts, key=lambda r: (r.seq - syn.seq) & 0xFFFFFFFF):
        at = (part.seq - syn.seq - 1) & 0xFFFFFFFF
        if part.payload:
            assert at <= len(data)
            data[at : at + len(part.payload)] = part.payload
    return bytes(data)


def test_segments_of_64_kb_are_whole(kernel: Kernel) -> None:
    listener = Listener(kernel)
    with echo("127.0.0.1") as port, socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(8):
            client.sendall(post(body_of(1 << 20)))
            response(client)
        listener.drain()
    raws = [r for r in listener.raws if isinstance(r, RawPacket)]
    assert max(r.payload_len for r in raws) > 60_000
    assert all(len(r.payload) == r.payload_len for r in raws)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_one_byte_at_a_time(kernel: Kernel, host: str) -> None:
    request = post(body_of(100))
    listener = Listener(kernel)
    with echo(host) as port, socket.create_connection((host, port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(request)):
            client.sendall(request[at : at + 1])
            sent_ns = time.monotonic_ns()
            # Unacknowledged bytes would make the kernel join those that follow.
            wait_for(lambda: unsent(client) == 0, 5, "the acknowledgement", poll_s=0.0)
        response(client)
        listener.until(lambda: any(isinstance(f, HttpEnd) for f in listener.facts), "the end")
    assert [type(f) for f in listener.facts] == [HttpRequest, HttpBody, HttpHead, HttpEnd]
    body = listener.facts[1]
    assert isinstance(body, HttpBody) and body.model == "last"
    assert body.ts_ns < sent_ns
    arrivals = [r for r in listener.raws if isinstance(r, RawPacket) and not r.egress]
    assert [r.payload for r in arrivals if r.payload] == [bytes([b]) for b in request]


def place(raw: Listen | Unlisten) -> tuple[int, int]:
    return raw.netns, raw.port


def ports_of(listener: Listener, port: int | None = None) -> list[Listen | Unlisten]:
    """What was told of listeners; of one port, for others on this machine listen as well."""
    found = (r for r in listener.raws if isinstance(r, Listen | Unlisten))
    return [r for r in found if port is None or r.port == port]


def closed(listener: Listener, port: int) -> bool:
    return any(isinstance(r, Unlisten) for r in ports_of(listener, port))


def test_listen_connect_take_and_unlisten(kernel: Kernel) -> None:
    listener = Listener(kernel)
    netns, me = os.stat("/proc/self/ns/net").st_ino, os.getpid()
    with echo("127.0.0.1") as port, socket.create_connection(("127.0.0.1", port)) as client:
        conn = Conn(netns, "127.0.0.1", port, *client.getsockname())
        client.sendall(post(b"{}"))
        response(client)
        client.sendall(post(b"{}"))
        response(client)
    listener.until(lambda: closed(listener, port), "the end")
    ours = ports_of(listener, port)
    found = [r for r in listener.raws if isinstance(r, Connect | Take) or r in ours]
    assert [(type(r), getattr(r, "tgid", None), getattr(r, "conn", None)) for r in found] == [
        (Listen, me, None), (Connect, me, conn), (Take, me, conn), (Take, me, conn),
        (Unlisten, None, None),
    ]  # fmt: skip
    assert {place(r) for r in ours} == {(netns, port)}
    connect, take = found[1], found[2]
    assert isinstance(connect, Connect) and connect.tid == threading.get_native_id()
    assert isinstance(take, Take) and take.tid != me  # the server's thread
    request, answer = (f for f in listener.facts[:3] if not isinstance(f, HttpBody))
    assert connect.ts_ns < request.ts_ns < take.ts_ns < answer.ts_ns


def test_an_ipv4_client_of_an_ipv6_socket(kernel: Kernel) -> None:
    listener = Listener(kernel)
    with echo("::") as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(post(b"{}"))
        response(client)
        name = client.getsockname()
        listener.until(lambda: any(isinstance(f, HttpEnd) for f in listener.facts), "the end")
    takes = [r for r in listener.raws if isinstance(r, Take)]
    request = next(f for f in listener.facts if isinstance(f, HttpRequest))
    assert request.conn.server_ip == "127.0.0.1"
    assert (request.conn.client_ip, request.conn.client_port) == name
    assert [t.conn for t in takes] == [request.conn]


def test_the_port_goes_with_the_last_of_its_listeners(kernel: Kernel) -> None:
    listener = Listener(kernel)
    first, second = (socket.socket() for _ in range(2))
    for sock in (first, second):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", first.getsockname()[1]))
        sock.listen()
    port = first.getsockname()[1]
    first.close()
    listener.drain()
    assert [type(r) for r in ports_of(listener, port)] == [Listen] * 2
    second.close()
    listener.until(lambda: closed(listener, port), "the end")
    assert [type(r) for r in ports_of(listener, port)] == [Listen, Listen, Unlisten]


def test_a_port_is_dropped_unless_somebody_listens(kernel: Kernel) -> None:
    """One that was put in for a listen() that is over, not one that was opened since."""
    netns = os.stat("/proc/self/ns/net").st_ino
    ports = kernel.table("ports")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        key = layouts.PORT_KEY.packer.pack(netns, port, 0)
        kernel.drop_port(netns, port)
        assert ports.get(key) is not None
    assert ports.get(key) is None
    kernel.watch_port(netns, port)
    assert ports.get(key) is not None
    kernel.drop_port(netns, port)
    kernel.drop_port(netns, port)
    assert ports.get(key) is None


def test_a_stranger_is_told_to_listen_and_no_more(kernel: Kernel) -> None:
    kernel.unwatch(os.getpid())
    listener = Listener(kernel)
    with echo("127.0.0.1") as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(post(b"{}"))
        response(client)
    listener.drain()
    assert [type(r) for r in ports_of(listener, port)] == [Listen]
    assert all(isinstance(r, Listen) for r in listener.raws)


def test_two_hundred_streams_lose_no_boundary(kernel: Kernel) -> None:
    listener = Listener(kernel)
    with StubServer(chunks=30) as stub:
        listener.until(lambda: bool(ports_of(listener, stub.port)), "the listener")
        seen: list[Seen] = []
        request = call("beta")
        work = threading.Thread(
            target=lambda: seen.extend(asyncio.run(streams("127.0.0.1", stub.port, 200, request)))
        )
        work.start()
        listener.until(
            lambda: sum(isinstance(f, HttpEnd) for f in listener.facts) == 200, "200 ends", 30
        )
        work.join()
    assert kernel.lost() == {}
    by_port = {f.conn.client_port: f for f in listener.facts if isinstance(f, HttpRequest)}
    ends = {f.xid: f for f in listener.facts if isinstance(f, HttpEnd)}
    firsts = {f.xid: f for f in listener.facts if isinstance(f, HttpToken) and f.nth == 1}
    assert len(seen) == len(by_port) == len(ends) == len(firsts) == 200
    for client in seen:
        begun = by_port[client.port]
        first, end = firsts[begun.xid], ends[begun.xid]
        assert (end.why, end.tokens, end.model) == ("complete", client.tokens, "stub")
        assert client.sent_ns < begun.ts_ns < first.ts_ns < client.first_ns
        assert first.ts_ns < end.ts_ns < client.end_ns


def test_the_same_port_in_two_namespaces(kernel: Kernel) -> None:
    listener = Listener(kernel)
    with StubServer(chunks=2) as here:
        enter = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
        with StubServer(chunks=3, port=here.port, prefix=enter) as there:
            names = [os.stat(f"/proc/{s.pid}/ns/net").st_ino for s in (here, there)]
            assert names[0] != names[1] and here.port == there.port
            both = {(name, here.port) for name in names}
            listener.until(lambda: both <= set(map(place, ports_of(listener))), "both listeners")
            asyncio.run(streams("127.0.0.1", here.port, 1, call("a")))
            client = (
                "import asyncio, sys; from tests.workloads.stub_clients import call, streams; "
                "asyncio.run(streams('127.0.0.1', int(sys.argv[1]), 1, call('b')))"
            )
            subprocess.run(
                ["nsenter", "--net", "--target", str(there.pid), sys.executable, "-c", client,
                 str(there.port)], check=True, cwd=ROOT)  # fmt: skip
            listener.until(
                lambda: sum(isinstance(f, HttpEnd) for f in listener.facts) == 2, "two ends"
            )
    netns = {f.xid: f.conn.netns for f in listener.facts if isinstance(f, HttpRequest)}
    models = {netns[f.xid]: f.model for f in listener.facts if isinstance(f, HttpBody)}
    tokens = {netns[f.xid]: f.tokens for f in listener.facts if isinstance(f, HttpEnd)}
    assert models == {names[0]: "a", names[1]: "b"}
    assert tokens == {names[0]: 2, names[1]: 3}
