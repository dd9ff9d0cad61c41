"""In a guest: segments are seen in the cgroups of servers, whole, and nobody else's run a program.

Both objects are tried: where the cgroup of a socket stands differs between kernels, not between
these, but how it is read does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bpf.segments import Listener
from tests.workloads.cgroups import Cgroup
from tests.workloads.stub_clients import all_closed, call, stream
from tests.workloads.stub_server import StubServer
from tests.workloads.waiting import wait_for
from tracer.ahead import Ahead
from tracer.kernel.loader import Kernel
from tracer.records import HttpBody, HttpEnd, Listen

_NAME = "ttft-a-server"
_WAIT_S = 60.0
_STRANGER = """
import socket
a = socket.create_server(("127.0.0.1", 0)); b = socket.create_connection(a.getsockname())
c, _ = a.accept()
for _ in range(50):
    b.sendall(b"x"); c.recv(1)
"""
EXPECTED = {
    "first": ["m", "complete", 3],
    "first at": True,
    "listens in": True,
    "strangers ran": 0,
    "unnamed": ["m", "complete", 3],
    "at the root": ["m", "complete", 3],
    "back": True,
}


class Checker:
    """All of it, under one loaded object."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel = kernel
        self.listener = Listener(kernel)
        self.found: dict[str, Any] = {}
        self._link = folder / _NAME
        if not self._link.exists():
            self._link.symlink_to(Path(sys.executable).resolve())

    def _at(self) -> tuple[str, ...]:
        return self.kernel.probes.placement.places.groups

    def _ask(self, port: int) -> list[Any]:
        """One request; the model that was read, how it ended, tokens."""
        before = len(self.listener.facts)
        asyncio.run(stream("127.0.0.1", port, call("m")))
        facts = self.listener.facts

        def over() -> bool:
            return any(isinstance(f, HttpEnd) for f in facts[before:])

        self.listener.until(over, "the end", _WAIT_S)
        bodies = [f.model for f in facts[before:] if isinstance(f, HttpBody)]
        ends = [f for f in facts[before:] if isinstance(f, HttpEnd) and f.bytes]
        return [*bodies, *(f.why for f in ends), *(f.tokens for f in ends)]

    def known(self, group: Cgroup) -> None:
        """A program with a server's name."""
        prefix = (*group.prefix, "sh", "-c", f'shift; exec {self._link} "$@"', "sh")
        with StubServer(chunks=3, prefix=prefix) as stub:
            self.found["first"] = self._ask(stub.port)
            self.found["first at"] = self._at() == (group.path,)
            listens = [r for r in self.listener.raws if isinstance(r, Listen)]
            groups = [r.cgroup for r in listens if r.port == stub.port]
            self.found["listens in"] = groups == [group.inode] or groups
            wait_for(lambda: all_closed(stub.port), _WAIT_S, "its last segment")
            self._strangers()
            self.kernel.set_server_ports([1])
            assert self._at() == ("/",), self._at()
            self.found["at the root"] = self._ask(stub.port)
            self.kernel.set_server_ports([])
            self.found["back"] = self._at() == (group.path,)

    def _strangers(self) -> None:
        def runs() -> int:
            names = ("ttft_ingress", "ttft_egress")
            return sum(s.runs for s in self.kernel.run_stats() if s.program in names)

        before = runs()
        assert before > 0
        with Cgroup("ttft-stranger") as other:
            other.run(sys.executable, "-c", _STRANGER)
        self.found["strangers ran"] = runs() - before

    def unnamed(self, group: Cgroup) -> None:
        """Its socket was there before, in a cgroup that its process has left."""
        with Cgroup("ttft-later") as later, StubServer(chunks=3, prefix=group.prefix) as stub:
            later.add(stub.pid)
            self.kernel.watch(stub.pid)
            self.kernel.watch_port(os.stat("/proc/self/ns/net").st_ino, stub.port)
            asyncio.run(stream("127.0.0.1", stub.port, call("m")))
            told: Callable[[], bool] = lambda: group.path in self._at()  # noqa: E731
            wait_for(told, _WAIT_S, "the cgroup to be told")
            self.listener.drain()
            self.found["unnamed"] = self._ask(stub.port)

    def run(self) -> dict[str, Any]:
        """What was found, to compare with EXPECTED."""
        self.kernel.add_server_comm(_NAME)
        self.kernel.enable_stats()
        self.kernel.rings.hear = Ahead(
            self.kernel, lambda _: False, self.kernel.probes.placement
        ).hear
        self.kernel.follow_servers()
        for step in (self.known, self.unnamed):
            with Cgroup("ttft-place") as group:
                step(group)
        return self.found


def main() -> int:
    wrong = 0
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for plain in (None, True):
            name = "plain" if plain else "as chosen"
            with Kernel.open(plain=plain, off=("files", "faults", "cache", "libs")) as kernel:
                found = told[name] = Checker(kernel, Path(folder)).run()
            for fact, value in EXPECTED.items():
                if found.get(fact) != value:
                    wrong += 1
                    print(f"{name}: {fact}: expected {value}, found {found.get(fact)}")
    if out := os.environ.get("OUT"):
        Path(out, "places.json").write_text(json.dumps(told, indent=1) + "\n")
    print(f"{2 * len(EXPECTED) - wrong} of {2 * len(EXPECTED)} facts as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
