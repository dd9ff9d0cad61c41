"""A server's first requests on a busy host: none is missed."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workloads.llama import free_port
from tests.workloads.stub_clients import call, stream
from tests.workloads.stub_server import StubServer
from tests.workloads.ttftd import UNIT_NICE, Ttftd
from tests.workloads.waiting import wait_for

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
SERVERS = 3
EACH = 3
HOGS = 4


@contextlib.contextmanager
def busy_host() -> Iterator[None]:
    """More that wants to run than there are processors."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(HOGS)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@pytest.mark.parametrize("known_by", ["port", "command"])
def test_none_is_missed(tmp_path: Path, known_by: str) -> None:
    ports = [free_port() for _ in range(SERVERS)]
    rule = '[[server]]\nname = "one-{0}"\n'
    rule += "port = {0}\n" if known_by == "port" else 'command = "--port {0}"\n'
    request = call("stub", 2)
    with contextlib.ExitStack() as stack:
        config = "".join(map(rule.format, ports))
        daemon = stack.enter_context(Ttftd(tmp_path / "ttftd", config, UNIT_NICE))
        with busy_host():
            for port in ports:
                # To the end: one that is gone when it is looked at is taken for none.
                stack.enter_context(StubServer(chunks=2, port=port))
                if known_by == "command":  # told by a look at the process, which takes time
                    daemon.wait_server(port)
                for _ in range(EACH):
                    asyncio.run(stream("127.0.0.1", port, request))

        def found() -> list[int]:
            names = [item["server"] for item in daemon.requests()]
            return [names.count(f"one-{port}") for port in ports]

        wait_for(lambda: found() == [EACH] * SERVERS, 15, "each request", 0.2)
