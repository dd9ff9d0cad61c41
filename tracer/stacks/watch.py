"""Samples running code while `when.py` wants it; gives records of what was found."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tracer.errors import KernelError
from tracer.kernel import libbpf
from tracer.kernel.layouts import SLOT_NS, STACK_KEY
from tracer.kernel.loader import Kernel
from tracer.kernel.probes import SAMPLER
from tracer.records import AnyRecord, Exec, Fork, HttpEnd, HttpToken, Samples
from tracer.stacks.clock import Clocks
from tracer.stacks.mapped import Mappings
from tracer.stacks.when import When

_AT_ONCE = 128
_FRAMES = struct.Struct("<8Q")
_COUNT = struct.Struct("<Q")
#: Counts are taken out so often, and when a request is answered.
_TAKE_NS = 450_000_000


@dataclass
class _Slot:
    """What was found of a process in one slot of time."""

    modules: dict[str, int] = field(default_factory=dict)
    stacks: dict[tuple[int, ...], int] = field(default_factory=dict)

    def add(self, frames: Iterable[tuple[str, int]], count: int) -> None:
        numbers: list[int] = []
        for module, offset in frames:
            numbers += (self.modules.setdefault(module, len(self.modules)), offset)
        if numbers:
            self.stacks[tuple(numbers)] = self.stacks.get(tuple(numbers), 0) + count


class StackWatch:
    """Owned by the engine's thread. Without the program, or `off`, all of it does nothing.

    The clocks are made when they are first wanted. `left_out`: samples that found no room.
    `hz`: as tracer/stacks/clock.py has it.
    """

    def __init__(
        self,
        kernel: Kernel,
        when: When,
        say: Callable[[str], None],
        *,
        off: bool = False,
        hz: float | None = None,
    ) -> None:
        self._kernel = kernel
        self._when = when
        self._say = say
        self._hz = hz
        self._off = off or SAMPLER not in kernel.probes.programs
        self._clocks: Clocks | None = None
        self._due_ns = 0
        self.mappings = Mappings()

    @property
    def sampling(self) -> bool:
        """Whether the clocks tick."""
        return self._clocks is not None and self._clocks.ticking

    @property
    def left_out(self) -> int:
        if self._off:
            return 0
        found = self._kernel.table("stacks_left_out").get(bytes(4))
        return int(_COUNT.unpack(found)[0]) if found else 0

    def note(self, records: Iterable[AnyRecord]) -> None:
        """Follow what happens."""
        if self._off:
            return
        for record in records:
            self._when.feed(record)
            if isinstance(record, HttpToken | HttpEnd):
                self._due_ns = 0  # it may be told next, with all that ran
            if isinstance(record, Exec | Fork):
                self.mappings.forget(record.tgid if isinstance(record, Exec) else record.child)

    def collect(self, now_ns: int) -> list[AnyRecord]:
        """Start or stop sampling, as it is due; what was found since the last time."""
        if self._off:
            return []
        was = self.sampling
        wanted = self._when.wanted(now_ns)
        if wanted != was:
            self._tick(wanted)
        if not was or (wanted and now_ns < self._due_ns):
            return []
        self._due_ns = now_ns + _TAKE_NS
        return self._taken(now_ns)

    def _tick(self, on: bool) -> None:
        if self._clocks is None:
            program = self._kernel.probes.programs[SAMPLER].handle
            try:
                self._clocks = Clocks(libbpf.program_fd(program), self._hz)
            except KernelError as error:
                self._off = True
                self._kernel.probes.missing[SAMPLER] = error.message
                self._say(f"stacks: {error.message}; slow stages will not tell what they did")
                return
        self._clocks.tick(on)

    def _taken(self, now_ns: int) -> list[AnyRecord]:
        assert self._clocks is not None
        slots: defaultdict[tuple[int, int], _Slot] = defaultdict(_Slot)
        for key, value in self._kernel.table("stacks").take_all(_AT_ONCE):
            tgid, slot, frames = STACK_KEY.packer.unpack(key)
            (count,) = _COUNT.unpack(value)
            slots[slot, tgid].add(self._places(tgid, frames, now_ns), count)
        period_ns = round(1e9 / self._clocks.hz)
        return [
            Samples(
                ts_ns=slot * SLOT_NS,
                end_ns=(slot + 1) * SLOT_NS,
                tgid=tgid,
                period_ns=period_ns,
                modules=tuple(found.modules),
                stacks=tuple((count, *frames) for frames, count in found.stacks.items()),
            )
            for (slot, tgid), found in sorted(slots.items(), key=lambda item: item[0])
            if found.stacks
        ]

    def _places(self, tgid: int, raw: bytes, now_ns: int) -> list[tuple[str, int]]:
        """Frames as far as they are code: without frame pointers the others are chance."""
        found: list[tuple[str, int]] = []
        for address in _FRAMES.unpack(raw):
            # A caller's frame says where it goes on: the call is before.
            exact = address - 1 if found else address
            mapping = self.mappings.at(tgid, exact, now_ns, sure=not found) if address else None
            if mapping is None:
                break
            found.append((mapping.module, mapping.place(exact)))
        return found

    def close(self) -> None:
        """No more clocks."""
        if self._clocks is not None:
            self._clocks.close()
            self._clocks = None
        self._off = True
