"""Segments of watched ports: crafted ones in the kernel's test run, real ones over loopback."""

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

from tests.bpf import segments
from tests.bpf.segments import Listener, ipv4, ipv6, tcp
from tests.workloads.stub_clients import Seen, call, streams
from tests.workloads.stub_server import ROOT, StubServer
from tests.workloads.waiting import wait_for
from tracer.errors import KernelError
from tracer.http import ACK, FIN, RST, SYN
from tracer.kernel import libbpf
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
PORT, CLIENT = 8080, 40000
PSH = 8
CONN4 = Conn(0, "192.0.2.1", PORT, "198.51.100.7", CLIENT)
CONN6 = Conn(0, "2001:db8::1", PORT, "2001:db8::2", CLIENT)


@pytest.fixture
def crafted(built: Path) -> Iterator[Kernel]:
    """Nothing attached; the port is watched. A test run has no socket: port and netns are 0."""
    with Kernel.open(path=built, attach=False) as kernel:
        kernel.watch_port(0, PORT)
        kernel.watch_port(0, 0)
        yield kernel


@pytest.fixture
def kernel(built: Path) -> Iterator[Kernel]:
    """Sockets and processes only; this process is watched, and what it starts."""
    with Kernel.open(off=("files", "faults", "cache"), path=built) as opened:
        opened.watch(os.getpid())
        yield opened


def run(kernel: Kernel, frame: bytes, egress: bool = False) -> list[RawPacket]:
    """The records of one test run; the packet must be let through."""
    program = kernel.program("ttft_egress" if egress else "ttft_ingress")
    assert libbpf.run_test(program, frame)[0] == 1
    return [raw for raw in kernel.drain() if isinstance(raw, RawPacket)]


def packet(conn: Conn, seq: int, ack: int, flags: int, payload: bytes = b"", *,
           egress: bool = False) -> tuple[object, ...]:  # fmt: skip
    return conn, egress, seq, ack, len(payload), payload, flags


def told(raws: list[RawPacket]) -> list[tuple[object, ...]]:
    return [(r.conn, r.egress, r.seq, r.ack, r.payload_len, r.payload, r.tcp_flags) for r in raws]


def to_v4(inner: bytes, **more: object) -> bytes:
    return ipv4(CONN4.client_ip, CONN4.server_ip, inner, **more)  # type: ignore[arg-type]


def to_v6(inner: bytes, **more: object) -> bytes:
    return ipv6(CONN6.client_ip, CONN6.server_ip, inner, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 511, 512, 513, 1400, 3000])
def test_payload_is_copied_whole(crafted: Kernel, size: int) -> None:
    payload = os.urandom(size)
    inner = tcp(CLIENT, PORT, 5, 6, ACK | PSH, payload)
    back = tcp(PORT, CLIENT, 0xFFFFFFFF, 0x80000000, ACK, payload)
    assert told(run(crafted, to_v4(inner))) == [packet(CONN4, 5, 6, ACK | PSH, payload)]
    assert told(run(crafted, to_v6(inner))) == [packet(CONN6, 5, 6, ACK | PSH, payload)]
    expected = packet(CONN4, 0xFFFFFFFF, 0x80000000, ACK, payload, egress=True)
    frame = ipv4(CONN4.server_ip, CONN4.client_ip, back)
    assert told(run(crafted, frame, egress=True)) == [expected]


def test_options_and_extension_headers_are_skipped(crafted: Kernel) -> None:
    stamped = tcp(CLIENT, PORT, 1, 2, ACK, b"GET /", options=b"\x01\x01\x08\x0a" + bytes(8))
    want4, want6 = ([packet(c, 1, 2, ACK, b"GET /")] for c in (CONN4, CONN6))
    assert told(run(crafted, to_v4(stamped))) == want4
    assert told(run(crafted, to_v4(stamped, options=bytes(40)))) == want4
    hop = b"\x3c\x00" + b"\x05\x02" + bytes(4)  # hop-by-hop, then destination options
    destination = b"\x2b\x01" + bytes(14)  # 16 bytes, then routing
    routing = b"\x33\x00" + bytes(6)  # then authentication
    authentication = b"\x06\x04" + bytes(22)  # 24 bytes, then TCP
    chain = hop + destination + routing + authentication
    assert told(run(crafted, to_v6(stamped, extensions=chain, following=0))) == want6
    jumbo = b"\x06\x00\xc2\x04" + (100_000).to_bytes(4, "big")
    assert told(run(crafted, to_v6(stamped, extensions=jumbo, following=0))) == want6
    endless = (b"\x3c\x00" + bytes(6)) * 20
    assert run(crafted, to_v6(stamped, extensions=endless, following=60)) == []


def test_bare_acknowledgements_count_from_the_server_only(crafted: Kernel) -> None:
    assert run(crafted, to_v4(tcp(CLIENT, PORT, 1, 2, ACK))) == []
    frame = ipv4(CONN4.server_ip, CONN4.client_ip, tcp(PORT, CLIENT, 3, 4, ACK))
    assert told(run(crafted, frame, egress=True)) == [packet(CONN4, 3, 4, ACK, egress=True)]
    for flags in (SYN, FIN | ACK, RST):
        frame = to_v4(tcp(CLIENT, PORT, 1, 2, flags))
        assert told(run(crafted, frame)) == [packet(CONN4, 1, 2, flags)]


def test_out_of_order_segments_come_as_they_are(crafted: Kernel) -> None:
    parts = {1: b"GET / HT", 9: b"TP/1.1\r\n", 17: b"\r\n"}
    seen = []
    for seq in (9, 1, 9, 17):
        seen += run(crafted, to_v4(tcp(CLIENT, PORT, seq, 1, ACK, parts[seq])))
    assert [(r.seq, r.payload) for r in seen] == [(s, parts[s]) for s in (9, 1, 9, 17)]
    times = [r.ts_ns for r in seen]
    assert times == sorted(times) and times[-1] <= time.monotonic_ns()


def test_what_is_not_ours_is_left_alone(crafted: Kernel) -> None:
    good = tcp(CLIENT, PORT, 1, 2, ACK, b"payload")
    for frame in (
        to_v4(good, protocol=17),
        to_v4(good, fragment=0x2003),
        to_v6(good, following=17),
        to_v6(good, following=44, extensions=b"\x06\x00" + bytes(6)),
        to_v4(tcp(CLIENT, PORT + 1, 1, 2, ACK, b"payload")),
        segments.ETHERNET[4] + b"\x95" + bytes(60),
        segments.ETHERNET[4] + b"\x41" + bytes(60),
        to_v4(good[:12] + b"\x40" + good[13:]),  # a header of 16 bytes
        to_v4(good[:12] + b"\xf0" + good[13:]),  # a header beyond the end
    ):
        assert run(crafted, frame) == []
    for frame in (to_v4(good), to_v6(good)):
        for length in range(14, len(frame) - len(good) + 20):  # no test run is shorter
            try:
                assert run(crafted, frame[:length]) == []
            except KernelError as error:  # no IP header: the kernel itself refuses
                assert "Invalid argument" in error.message
    assert crafted.lost() == {}


# --- live -----------------------------------------------------------------------------


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


def test_listen_connect_take_and_unlisten(kernel: Kernel) -> None:
    listener = Listener(kernel)
    netns, me = os.stat("/proc/self/ns/net").st_ino, os.getpid()
    with echo("127.0.0.1") as port, socket.create_connection(("127.0.0.1", port)) as client:
        conn = Conn(netns, "127.0.0.1", port, *client.getsockname())
        client.sendall(post(b"{}"))
        response(client)
        client.sendall(post(b"{}"))
        response(client)
    listener.until(lambda: any(isinstance(r, Unlisten) for r in listener.raws), "the end")
    kinds = (Listen, Unlisten, Connect, Take)
    found = [r for r in listener.raws if isinstance(r, kinds)]
    assert [(type(r), getattr(r, "tgid", None), getattr(r, "conn", None)) for r in found] == [
        (Listen, me, None), (Connect, me, conn), (Take, me, conn), (Take, me, conn),
        (Unlisten, None, None),
    ]  # fmt: skip
    assert {(r.netns, r.port) for r in found if isinstance(r, Listen | Unlisten)} == {(netns, port)}
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
    first.close()
    listener.drain()
    assert [type(r) for r in listener.raws if isinstance(r, Listen | Unlisten)] == [Listen] * 2
    second.close()
    listener.until(lambda: any(isinstance(r, Unlisten) for r in listener.raws), "the end")
    assert [type(r) for r in listener.raws if isinstance(r, Listen | Unlisten)] == [
        Listen, Listen, Unlisten,
    ]  # fmt: skip


def test_a_stranger_is_told_to_listen_and_no_more(kernel: Kernel) -> None:
    kernel.unwatch(os.getpid())
    listener = Listener(kernel)
    with echo("127.0.0.1") as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(post(b"{}"))
        response(client)
    listener.drain()
    assert [(type(r), getattr(r, "port", None)) for r in listener.raws] == [(Listen, port)]


def test_two_hundred_streams_lose_no_boundary(kernel: Kernel) -> None:
    listener = Listener(kernel)
    with StubServer(chunks=30) as stub:
        listener.until(lambda: any(isinstance(r, Listen) for r in listener.raws), "the listener")
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
            listens = [(r.netns, r.port) for r in listener.raws if isinstance(r, Listen)]
            listener.until(
                lambda: (
                    {(r.netns, r.port) for r in listener.raws if isinstance(r, Listen)}
                    == {(name, here.port) for name in names}
                ),
                f"both listeners, {listens}",
            )
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
