"""What the daemon does with libraries: follows the processes that are watched, gives records."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from tracer.kernel import libbpf
from tracer.kernel.loader import Kernel
from tracer.kernel.wire import RawCached, RawCall, RawLinked
from tracer.libs.attach import LINGER_NS, Attacher, Programs
from tracer.libs.caches import Folders
from tracer.libs.calls import Catalogue
from tracer.libs.links import takes_many
from tracer.libs.own import OwnProbes
from tracer.libs.runs import Runs
from tracer.records import AnyRecord, Cached, Call, Exec, Exit, Fork, Process

_PROGRAMS = ("ttft_call", "ttft_linked", "ttft_open", "ttft_openat")
_SWEEP_EVERY_NS = 5_000_000_000


class LibraryWatch:
    """Owned by the engine's thread. Without the programs, all of it does nothing.

    `many`: whether one link may hold many functions of a file; None: as the kernel can.
    """

    def __init__(
        self, kernel: Kernel, catalogue: Catalogue, say: Callable[[str], None], *,
        many: bool | None = None, off: bool = False, linger_ns: int = LINGER_NS,
    ) -> None:  # fmt: skip
        self._attacher: Attacher | None = None
        self._swept_ns = 0
        programs = kernel.probes.programs
        if off or not all(name in programs for name in _PROGRAMS):
            return
        specs = kernel.table("call_specs")
        for number, row in enumerate(catalogue.rows):
            specs.put(struct.pack("<I", number), row.spec())
        call, linked, opened, opened_at = (libbpf.program_fd(programs[n].handle) for n in _PROGRAMS)
        many = takes_many(call) if many is None else many
        self._folders = Folders(kernel.table("cache_folders"))
        own = OwnProbes(linked, opened, opened_at, self._folders) if many else None
        self._runs = Runs(kernel.table("call_runs"), catalogue.rows)
        self._attacher = Attacher(
            Programs(call, many), own, catalogue, say, wake=kernel.kick, linger_ns=linger_ns
        )

    def raw(self, raw: RawLinked | RawCall | RawCached) -> list[AnyRecord]:
        """The records of an event of the kernel."""
        if self._attacher is None:
            return []
        if isinstance(raw, RawCall):
            call = self._runs.record(raw)
            return [] if call is None else [call]
        if isinstance(raw, RawCached):
            folder = self._folders.name(raw.folder)
            return [
                Cached(
                    ts_ns=raw.ts_ns, tgid=raw.tgid, tid=raw.tid, folder=folder, stem=raw.stem,
                    write=raw.write,
                )
            ]  # fmt: skip
        self._attacher.look(raw.tgid)
        return []

    def note(self, records: Iterable[AnyRecord]) -> list[AnyRecord]:
        """Follow processes; the last runs of those that ended."""
        found: list[AnyRecord] = []
        if self._attacher is None:
            return found
        for record in records:
            match record:
                case Process() | Exec():
                    self._attacher.look(record.tgid, again=True)
                case Fork():
                    self._attacher.forked(record.parent, record.child)
                case Exit():
                    self._attacher.ended(record.tgid)
                    found += self._runs.end_of(record.tgid)
                case _:
                    pass
        return found

    def collect(self, now_ns: int, *, busy: bool) -> list[AnyRecord]:
        """Libraries newly seen, and runs that grow: at once while `busy`, else now and then."""
        if self._attacher is None:
            return []
        found: list[AnyRecord] = [*self._attacher.collect()]
        if busy or now_ns - self._swept_ns > _SWEEP_EVERY_NS:
            self._swept_ns = now_ns
            calls: list[Call] = self._runs.sweep(now_ns)
            found += calls
        return found

    @property
    def has_found(self) -> bool:
        """Whether `collect` has libraries to tell of."""
        return self._attacher is not None and self._attacher.has_found

    @property
    def awaits(self) -> bool:
        """Whether a process will be looked at again unasked."""
        return self._attacher is not None and self._attacher.awaits

    def settle(self, timeout_s: float) -> bool:
        """Wait until the probes for all that was told so far are in place; whether they are."""
        return self._attacher is None or self._attacher.settle(timeout_s)

    def close(self) -> None:
        """Take all probes away."""
        if self._attacher is not None:
            self._attacher.close()
            self._attacher = None
