"""One look at all devices that watched processes hold; owned by one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from tracer.records import Holder, Telemetry
from tracer.telemetry import fdinfo, kernel
from tracer.telemetry.held import Device, Finder, Users
from tracer.telemetry.nvml import Nvml
from tracer.telemetry.places import Places

Step = Callable[[str], None]
NVIDIA = "nvidia"


class Reader:
    """`read()` as often as needed, then `release()`. `step` is told what may hang, before it does.

    `nvml`: whether NVIDIA's library may be used.
    """

    def __init__(
        self, places: Places, say: Callable[[str], None], step: Step, *, nvml: bool = True
    ) -> None:
        self._places = places
        self._step = step
        self._finder = Finder(places)
        self._nvml = Nvml(say, step) if nvml else None
        self._had: set[tuple[Device, int]] = set()

    def read(self, tgids: Iterable[int]) -> list[Telemetry]:
        """Of each device that one of these processes has open, and is awake; and who of them has
        one open no more, whose device is not asked for that."""
        asked = frozenset(tgids)
        self._step("/proc/PID/fd")
        held = self._finder.held(sorted(asked))
        awake = {d: users for d, users in held.items() if not d.asleep}
        if not any(d.driver == NVIDIA for d in awake):
            self._let_go()
        found = {d: self._one(d, users) for d, users in sorted(awake.items(), key=_order)}
        for device, tgid in sorted(self._gone(held, asked), key=_order_gone):
            before = found.get(device) or Telemetry(
                ts_ns=time.monotonic_ns(), device=device.key, source=device.driver
            )
            holders = (*before.holders, Holder(tgid=tgid, memory_bytes=0, gone=True))
            found[device] = msgspec.structs.replace(before, holders=holders)
        return list(found.values())

    def _gone(self, held: dict[Device, Users], asked: frozenset[int]) -> set[tuple[Device, int]]:
        """Who had a device open when last asked, and has not now; of who ended nobody asks."""
        now = {(device, tgid) for device, users in held.items() for tgid in users}
        rest = {(d, t) for d, t in self._had if t not in asked}
        gone = self._had - rest - now
        self._had = now | {(d, t) for d, t in rest if (self._places.proc / str(t)).exists()}
        return gone

    def release(self) -> None:
        """Hold nothing any more."""
        self._let_go()
        self._finder.forget()

    def _let_go(self) -> None:
        if self._nvml is not None:
            self._nvml.close()

    def _one(self, device: Device, users: Users) -> Telemetry:
        self._step(f"/sys, {device.key}")
        source, figures = device.driver, kernel.figures(device)
        holders: list[Holder] = []
        if device.driver == NVIDIA:
            told = None if self._nvml is None else self._nvml.figures(device, users)
            if told is not None:
                source = "nvml"
                figures |= {name: value for name, value in told[0].items() if value is not None}
                holders = told[1]
        else:
            holders = [
                fdinfo.holder(self._places.proc, tgid, users[tgid]) for tgid in sorted(users)
            ]
        return Telemetry(
            ts_ns=time.monotonic_ns(),
            device=device.key,
            source=source,
            holders=tuple(holders) or tuple(Holder(tgid=tgid) for tgid in sorted(users)),
            **figures,
        )


def _order_gone(pair: tuple[Device, int]) -> tuple[str, int]:
    return pair[0].key, pair[1]


def _order(item: tuple[Device, Users]) -> str:
    return item[0].key
