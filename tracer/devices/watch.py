"""What the daemon does with driver calls: tells the kernel of the devices, gives records."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tracer.devices.nodes import Nodes, find, traces
from tracer.devices.runs import DeviceRuns, record
from tracer.devices.table import Table
from tracer.kernel.loader import GroupState, Kernel
from tracer.kernel.wire import RawDevice
from tracer.records import AnyRecord, DeviceCall, Exec, Exit, Process

#: The probe group.
GROUP = "devices"


class DeviceWatch:
    """Owned by the engine's thread. Without the programs, all of it does nothing.

    `patterns`: further nodes, from the configuration. `root`: where /proc, /sys and /dev are.
    """

    def __init__(
        self, kernel: Kernel, table: Table, patterns: Sequence[str] = (), *,
        off: bool = False, root: Path = Path("/"),
    ) -> None:  # fmt: skip
        self._table = table
        self._patterns = tuple(patterns)
        self._root = root
        self._kernel = kernel
        self._nodes = Nodes({}, {})
        self._seen: tuple[object, ...] | None = None
        self._filled = False
        self._held = False
        rows, programs = kernel.probes.selection.group(GROUP), kernel.probes.programs
        self._runs: DeviceRuns | None = None
        if not off and any(row.program in programs for row in rows):
            runs, holders = kernel.table("device_runs"), kernel.table("device_holders")
            self._runs = DeviceRuns(runs, holders, self.record)

    @property
    def wanted(self) -> bool:
        """Whether the group is of use: the host has a device, and a process is watched."""
        return self._held and bool(self._nodes.nodes)

    def state(self, group: GroupState) -> GroupState:
        """Of this group, why it is not of use now; any other as it is."""
        if group.group != GROUP or group.attached or self._runs is None:
            return group
        if not self._nodes.nodes:
            return replace(group, off_because="this host has no accelerator", unseen=None)
        return group if self.wanted else replace(group, off_because="no server is watched")

    def refresh(self) -> bool:
        """Look at the host again, tell the kernel what changed; whether there is any device."""
        if self._runs is None:
            return False
        seen = traces(self._patterns, self._root)
        if seen != self._seen:
            self._seen = seen
            self._tell(find(self._table, self._patterns, self._root))
        return bool(self._nodes.nodes)

    def _tell(self, nodes: Nodes) -> None:
        there = self._kernel.table("device_nodes")
        if nodes.nodes and not self._filled:
            calls = self._kernel.table("device_calls")
            for key, value in self._table.calls():
                calls.put(key, value)
            self._filled = True
        for rdev, node in nodes.nodes.items():
            if self._nodes.nodes.get(rdev) != node:
                there.put(struct.pack("<I", rdev), node.driver.node())
        for rdev in self._nodes.nodes.keys() - nodes.nodes.keys():
            there.delete(struct.pack("<I", rdev))
        self._nodes = nodes

    def record(self, raw: RawDevice) -> DeviceCall | None:
        """The record of a run; None for a device that is no accelerator.

        One that the kernel does not know may be new: its driver was loaded since.
        """
        if raw.unknown:
            self.refresh()
        node = self._nodes.of(raw.rdev)
        if node is None:
            return None
        driver = self._table.by_number(raw.driver) or node.driver
        return record(raw, self._nodes.name(raw.rdev), driver.name)

    def raw(self, raw: RawDevice) -> list[AnyRecord]:
        """The records of an event of the kernel."""
        call = self.record(raw) if self._runs is not None else None
        return [] if call is None else [call]

    def note(self, records: Iterable[AnyRecord]) -> list[AnyRecord]:
        """Look again where programs start or end, which loads drivers; runs of what ended."""
        found: list[AnyRecord] = []
        if self._runs is None:
            return found
        look = False
        for one in records:
            if isinstance(one, Exit):
                found += self._runs.end_of(one.tgid)
            if isinstance(one, Process | Exec | Exit):
                look = self._held = True
        if look:
            self.refresh()
        return found

    def sweep(self, now_ns: int) -> list[DeviceCall]:
        """All runs that changed since the last sweep."""
        return self._runs.sweep(now_ns) if self._runs is not None and self._nodes.nodes else []
