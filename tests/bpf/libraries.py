"""A watched program that calls stand-in libraries, and all that was recorded of its calls."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.workloads.library_calls import Caller
from tests.workloads.waiting import wait_for
from tracer.kernel.loader import Kernel
from tracer.kernel.wire import RawCached, RawCall, RawLinked
from tracer.libs.calls import Catalogue
from tracer.libs.watch import LibraryWatch
from tracer.records import AnyRecord, Call, Exec, Exit, Fork, Library, Process

#: A file name of each library of the catalogue.
FILES = {
    "llama": "libllama.so.0", "ggml": "libggml-base.so.0", "cuda": "libcuda.so.1",
    "hip": "libamdhip64.so.6", "hiprtc": "libhiprtc.so.6", "nvrtc": "libnvrtc.so.12",
    "nvjitlink": "libnvJitLink.so.12", "vulkan": "libvulkan.so.1",
}  # fmt: skip


@dataclass
class Scene:
    """`said`: the daemon's words. `records`: calls, those that were replaced left out."""

    kernel: Kernel
    watch: LibraryWatch
    said: list[str]
    records: list[AnyRecord] = field(default_factory=list)

    def adopt(self, caller: Caller) -> None:
        self.kernel.watch(caller.pid)
        process = Process(
            ts_ns=time.monotonic_ns(), tgid=caller.pid, ppid=0, start_ns=0, comm="caller"
        )
        self.records += self.watch.note([process])
        assert self.watch.settle(10)

    def take(self) -> None:
        """What there is now."""
        for raw in self.kernel.drain():
            if isinstance(raw, RawCall | RawLinked | RawCached):
                self.records += self.watch.raw(raw)
            elif isinstance(raw, Fork | Exec | Exit):
                self.records += [raw, *self.watch.note([raw])]
        self.records += self.watch.collect(time.monotonic_ns(), busy=True)

    def probed(self, caller: Caller, *names: str) -> None:
        """Wait until the calls of these libraries are seen."""

        def all_seen() -> bool:
            self.take()
            return set(names) <= {r.name for r in self.libraries(caller.pid)}

        wait_for(all_seen, 10, f"{names} to be probed")

    def is_left(self) -> None:
        """Wait until nobody looks again unasked."""
        wait_for(lambda: not self.watch.awaits, 10, "the last look by itself")
        assert self.watch.settle(10)

    def hears(self, what: str) -> None:
        """Wait until something is said."""

        def said() -> bool:
            self.take()
            return bool(self.said)

        wait_for(said, 10, what)

    def libraries(self, tgid: int) -> list[Library]:
        return [r for r in self.records if isinstance(r, Library) and r.tgid == tgid]

    def calls(self, symbol: str | None = None) -> list[Call]:
        """Runs of calls, the latest of each."""
        self.take()
        kept = {}
        for r in self.records:
            if isinstance(r, Call) and symbol in (None, r.symbol):
                kept[r.tid, r.library, r.symbol, r.ts_ns] = r
        return list(kept.values())

    def total(self, symbol: str) -> tuple[int, int | None, int | None]:
        """(count, bytes, tokens) of all calls of a function."""
        calls = self.calls(symbol)
        return (
            sum(c.count for c in calls),
            _sum([c.bytes for c in calls]),
            _sum([c.tokens for c in calls]),
        )


def _sum(amounts: list[int | None]) -> int | None:
    known = [a for a in amounts if a is not None]
    return sum(known) if known else None


def scene(kernel: Kernel, catalogue: Catalogue, **options: Any) -> Scene:
    """`options`: of LibraryWatch."""
    said: list[str] = []
    return Scene(kernel, LibraryWatch(kernel, catalogue, said.append, **options), said)


def links_of(pid: int) -> int:
    """Links and perf events a process holds."""
    found = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue
        found += "bpf_link" in target or "perf_event" in target
    return found
