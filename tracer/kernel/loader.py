"""The kernel side as one object: load, watch, drain."""

from __future__ import annotations

import errno
import os
import struct
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tracer.errors import KernelError, RecordError
from tracer.kernel import layouts, libbpf, maps, perf, runstats, wire
from tracer.kernel.maps import Table
from tracer.kernel.objectfile import Options, Request, load
from tracer.kernel.placing import Places
from tracer.kernel.probes import BESIDE, FOLLOWS, IN_CGROUP, ON_DEMAND, PAGING, Probes
from tracer.kernel.ring import Rings
from tracer.kernel.runstats import RunStats
from tracer.kernel.sweep import Sweeper
from tracer.kernel.variants import AUTO
from tracer.kernel.wire import Raw, RawMagic, RawUnseen
from tracer.records import Exit, Fork, Insert, Op, Span, Unlisten

#: How long totals of an ended process are kept, ns.
_KEEP_TOTALS_NS = 60_000_000_000
#: A quiet daemon hears of open spans this often, and tables lose what is dead, ns.
#: Records decoded at a time.
_BATCH = 1024
_SWEEP_EVERY_NS = 5_000_000_000
_FILES = "files"
#: Groups whose programs know their arming; in the order of bpf/tracked.bpf.h.
_ARMINGS = (_FILES, PAGING, *BESIDE)
_MISSED_EVERY_NS = 1_000_000_000
_REFUSED_MAX = 10_000


@dataclass(frozen=True)
class Total:
    """All like events of a process on a file since it was watched; exact.

    `busy_ns` of minor faults: of those that were timed (group `minor`).
    """

    count: int
    bytes: int
    busy_ns: int


@dataclass(frozen=True)
class GroupState:
    """A probe group. `off_because` is set when not `attached`; `unseen`: what is missed then.

    `variant`: which of several ways is used, and why not a preferred one. `places`: of one
    that is attached to cgroups.
    """

    group: str
    attached: bool
    required: bool = True
    off_because: str | None = None
    unseen: str | None = None
    variant: str | None = None
    places: Places | None = None


class Kernel:
    """Everything the kernel tells. Owned by one thread. `open()`, then `close()`."""

    def __init__(self, handle: int, probes: Probes, off: Collection[str]) -> None:
        self._handle = handle
        self._off = frozenset(off) | ({PAGING} if "faults" in off else set())
        self.probes = probes
        self._tables: dict[str, Table] = {}
        self._has_marks = libbpf.has_map(handle, "marks")
        awake, no = self.table("awake"), bytes(4)
        self.rings = Rings(
            libbpf.ring_of(handle, "ring"),
            libbpf.ring_of(handle, "packets"),
            doze=lambda: awake.put(no, no),
        )
        self._sweeper = Sweeper(self.table("spans"), self.table("files"))
        self._cpus = libbpf.possible_cpus()
        # A value of a per-CPU map has a part for each processor.
        self._lost = Table(self.table("lost").fd, 4, 8 * self._cpus)
        self._bad_records = 0
        self._ended: deque[tuple[int, int]] = deque()
        self._stats_fd: int | None = None
        self._on_demand = False
        self._programs_seen: set[tuple[int, int]] = set()
        self._swept_ns = time.monotonic_ns()
        self._missed: dict[str, int] = {}
        self._missed_due_ns = 0
        self._refused: dict[str, set[bytes]] = {}
        self._armings = dict.fromkeys(_ARMINGS, 0)
        probes.placement.seen = self.table("seen_cgroups")

    @classmethod
    def open(
        cls,
        *,
        btf: Path | None = None,
        off: Collection[str] = (),
        sizes: Mapping[str, int] | None = None,
        options: Options | None = None,
        path: Path | None = None,
        variant: str = AUTO,
        plain: bool | None = None,
        stays: Collection[str] = (),
        attach: bool = True,
    ) -> Self:
        """Load the object and attach all groups that are not `off` nor for special need.

        `btf`: type information of the kernel, where it has none itself. `sizes`: of the
        rings in bytes and of the tables in entries, by name. `variant`: `tracepoint` or `fentry`
        where the choice is not to be made by what the kernel takes. `plain`: likewise whether
        to take the object for older kernels. `stays`: groups that will not be detached.
        """
        request = Request(
            str(btf) if btf else None,
            sizes or {},
            options or Options(),
            variant,
            plain,
            path,
            stays,
        )
        left_out: dict[str, str] = {}
        while True:
            loaded = load(request, left_out)
            perf.raise_file_limit()
            kernel = cls(loaded.handle, Probes(loaded.programs, loaded.selection), off)
            try:
                if attach:
                    kernel._attach_all()
                failed = kernel.probes.replaceable()
                if not failed:
                    return kernel
            except KernelError:
                kernel.close()
                raise
            kernel.close()
            left_out |= failed

    def _attach_all(self) -> None:
        for group in self.probes.groups:
            if group not in self._off and group not in ON_DEMAND and group not in BESIDE:
                self.attach(group)
        self._on_demand = not self._off & set(ON_DEMAND)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Detach everything and free all; nothing stays in the kernel."""
        self.probes.close()
        self.rings.close()
        if self._stats_fd is not None:
            os.close(self._stats_fd)
            self._stats_fd = None
        if self._handle:
            libbpf.close_object(self._handle)
            self._handle = 0

    def table(self, name: str) -> Table:
        """A map of the object."""
        if name not in self._tables:
            found = libbpf.find_map(self._handle, name)
            self._tables[name] = Table(libbpf.map_fd(found), *libbpf.map_sizes(found))
        return self._tables[name]

    def program(self, name: str) -> int:
        """A loaded program, for test runs."""
        return self.probes.programs[name].handle

    # --- probe groups ---------------------------------------------------------------

    def attach(self, group: str) -> int:
        """Attach a group; ns it took."""
        coming = group not in self.probes.attached
        if coming:
            self._turn(group, on=True)  # before, so that no call that was begun unseen is missed
        try:
            return self.probes.attach(group, self.watched())
        except KernelError:
            if coming:
                self._turn(group, on=False)
            raise

    def detach(self, group: str) -> int:
        """Detach a group; ns it took."""
        if group in self.probes.attached:
            self._turn(group, on=False)
        return self.probes.detach(group)

    def _turn(self, group: str, *, on: bool) -> None:
        """The programs know that what threads remember of another arming is void."""
        if group in _ARMINGS:
            count = self._armings[group] + 1
            self._armings[group] = count if count % 2 == on else count + 1
            slot = struct.pack("<I", _ARMINGS.index(group))
            self.table("armings").put(slot, struct.pack("<I", self._armings[group]))

    def groups(self) -> list[GroupState]:
        """Each group, and why it is off where it is."""
        return [self._group(name) for name in self.probes.groups]

    def _group(self, name: str) -> GroupState:
        rows = self.probes.selection.group(name)
        lacking = {r.program: w for r in rows if (w := self.probes.missing.get(r.program))}
        choice = self.probes.selection.choices.get(FOLLOWS.get(name, name))
        variant = str(choice) if choice else None
        attached = name in self.probes.attached and not lacking
        required = any(row.required for row in rows)
        if attached:
            placed = any(row.section.startswith(IN_CGROUP) for row in rows)
            places = self.probes.placement.places if placed else None
            return GroupState(name, True, required, variant=variant, places=places)
        why = "off in the configuration" if name in self._off else "not needed now"
        because = "; ".join(dict.fromkeys(lacking.values())) or why
        partly = [row for row in rows if row.program in lacking]
        missed = partly if name in self.probes.attached else rows
        unseen = ", ".join(dict.fromkeys(row.without for row in missed))
        return GroupState(name, False, required, because, unseen, variant)

    # --- what to watch ----------------------------------------------------------------

    def watch(self, tgid: int) -> None:
        """Watch a process, all its threads, and what it forks from now on."""
        try:
            pidfd = os.pidfd_open(tgid)
        except OSError:  # gone, or its number is a thread's now
            return
        try:
            since = struct.pack("<Q", time.monotonic_ns())
            self._add("process", "watched", struct.pack("<I", tgid), since)
            self._mark(pidfd, 1)
        finally:
            os.close(pidfd)
        self.probes.cover("faults", tgid)
        self.probes.placement.process(tgid)

    def _mark(self, pidfd: int, value: int) -> None:
        if not self._has_marks:
            return
        try:
            self.table("marks").put(struct.pack("<i", pidfd), struct.pack("<I", value))
        except KernelError as error:
            if os.strerror(errno.ENOENT) not in error.message and (
                os.strerror(errno.ESRCH) not in error.message
            ):
                raise

    def _add(self, kind: str, table: str, key: bytes, value: bytes) -> None:
        """Where there is no room it counts as lost: who fills a table must not end us."""
        try:
            self.table(table).put(key, value)
        except libbpf.TableFullError:
            refused = self._refused.setdefault(f"{kind}.table", set())
            if len(refused) < _REFUSED_MAX:
                refused.add(key)

    def unwatch(self, tgid: int) -> None:
        """Let a process go, and what it forks from now on."""
        self.probes.uncover(tgid)
        self.probes.placement.went(time.monotonic_ns())
        self.table("watched").delete(struct.pack("<I", tgid))
        try:
            pidfd = os.pidfd_open(tgid)
        except OSError:  # gone, or its number is a thread's now
            return
        try:
            self._mark(pidfd, 0)
        finally:
            os.close(pidfd)

    def watched(self) -> list[int]:
        """Process ids watched now."""
        return [struct.unpack("<I", key)[0] for key, _ in self.table("watched").items()]

    def add_server_comm(self, comm: str) -> None:
        """A program whose exec makes a process watched on the spot (15 bytes count)."""
        name = comm.encode()[:15].ljust(16, b"\0")
        self._add("exec", "server_comms", name, struct.pack("<I", 1))

    def track_file(self, dev: int, ino: int) -> None:
        """Count insertions of a file from now on, before it is seen used. `dev`: kernel's."""
        files = self.table("files")
        key = layouts.FILE_KEY.packer.pack(ino, dev, 0)
        if files.get(key) is None:
            self._add("file", "files", key, bytes(files.value_size))

    def watch_port(self, netns: int, port: int) -> None:
        """A port whose connections are read; `netns`: inode of the network namespace."""
        ports, hints = self.table("ports"), self.table("port_hints")
        key = layouts.PORT_KEY.packer.pack(netns, port, 0)
        if ports.get(key) is None:
            self._add("listen", "ports", key, bytes(ports.value_size))
        hints.put(struct.pack("<I", port % layouts.PORT_HINTS), struct.pack("<Q", 1))

    def drop_port(self, netns: int, port: int) -> None:
        """Nobody listens there, so `watch_port` came too late. One that the kernel side has seen
        a socket of since stays: it goes with that."""
        ports = self.table("ports")
        key = layouts.PORT_KEY.packer.pack(netns, port, 0)
        known = ports.get(key)
        if known is not None and layouts.PORT.packer.unpack(known)[1] == 0:
            ports.delete(key)

    def holds(self, netns: int, port: int, tgid: int, parent: int | None) -> None:
        """A process, started by `parent`, listens there since before it was watched."""
        self.probes.placement.listener((netns, port), tgid, parent)

    def follow_servers(self, *, stays: bool = False) -> None:
        """The servers that run are known: see only what they do, as far as others would pay.

        `stays`: nothing comes and goes by what they do.
        """
        self.probes.placement.follow()
        if not stays:
            self.rings.stir = self.probes.takes.stir
            self.probes.takes.come_and_go()

    def set_server_ports(self, ports: Collection[int]) -> None:
        """Ports whose listeners are servers, whoever they are: watched from the first byte."""
        table = self.table("server_ports")
        wanted = {struct.pack("<I", port) for port in ports}
        for key in {key for key, _ in table.items()} - wanted:
            table.delete(key)
        for key in wanted:
            table.put(key, struct.pack("<I", 1))
        self.probes.placement.everywhere(bool(wanted))

    # --- what happened ------------------------------------------------------------------

    def wait(self, timeout_ms: int, pace_ms: int | None = None) -> None:
        """Until there are records, or the time is over.

        Records that do not hurry may stay in the rings for `pace_ms`.
        """
        self.rings.wait(timeout_ms, timeout_ms if pace_ms is None else pace_ms)

    def kick(self) -> None:
        """End a wait; from any thread."""
        self.rings.kick()

    def drain(self) -> list[Raw]:
        """All there is in the rings; for processes that ended, their last spans too."""
        return [raw for batch in self.batches() for raw in batch]

    def batches(self) -> Iterator[list[Raw]]:
        """What `drain` gives, oldest first, in pieces that a burst cannot make large."""
        waiting = sorted(self.rings.drain(), key=_time_of)
        for begin in range(0, len(waiting), _BATCH):
            yield self._decoded(waiting[begin : begin + _BATCH])
        now_ns = time.monotonic_ns()
        self._forget(now_ns)
        self.probes.takes.rest(now_ns)
        if self.probes.placement.due(now_ns):
            keys = maps.rows(self.table("ports"), layouts.PORT_KEY, layouts.PORT)
            self.probes.placement.keep(self.watched(), [(key[0], key[1]) for key, _ in keys])
        if now_ns - self._swept_ns > _SWEEP_EVERY_NS:
            yield list(self.sweep(now_ns))

    def _decoded(self, batch: list[bytes]) -> list[Raw]:
        found: list[Raw] = []
        for data in batch:
            try:
                raw = wire.decode(data)
            except RecordError:
                self._bad_records += 1
                continue
            if isinstance(raw, RawUnseen):
                self.probes.placement.socket((raw.netns, raw.port), raw.cgroup)
                continue
            if isinstance(raw, Exit | Unlisten):
                self.probes.placement.went(time.monotonic_ns())
            found.append(raw)
            if self._on_demand:
                self._arm(raw)
            if isinstance(raw, Exit):
                self._ended.append((raw.ts_ns, raw.tgid))
                found += self._sweeper.end_of(raw.tgid)
            elif isinstance(raw, Fork):
                self.probes.forked(raw.parent, raw.child)
        return found

    def sweep(self, now_ns: int) -> list[Span | Insert]:
        """What is still growing, as far as it changed since the last sweep.

        `drain()` does so by itself now and then; call this when it is wanted sooner.
        """
        self._swept_ns = now_ns
        return self._sweeper.sweep(now_ns)

    def _arm(self, raw: Raw) -> None:
        """Watch minor faults of a process that maps weights and will fault them in."""
        if isinstance(raw, RawMagic) and raw.data.startswith(b"\x7fELF"):
            self._programs_seen.add((raw.dev, raw.ino))
        if not isinstance(raw, Span) or raw.op != "mmap" or raw.populate:
            return
        if (raw.dev, raw.ino) not in self._programs_seen:
            self.time_faults(raw.tgid)

    def time_faults(self, tgid: int) -> None:
        """Minor faults of a process take their time from now on."""
        if self._on_demand:
            self.probes.attach("minor", [])
            self.probes.cover("minor", tgid)

    def _forget(self, now_ns: int) -> None:
        gone = set()
        while self._ended and now_ns - self._ended[0][0] > _KEEP_TOTALS_NS:
            gone.add(self._ended.popleft()[1])
        if gone:
            self.probes.drop_events(gone)
            totals = self.table("totals")
            for key, _ in list(totals.items()):
                if layouts.TOTAL_KEY.packer.unpack(key)[2] in gone:
                    totals.delete(key)

    def totals(self) -> dict[tuple[int, int, int, Op], Total]:
        """Exact totals by (tgid, dev, ino, op)."""
        found = {}
        entries = maps.rows(self.table("totals"), layouts.TOTAL_KEY, layouts.TOTAL)
        for (ino, dev, tgid, op, _), (count, size, busy) in entries:
            if count:  # 0: taken back
                found[tgid, dev, ino, wire.OPS[op]] = Total(count, size, busy)
        return found

    def inserted(self) -> dict[tuple[int, int], int]:
        """Pages that came into the page cache, exact, by (dev, ino)."""
        entries = maps.rows(self.table("files"), layouts.FILE_KEY, layouts.FILE_STATE)
        return {(dev, ino): state[1] for (ino, dev, _), state in entries}

    def lost(self) -> dict[str, int]:
        """Records lost since the start, by kind.

        `KIND.table`: a map was full; `KIND.lookup`: the kernel could not say; `KIND.half`: the
        program at the begin or end of a call did not run; else the ring was full. A program's
        name: it did not run, for whomever, because it ran already on that processor.
        """
        found = {"undecodable": self._bad_records} if self._bad_records else {}
        if self.rings.overrun:
            found["backlog"] = self.rings.overrun
        for kind, refused in self._refused.items():
            found[kind] = len(refused)
        none = bytes(8 * self._cpus)
        for key, counts in self._lost.items():
            if counts == none:
                continue
            (slot,) = struct.unpack("<I", key)
            count = sum(struct.unpack(f"<{self._cpus}Q", counts))
            why, kind = divmod(slot, layouts.KIND_SLOTS)
            name = layouts.KINDS[kind] + layouts.LOSSES[why]
            found[name] = found.get(name, 0) + count
        now_ns = time.monotonic_ns()
        if now_ns >= self._missed_due_ns:
            self._missed_due_ns = now_ns + _MISSED_EVERY_NS
            self._missed = {
                s.program: s.missed for s in self.run_stats() if s.missed and self._counts(s)
            }
        return found | self._missed

    def _counts(self, stats: RunStats) -> bool:
        """Programs at file calls tell themselves which of the left out runs mattered."""
        return self.probes.programs[stats.program].probe.group != _FILES

    # --- what it costs ------------------------------------------------------------------

    def enable_stats(self) -> None:
        """Count run times of programs, until closed; costs some 20 ns a run."""
        if self._stats_fd is None:
            self._stats_fd = libbpf.enable_stats()

    def run_stats(self) -> list[RunStats]:
        """Run times, all zero unless statistics are enabled (here or by sysctl)."""
        return runstats.of(self.probes.programs)


def _time_of(data: bytes) -> int:
    """A record's time, which comes first in its header."""
    return int.from_bytes(data[:8], sys.byteorder)
