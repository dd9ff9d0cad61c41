"""Servers in cgroups of their own, as units and containers are: no first request is missed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_first_requests import EACH, SERVERS, busy_host
from tests.workloads import llama
from tests.workloads.cgroups import Cgroup
from tests.workloads.llama import Reply, free_port
from tests.workloads.stub_clients import call, stream
from tests.workloads.stub_server import StubServer
from tests.workloads.ttftd import UNIT_NICE, Ttftd
from tests.workloads.waiting import wait_for

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
ROUNDS = 3
OPTIONS = ("-np", "1", "-t", "1", "-c", "2048")


def first_connection(port: int) -> socket.socket:
    """As soon as the server takes any."""
    found: list[socket.socket] = []

    def taken() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            found.append(llama.connect("127.0.0.1", port))
        return bool(found)

    wait_for(taken, llama.START_S, f"port {port} to open", 0.0)
    return found[0]


def first_replies(port: int) -> list[Reply]:
    """From the first connection on, until one is served: 503 says that it is not ready."""
    body = llama.chat_body("beta", "The first one.", 2)
    raw = llama.request_bytes("/v1/chat/completions", body, "127.0.0.1", keep_alive=False)
    replies: list[Reply] = []
    while not replies or replies[-1].status == 503:
        with first_connection(port) as sock:
            replies.append(llama.exchange(sock, raw))
    return replies


def seen_in(daemon: Ttftd) -> set[str]:
    probes = daemon.get("/v1/status")["probes"]
    return {path for probe in probes for path in probe["cgroups"] or ()}


def expected_in(daemon: Ttftd, group: Cgroup) -> set[str]:
    """Other servers of this machine may be in the root."""
    pids = [server["pid"] for server in daemon.get("/v1/status")["servers"]]
    rows = (Path(f"/proc/{pid}/cgroup").read_text().splitlines() for pid in pids)
    return {"/"} if any("0::/" in row for row in rows) else {group.path}


@pytest.mark.parametrize("busy", [False, True], ids=["calm", "busy"])
def test_the_first_request_of_a_real_server(weights: Path, tmp_path: Path, busy: bool) -> None:
    with Ttftd(tmp_path / "ttftd", nice=UNIT_NICE) as daemon:
        for number in range(ROUNDS):
            with contextlib.ExitStack() as stack:
                group = stack.enter_context(Cgroup(f"ttft-first-{number}"))
                server = llama.router(weights, 1, *OPTIONS, log=tmp_path / "server.log")
                if busy:
                    stack.enter_context(busy_host())
                with group.inside():
                    server.start()
                stack.callback(server.stop)
                replies = first_replies(server.port)
                told = daemon.explained(replies, 30)
                assert [one["status"] for one in told] == [reply.status for reply in replies]
                assert told[-1]["outcome"] == "ok"
                assert seen_in(daemon) == expected_in(daemon, group)


@contextlib.contextmanager
def stubs(ports: list[int]) -> Iterator[None]:
    """A server on each port, each in a cgroup of its own."""
    with contextlib.ExitStack() as stack:
        for port in ports:
            group = stack.enter_context(Cgroup(f"ttft-stub-{port}"))
            stack.enter_context(StubServer(chunks=2, port=port, prefix=group.prefix))
        yield


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_servers_known_by_their_command(tmp_path: Path, before: bool) -> None:
    """Started before the daemon, and after it: looked at when they listen."""
    ports = [free_port() for _ in range(SERVERS)]
    rule = '[[server]]\nname = "one-{0}"\ncommand = "--port {0}"\n'
    daemon = Ttftd(tmp_path / "ttftd", "".join(map(rule.format, ports)), UNIT_NICE)
    with contextlib.ExitStack() as stack:
        for context in (stubs(ports), daemon) if before else (daemon, stubs(ports)):
            stack.enter_context(context)
        stack.enter_context(busy_host())
        for port in ports:
            daemon.wait_server(port)
            for _ in range(EACH):
                asyncio.run(stream("127.0.0.1", port, call("stub", 2)))

        def found() -> list[int]:
            names = [item["server"] for item in daemon.requests()]
            return [names.count(f"one-{port}") for port in ports]

        wait_for(lambda: found() == [EACH] * SERVERS, 15, "each request", 0.2)
        assert len(seen_in(daemon)) in (1, SERVERS)
