"""The interface on a real socket, with a backend that holds hand-built requests."""

from __future__ import annotations

import asyncio
import grp
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.unit.answer_cases import ARRIVAL, MS, WALL_OFFSET, spike, warm
from tracer.answers_state import Cost, Fact, History, ModelSeen, Probe, Status, WatchedServer
from tracer.api import ApiServer
from tracer.api_metrics import Metrics
from tracer.api_socket import claim
from tracer.api_streams import Fanout, events_fanout, records_fanout
from tracer.derived import Derived
from tracer.export.gathered import traced
from tracer.store import Store

GROUP = grp.getgrgid(os.getegid()).gr_name


class HostFact(NamedTuple):
    name: str
    ok: bool | None
    value: str
    missing: str | None = None
    advice: str | None = None


STATUS = Status(
    version="0.1.0",
    pid=4321,
    began_wall_ns=ARRIVAL + WALL_OFFSET,
    kernel="6.18.0",
    machine="x86_64",
    history=History(path="/var/lib/ttft/history.db", size_bytes=1_250_000),
    servers=(
        WatchedServer(
            name="llama-server:8080",
            program="llama-server",
            pid=100,
            port=8080,
            model="beta",
            requests=18,
        ),
        WatchedServer(name="vllm:8000", program="vllm", pid=200, port=8000, unreadable="tls"),
    ),
    probes=(
        Probe(group="lifecycle", attached=True),
        Probe(
            group="faults",
            attached=False,
            required=False,
            off_because="left out by [probes] off",
            unseen="page faults",
        ),
    ),
    lost={"span": 0, "packet": 3},
    cost=Cost(pss_bytes=38_000_000, cpu_ns=5, cpu_share=0.0021, bpf_ns=1_200_000, bpf_runs=9),
    open_requests=1,
)
MODELS = [
    ModelSeen(
        server="llama-server:8080",
        model="beta",
        last_use_wall_ns=ARRIVAL + WALL_OFFSET,
        weights=("beta.gguf",),
        size_bytes=253_113_024,
        cached_bytes=253_113_024,
        pids=(102,),
    ),
    ModelSeen(server="llama-server:8080", model="alpha"),
]
FACTS = [
    HostFact("kernel", None, "6.18.0"),
    HostFact("BTF", True, "/sys/kernel/btf/vmlinux"),
    HostFact("cgroup v2", False, "not mounted", "requests", "mount -t cgroup2 none /mnt"),
]
HEADER = b'{"ttft_recording":1,"version":"0"}\n'
REQUESTS = [warm(16), spike(17, ARRIVAL + 3000 * MS), warm(18, ARRIVAL + 6000 * MS)]


class FakeBackend:
    """Implements `tracer.api.Backend`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.metrics = Metrics()
        self.fanout = events_fanout()
        self.recording: Fanout = records_fanout()
        self.recording_head = HEADER
        self.fails: Exception | None = None
        self.open: list[Derived] = []

    def status(self) -> Status:
        if self.fails is not None:
            raise self.fails
        return STATUS

    def models(self) -> list[ModelSeen]:
        return MODELS

    def doctor(self) -> Sequence[Fact]:
        return FACTS

    def open_now(self) -> Sequence[Derived]:
        return self.open

    def export(self, ids: list[int]) -> Iterator[bytes]:
        return traced(self.store.evidences(ids))

    def events(self) -> AsyncIterator[bytes]:
        return self.fanout.subscribe()

    async def records(self) -> AsyncIterator[bytes]:
        yield self.recording_head
        async for item in self.recording.subscribe():
            yield item


class FakeDaemon(NamedTuple):
    """A running interface: its socket, backend and event loop."""

    socket: Path
    backend: FakeBackend
    loop: asyncio.AbstractEventLoop

    def do(self, call: object, *arguments: object) -> None:
        """Call it in the loop's thread."""
        self.loop.call_soon_threadsafe(call, *arguments)  # type: ignore[arg-type]


@contextmanager
def serving(folder: Path, requests: Sequence[Derived] = REQUESTS) -> Iterator[FakeDaemon]:
    """Run it in a thread. The socket is bound before, so clients may connect at once."""
    store = Store(folder / "history.db")
    store.put(requests)
    backend = FakeBackend(store)
    server = ApiServer(claim(folder / "ttft.sock", GROUP))
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        await server.start(backend)
        await stop.wait()
        backend.fanout.close()
        backend.recording.close()
        await server.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield FakeDaemon(folder / "ttft.sock", backend, loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
        store.close()
