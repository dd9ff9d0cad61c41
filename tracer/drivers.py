"""What calls into the drivers of accelerators tell: a device brought up; and, where no library was
seen to do it, uploads, contexts and the key-value cache. Time in the calls is exact; what it was
spent on is an estimate, but for bringing a device up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from tracer import device
from tracer.derived import Interval
from tracer.evidence import Evidence
from tracer.records import DeviceCall, DeviceWhat
from tracer.scene import Range, Scene
from tracer.startup import Start
from tracer.unseen import off
from tracer.weights import share

#: The probe group (tracer/kernel/probes.py).
GROUP = "devices"
#: Runs whose calls took less in all claim nothing.
SOME_NS = 1_000_000
#: An open that takes this long brings its device up. Others come at any time.
SLOW_NS = 10_000_000
#: The group comes on with the request that asks for it: what it may miss by that, ns.
_LATE_NS = 5_000_000
_WORK: frozenset[DeviceWhat] = frozenset({"transfer", "submit"})
_CONTEXT: frozenset[DeviceWhat] = frozenset({"open", "context", "queue", "query"})


class Used(msgspec.Struct, frozen=True):
    """All calls of one class on one device. `bytes`: None where no argument tells."""

    device: str
    driver: str
    what: DeviceWhat
    count: int
    failed: int
    bytes: int | None
    busy_ns: int
    longest_ns: int
    numbers: tuple[int, ...]


def known(e: Evidence, start_ns: int, end_ns: int) -> bool:
    """Whether driver calls were seen all that time: there is a device, and the probes were on."""
    told = any(a.group == GROUP for a in e.armed)
    latest = min(start_ns + _LATE_NS, end_ns - 1)
    return told and all(end <= latest for _, end in off(e, GROUP, start_ns, end_ns))


def count(scene: Scene, tgids: frozenset[int]) -> int:
    """Calls of these processes in the window; of a run that sticks out, its share."""
    return sum(
        share(c.count, c.ts_ns, c.end_ns, scene.start_ns, scene.end_ns)
        for c in scene.e.devices
        if c.tgid in tgids and c.ts_ns <= scene.end_ns and c.end_ns >= scene.start_ns
    )


def used(calls: Iterable[DeviceCall]) -> list[Used]:
    """Sums by device and class, the longest first."""
    groups: dict[tuple[str, str, DeviceWhat], list[DeviceCall]] = {}
    for c in calls:
        groups.setdefault((c.device, c.driver, c.what), []).append(c)
    found = []
    for (name, driver, what), mine in groups.items():
        sizes = [c.bytes for c in mine if c.bytes is not None]
        numbers = Counter(c.number for c in mine if c.number is not None)
        found.append(
            Used(
                name, driver, what, sum(c.count for c in mine), sum(c.failed for c in mine),
                sum(sizes) if sizes else None, sum(c.busy_ns for c in mine),
                max(c.busy_ns if c.count == 1 else c.busy_ns // c.count for c in mine),
                tuple(sorted(numbers)),
            )
        )  # fmt: skip
    return sorted(found, key=lambda u: (-u.busy_ns, u.device, u.what))


def _busy(c: DeviceCall) -> tuple[Range, bool]:
    """When its calls were under way, and whether that is exact. Of a run with pauses, the time in
    the calls is laid at its end."""
    busy = min(c.busy_ns, c.end_ns - c.ts_ns)
    return (c.end_ns - busy, c.end_ns), busy == c.end_ns - c.ts_ns


def _brings_up(start: Start, c: DeviceCall, until_ns: int) -> bool:
    early = start.begin_ns <= c.ts_ns < until_ns
    return early and c.tgid in start.tree and c.what not in _WORK and c.busy_ns >= SOME_NS


def bring_up(scene: Scene, start: Start) -> Iterator[Interval]:
    """Devices opened, asked and set up before the weights: discovery, driver start, contexts."""
    load = start.load_ns
    until = min(start.ready_ns, scene.end_ns) if load is None else load
    for c in scene.e.devices:
        if _brings_up(start, c, until):
            (begin, end), exact = _busy(c)
            yield from scene.claim(
                "spawn.device", begin, min(end, until), estimate=not exact, tgid=c.tgid, tid=c.tid
            )


def start_claims(scene: Scene, start: Start) -> Iterator[Interval]:
    """After the weights began to come: contexts, and what is allocated when they are there."""
    load, last = start.load_ns, min(start.ready_ns, scene.end_ns)
    if load is None:
        return
    loaded = min(b.end_ns for b in start.bulks)
    own = [c for c in scene.e.calls if c.tgid in start.tree and load <= c.ts_ns < last]
    contexts = not any(c.what == "context" for c in own)
    caches = not any(c.what == "alloc" and c.layer == "engine" for c in own)
    for c in scene.e.devices:
        if c.tgid not in start.tree or not load <= c.ts_ns < last or c.busy_ns < SOME_NS:
            continue
        (begin, end), _ = _busy(c)
        stage = None
        if c.what in _CONTEXT and contexts:
            stage = "init.context"
        elif c.what == "allocate" and caches and c.ts_ns >= loaded:
            stage = "init.kv"
        if stage is not None:
            yield from scene.claim(
                stage, begin, min(end, last), estimate=True, tgid=c.tgid, tid=c.tid
            )


def late_claims(scene: Scene, starts: list[Start]) -> Iterator[Interval]:
    """A device brought up while no start was under way: by the first work that needs it."""
    for c in scene.e.devices:
        slow = c.what == "open" and c.count == 1 and c.end_ns - c.ts_ns >= SLOW_NS
        taken = any(x.tree >= {c.tgid} and x.begin_ns <= c.ts_ns < x.ready_ns for x in starts)
        if slow and not taken and c.tgid in scene.tree:
            yield from scene.claim("spawn.device", c.ts_ns, c.end_ns, tgid=c.tgid, tid=c.tid)


def transfers(scene: Scene) -> list[DeviceCall]:
    """Copies of weights' size by driver calls, where no library was seen to copy."""
    if any(device.transfers(scene)):
        return []
    return [
        c
        for c in scene.e.devices
        if c.what == "transfer" and c.tgid in scene.tree and (c.bytes or 0) >= device.UPLOAD_BYTES
    ]


def transfer_claims(scene: Scene) -> Iterator[Interval]:
    for c in transfers(scene):
        (begin, end), _ = _busy(c)
        yield from scene.claim("transfer.h2d", begin, end, estimate=True, tgid=c.tgid, tid=c.tid)


def brought_up(scene: Scene) -> list[Used]:
    """What was done to devices in `spawn.device`, the longest first."""
    return used(
        c
        for c in scene.e.devices
        if c.tgid in scene.tree and c.what not in _WORK and c.busy_ns >= SOME_NS
        and c.end_ns > scene.start_ns and c.ts_ns < scene.end_ns
    )  # fmt: skip
