"""The daemon's memory by part: what its mappings are for, and the kernel's share beside it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.common import SETTLE_S, Plan, Row, say, watching
from tests.workloads import bpf
from tests.workloads.stub_clients import Seen, call, stream, streams
from tests.workloads.stub_server import StubServer
from tests.workloads.ttftd import Ttftd
from tests.workloads.waiting import wait_for

STUB = '[[server]]\nname = "stub"\ncommand = "tests.workloads.stub_server"\n'
CLIENTS = 200
CHUNKS = 20
BUDGET_MB = {"start": 40.0, "peak": 55.0}
STAGES = {
    "start": "after the start",
    "hundred": "after 100 requests",
    "peak": f"at most, {CLIENTS} streams",
    "after": "some seconds later",
}
PARTS = {
    "objects": "Python's objects, thread stacks",
    "heap": "C heap: larger objects, SQLite's cache",
    "rings": "rings of the kernel, mapped",
    "libraries": "interpreter and libraries, shared pages by share",
    "history": "history, mapped",
    "other": "other",
}
_HEAD = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)$")

Parts = Counter[str]


def run(plan: Plan) -> Iterator[Row]:
    """One daemon beside a server without a model; a fresh history."""
    folder = plan.out / "memory"
    shutil.rmtree(folder, ignore_errors=True)
    say("memory by part")
    stages: dict[str, Parts] = {}
    with (
        StubServer(chunks=CHUNKS, delay_ms=2) as stub,
        watching(Plan(plan.size, plan.models, folder), stub.port, STUB) as daemon,
    ):
        stages["start"] = settled(daemon.pid)
        seen = _hundred(stub.port)
        _told(daemon, len(seen))
        stages["hundred"] = settled(daemon.pid)
        with peak(daemon.pid) as highest:
            for _ in range(plan.times(5, 20)):
                seen += asyncio.run(streams("127.0.0.1", stub.port, CLIENTS, call("stub")))
            _told(daemon, len(seen))
        stages["peak"] = highest.parts
        stages["after"] = settled(daemon.pid)
        kernel = bpf.map_memory(daemon.pid)
        programs = bpf.program_memory(daemon.pid)
    yield from rows(stages)
    yield kernel_row(kernel, programs)


def _hundred(port: int) -> list[Seen]:
    async def one_by_one() -> list[Seen]:
        return [await stream("127.0.0.1", port, call("stub")) for _ in range(100)]

    return asyncio.run(one_by_one())


def _told(daemon: Ttftd, wanted: int) -> None:
    """Until all requests are over and told, without asking for all of them each time."""
    wait_for(lambda: _over(daemon) >= wanted, 30, f"{wanted} requests to be told", 0.5)


def _over(daemon: Ttftd) -> int:
    servers = daemon.get("/v1/status")["servers"]
    return sum(int(server["requests"]) for server in servers)


def settled(pid: int) -> Parts:
    """Once it has not changed for some seconds: memory is given back a while after a burst."""
    last = [parts_of(pid)]

    def calm() -> bool:
        last.append(parts_of(pid))
        return abs(last[-1].total() - last[-2].total()) < 64 << 10

    # Its chores come five seconds after requests did.
    wait_for(calm, 30, "the daemon's memory to settle", 2.5 * SETTLE_S)
    return last[-1]


def parts_of(pid: int) -> Parts:
    """PSS in bytes by part."""
    return parts(Path(f"/proc/{pid}/smaps").read_text())


def parts(smaps: str) -> Parts:
    """PSS in bytes by part, from the text of /proc/PID/smaps."""
    found: Parts = Counter()
    name = ""
    for line in smaps.splitlines():
        head = _HEAD.match(line)
        if head is not None:
            name = head.group(1)
        elif line.startswith("Pss:"):
            found[_part(name)] += int(line.split()[1]) << 10
    return found


def _part(name: str) -> str:
    if not name or name.startswith(("[stack", "[anon")):
        return "objects"
    if name == "[heap]":
        return "heap"
    if name.startswith("anon_inode:bpf"):
        return "rings"
    if ".db" in Path(name).name:
        return "history"
    return "libraries" if name.startswith("/") else "other"


@dataclass
class Peak:
    """The parts when the sum was highest."""

    parts: Parts = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def peak(pid: int) -> Iterator[Peak]:
    """The most a process had while the block ran, looked at five times a second."""
    found = Peak()

    def look() -> None:
        while True:
            found.parts = max(found.parts, parts_of(pid), key=lambda p: p.total())
            if found.over.wait(0.2):
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        found.over.set()
        thread.join()


def rows(stages: dict[str, Parts]) -> list[Row]:
    """The sums against their budgets, then each part through all stages."""
    found = []
    for stage, sizes in stages.items():
        value, budget = sizes.total() / 1e6, BUDGET_MB.get(stage)
        found.append(
            Row(
                f"daemon memory (PSS) {STAGES[stage]}",
                f"{value:.1f} MB",
                "-" if budget is None else f"{budget:g} MB",
                None if budget is None else value <= budget,
                {"bytes": sizes.total(), "parts": dict(sizes)},
            )
        )
    for part, what in PARTS.items():
        sizes_mb = [sizes[part] / 1e6 for sizes in stages.values()]
        if any(sizes_mb):
            found.append(Row(f"  {what}", _through(sizes_mb), data={"mb": sizes_mb}))
    return found


def _through(sizes_mb: Sequence[float]) -> str:
    return " -> ".join(f"{size:.1f}" for size in sizes_mb) + " MB"


def kernel_row(maps: dict[str, int], programs: int) -> Row:
    """What the kernel keeps for us beside: rings are in both figures."""
    largest = sorted(maps.items(), key=lambda item: -item[1])[:6]
    text = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in largest)
    return Row(
        "kernel memory of BPF maps and programs (not in PSS, but for the rings)",
        f"{sum(maps.values()) / 1e6:.1f} MB ({text}); programs {programs / 1e6:.2f} MB",
        data={"maps": maps, "programs": programs},
    )
