"""One look at all devices that watched processes hold; owned by one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

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

    def read(self, tgids: Iterable[int]) -> list[Telemetry]:
        """Of each device that one of these processes has open, and is awake."""
        self._step("/proc/PID/fd")
        held = self._finder.held(tgids)
        awake = {d: users for d, users in held.items() if not d.asleep}
        if not any(d.driver == NVIDIA for d in awake):
            self._let_go()
        return [self._one(device, users) for device, users in sorted(awake.items(), key=_order)]

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


def _order(item: tuple[Device, Users]) -> str:
    return item[0].key
