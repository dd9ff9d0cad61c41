"""Very many short requests through a real daemon, and what it holds meanwhile.

The server is a stand-in without a model (`stub_server`); sockets, probes and daemon are real. The
clients never get far ahead of the daemon, so nothing is lost for want of speed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.workloads import bpf
from tests.workloads.llama import free_port
from tests.workloads.stub_clients import call
from tests.workloads.ttftd import Ttftd

CONFIG = """
[[server]]
name = "stub"
port = {stub}
[[server]]
name = "brief"
port = {brief}
[history]
max_mb = 40
"""
BRIEF = Path(__file__).with_name("brief_server.py")
CONNECTIONS = 16
#: Requests on a connection before the client opens another.
PER_CONNECTION = 25
#: How far clients may be ahead of what was explained: less than the ring for packets holds.
AHEAD = 400
LOOK_EVERY = 200
PATIENCE_S = 60.0
MODELS = tuple(f"model-{number}" for number in range(5))
STREAMED = [call(model, 2) for model in MODELS]
WHOLE = [call(model, 2, stream=False) for model in MODELS]
#: What may come on top between the first sample and the last.
MEMORY_MB, DESCRIPTORS, THREADS, ENTRIES = 8, 100, 6, 400
DATABASE_MB, OF_REQUEST_KB = 60, 8
_END = (b"0\r\n\r\n", b"}]}", b"}}")


@dataclass(frozen=True)
class Sample:
    """What the daemon holds at one moment. `entries`: of each of its BPF maps that is a table."""

    requests: int
    seconds: float
    pss_bytes: int
    descriptors: int
    threads: int
    database_bytes: int
    entries: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)


class _Client(asyncio.Protocol):
    """One connection after the other, one request after the other, until there are no more."""

    def __init__(self, take: Callable[[], bytes | None], done: asyncio.Future[None]) -> None:
        self._take = take
        self._done = done
        self._left = PER_CONNECTION
        self._tail = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-8:]
        if self._tail.endswith(_END):
            self._tail = b""
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _next(self) -> None:
        assert self._transport is not None
        request = self._take() if self._left else None
        self._left -= 1
        if request is None:
            self._transport.close()
        else:
            self._transport.write(request)


@dataclass(frozen=True)
class Ports:
    """Of the two stand-ins. Known by nothing else, as others may run on this machine."""

    stub: int = field(default_factory=free_port)
    brief: int = field(default_factory=free_port)

    @property
    def config(self) -> str:
        """What the daemon is told."""
        return CONFIG.format(stub=self.stub, brief=self.brief)


class Soak:
    """`send` so many requests; `samples` grows by one at the end of each."""

    def __init__(self, daemon: Ttftd, ports: Ports) -> None:
        self._daemon = daemon
        self._ports = ports
        self._began = time.monotonic()
        self._sent = 0
        self._restarts = 0
        self._allowed = 0
        self.samples: list[Sample] = []

    def send(self, count: int) -> Sample:
        """Ask, wait until all is explained and written, then look."""
        asyncio.run(self._send(self._sent + count))
        self._wait(lambda: self.told() >= self._sent and not self._pending())
        self.samples.append(self.look())
        return self.samples[-1]

    def restart(self, times: int) -> Sample:
        """A server that is started, asked once and killed, again and again at the same port."""
        port = self._ports.brief
        for _ in range(times):
            command = [sys.executable, "-S", str(BRIEF), str(port)]
            with subprocess.Popen(command) as server:
                try:
                    self._wait(lambda: _answers(port))
                    self._wait(lambda: self._daemon_counts("brief") == 1)
                finally:
                    server.kill()
            self._wait(lambda: self._daemon_counts("brief") is None)
        self._restarts += times
        self.samples.append(self.look())
        return self.samples[-1]

    def told(self) -> int:
        """Requests that the daemon counts as over."""
        return self._daemon_counts("stub") or 0

    def _daemon_counts(self, name: str) -> int | None:
        servers = self._daemon.get("/v1/status")["servers"]
        return next((int(one["requests"]) for one in servers if one["name"] == name), None)

    def _pending(self) -> int:
        return int(self._daemon.get("/v1/status")["history"]["pending"])

    def _wait(self, done: Callable[[], bool]) -> None:
        """Until it holds; gives up when for long nothing more was explained."""
        told, end = -1, 0.0
        while not done():
            if self.told() != told:
                told, end = self.told(), time.monotonic() + PATIENCE_S
            if time.monotonic() > end:
                lost = self._daemon.get("/v1/status")["lost"]
                raise TimeoutError(
                    f"{told} of {self._sent} requests were explained; lost: {lost or 'nothing'}"
                )
            time.sleep(0.02)

    async def _send(self, until: int) -> None:
        def take() -> bytes | None:
            if self._sent >= until or self._sent >= self._allowed:
                return None
            self._sent += 1
            kinds = WHOLE if self._sent % 10 == 0 else STREAMED
            return kinds[self._sent % len(MODELS)]

        while self._sent < until:
            self._wait(lambda: self._sent - self.told() <= AHEAD)
            self._allowed = self._sent + LOOK_EVERY
            await self._round(take)

    async def _round(self, take: Callable[[], bytes | None]) -> None:
        loop = asyncio.get_running_loop()

        async def one() -> None:
            done: asyncio.Future[None] = loop.create_future()
            await loop.create_connection(lambda: _Client(take, done), "127.0.0.1", self._ports.stub)
            await done

        await asyncio.gather(*(one() for _ in range(CONNECTIONS)))

    def look(self) -> Sample:
        """What it holds now."""
        pid = self._daemon.pid
        status = self._daemon.get("/v1/status")
        return Sample(
            requests=self._sent + self._restarts,
            seconds=round(time.monotonic() - self._began, 1),
            pss_bytes=_pss(pid),
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            threads=len(os.listdir(f"/proc/{pid}/task")),
            database_bytes=int(status["history"]["size_bytes"]),
            entries=bpf.map_entries(pid),
            lost=status["lost"],
        )


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"no Pss of {pid}")


def _answers(port: int) -> bool:
    """Whether one request got its answer; a server that does not listen yet got none."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(WHOLE[0])
            return connection.recv(65536).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


def _of_request_kb(samples: Sequence[Sample]) -> float:
    """What each request between the first and the last sample added to the history."""
    asked = samples[-1].requests - samples[0].requests
    return (samples[-1].database_bytes - samples[0].database_bytes) / 1e3 / asked if asked else 0.0


def faults(samples: Sequence[Sample], warm: int = 1) -> list[str]:
    """What grew, in words; the first `warm` samples are for what is only filled once.

    Other servers of the machine are watched too and come and go, so there is some room.
    """
    first, last = samples[warm - 1], samples[-1]
    grew = {
        "memory (MB)": (last.pss_bytes - first.pss_bytes) / 1e6 - MEMORY_MB,
        "descriptors": last.descriptors - first.descriptors - DESCRIPTORS,
        "threads": last.threads - first.threads - THREADS,
        "database (MB)": last.database_bytes / 1e6 - DATABASE_MB,
        "history of a request (kB)": _of_request_kb(samples[-2:])
        - _of_request_kb(samples[warm - 1 : warm + 1]) - OF_REQUEST_KB,
    }  # fmt: skip
    grew |= {
        f"entries of {name}": count - first.entries.get(name, 0) - ENTRIES
        for name, count in last.entries.items()
    }
    # A look-up fails where the server itself has its memory map locked, however little is asked.
    lost = [f"lost: {n} {kind}" for kind, n in last.lost.items() if not kind.endswith(".lookup")]
    return [f"{what}: {by:g} more than allowed" for what, by in grew.items() if by > 0] + lost
