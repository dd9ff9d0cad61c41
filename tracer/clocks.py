"""What readings of devices tell: how fast they ran while the prompt was worked on, and the link.

Readings are samples, some times a second, so all of it is of the moments that were looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median_low
from typing import Literal

import msgspec

from tracer import scene
from tracer.derived import Phases
from tracer.evidence import Evidence
from tracer.records import Limit, Telemetry

#: A clock below this part of the usual one is low.
_LOW_USUAL = 0.8
#: Else one below this part of the highest; with something that holds it, below the second.
_LOW, _LOW_HELD = 0.5, 0.8
_HOLDS: frozenset[Limit] = frozenset(
    ("setting", "power", "thermal", "hardware", "sync", "display", "other")
)
#: A device that works less than this part of the time waits for something else.
_AT_WORK_PERCENT = 50
#: One reading may be of the moment in which the clock was raised.
_ENOUGH = 2
#: So long after a streamed first token the device still works at the same clock, ns.
_AFTER_NS = 300_000_000


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A device over some readings: what is typical of each figure, None where none tells it.

    `own_bytes`: the device's memory that the runner had at most. `limits`: what held the clock in
    most of them. `prompt`: the readings are of the work on the prompt. `clock_warm_mhz`: in this
    server's warm prompts. `compared`: what its clock is low or not against.
    """

    device: str
    source: str
    readings: int
    prompt: bool
    name: str | None = None
    busy_percent: int | None = None
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    clock_warm_mhz: int | None = None
    compared: Literal["warm", "highest"] | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    pstate: int | None = None
    limits: tuple[Limit, ...] = ()
    profile: str | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    own_bytes: int | None = None
    link_generation: int | None = None
    link_generation_max: int | None = None
    link_width: int | None = None
    link_width_max: int | None = None

    @property
    def share(self) -> float | None:
        """The clock as a part of the one it is compared with."""
        full = self.clock_warm_mhz if self.compared == "warm" else self.clock_max_mhz
        return None if self.clock_mhz is None or not full else self.clock_mhz / full

    @property
    def narrow(self) -> bool:
        """Whether its link was less than the device could have."""
        pairs = (
            (self.link_generation, self.link_generation_max),
            (self.link_width, self.link_width_max),
        )
        return any(now is not None and most is not None and now < most for now, most in pairs)


def devices(e: Evidence, phases: Phases) -> tuple[Seen, ...]:
    """Each device that the request's server held: while the prompt was worked on, if then read."""
    prompt = _of_prompt(e, phases)
    at_prompt = {r.device for r in prompt}
    rest = [r for r in e.telemetry if r.device not in at_prompt]
    return tuple(
        sorted(
            (*_seen(e, prompt, prompt=True), *_seen(e, rest, prompt=False)), key=lambda s: s.device
        )
    )


def low(e: Evidence, phases: Phases) -> Seen | None:
    """The device of the runner whose clock was too low for the most of the prompt, if one was."""
    if not e.telemetry:
        return None
    usual = _usual(e)
    found = []
    for device, told in _at_work(e, phases).items():
        slow = [r for r in told if _is_low(r, usual.get(device))]
        if len(told) >= _ENOUGH and len(slow) * 2 > len(told):
            found += _seen(e, slow, prompt=True)
    return min(found, key=lambda s: s.share or 1.0, default=None)


def of_prompt(e: Evidence, phases: Phases) -> dict[str, int]:
    """How fast devices of the runner typically ran at work on the prompt, MHz, where read."""
    told = _at_work(e, phases)
    return {device: median_low(r.clock_mhz or 0 for r in told[device]) for device in told}


def explains(seen: Seen | None, took_ns: int, expected_ns: int) -> bool:
    """Whether at its usual or full clock at least half of what was too long would not have been."""
    share = None if seen is None else seen.share
    if share is None or took_ns <= expected_ns:
        return False
    return took_ns * (1 - share) * 2 >= took_ns - expected_ns


def link(e: Evidence, phases: Phases) -> Seen | None:
    """The device whose link was less than it could have, while weights went to it.

    At other times a link is slowed down to save power; its width stays.
    """
    windows = [(x.start_ns, x.end_ns) for x in phases.intervals if x.stage.startswith("transfer.")]
    found = _seen(e, _within(e, windows), prompt=False)
    if not found:
        found = [
            msgspec.structs.replace(s, link_generation=None)
            for s in _seen(e, e.telemetry, prompt=False)
        ]
    return next((s for s in found if s.narrow), None)


def _of_prompt(e: Evidence, phases: Phases) -> list[Telemetry]:
    windows = [
        (x.start_ns, x.end_ns)
        for x in phases.intervals
        if x.stage.startswith("prefill.") and x.stage != "prefill.decode"
    ]
    token_ns = e.request.first_token_ns
    if windows and token_ns is not None and scene.streams(e.request):
        windows.append((token_ns, token_ns + _AFTER_NS))
    return _within(e, windows)


def _within(e: Evidence, windows: Sequence[tuple[int, int]]) -> list[Telemetry]:
    return [r for r in e.telemetry if any(a <= r.ts_ns < b for a, b in windows)]


def _usual(e: Evidence) -> dict[str, int]:
    """How fast devices typically ran in this server's warm prompts, MHz, where read."""
    told: dict[str, list[int]] = {}
    for w in e.baseline:
        for device, clock in w.clocks_mhz.items() if w.server == e.server else ():
            told.setdefault(device, []).append(clock)
    return {device: median_low(clocks) for device, clocks in told.items()}


def _at_work(e: Evidence, phases: Phases) -> dict[str, list[Telemetry]]:
    """Readings of devices of the runner that worked on the prompt."""
    tree = scene.of(e).tree if e.telemetry else frozenset()
    found: dict[str, list[Telemetry]] = {}
    for r in _of_prompt(e, phases):
        if _works(r) and any(h.tgid in tree for h in r.holders):
            found.setdefault(r.device, []).append(r)
    return found


def _works(r: Telemetry) -> bool:
    """Whether the clock says how fast it worked: one that idles, or may, has no need of it."""
    if not r.clock_mhz:
        return False
    if r.busy_percent is not None:
        return r.busy_percent >= _AT_WORK_PERCENT
    # Whether it works is not told: that something holds its clock down says so.
    return bool(_HOLDS & frozenset(r.limits or ())) and "idle" not in (r.limits or ())


def _is_low(r: Telemetry, usual: int | None) -> bool:
    if r.clock_mhz is None or not (usual or r.clock_max_mhz):
        return False
    if usual:
        return r.clock_mhz < _LOW_USUAL * usual
    held = _HOLDS & frozenset(r.limits or ())
    return r.clock_mhz < (_LOW_HELD if held else _LOW) * (r.clock_max_mhz or 0)


def _seen(e: Evidence, readings: Iterable[Telemetry], *, prompt: bool) -> list[Seen]:
    by_device: dict[str, list[Telemetry]] = {}
    for r in readings:
        by_device.setdefault(r.device, []).append(r)
    return [_one(e, mine, prompt) for mine in by_device.values()]


def _one(e: Evidence, mine: list[Telemetry], prompt: bool) -> Seen:
    tree = scene.of(e).tree

    def typical(what: Callable[[Telemetry], int | None]) -> int | None:
        told = [value for r in mine if (value := what(r)) is not None]
        return median_low(told) if told else None

    held = Counter(limit for r in mine for limit in r.limits or () if limit in _HOLDS)
    own = [h.memory_bytes for r in mine for h in r.holders if h.tgid in tree]
    last = mine[-1]
    warm, most = _usual(e).get(last.device), typical(lambda r: r.clock_max_mhz)
    return Seen(
        device=last.device,
        source=last.source,
        readings=len(mine),
        prompt=prompt,
        name=last.name,
        busy_percent=typical(lambda r: r.busy_percent),
        clock_mhz=typical(lambda r: r.clock_mhz),
        clock_max_mhz=most,
        clock_warm_mhz=warm,
        compared="warm" if warm else "highest" if most else None,
        memory_clock_mhz=typical(lambda r: r.memory_clock_mhz),
        memory_clock_max_mhz=typical(lambda r: r.memory_clock_max_mhz),
        pstate=typical(lambda r: r.pstate),
        limits=tuple(sorted(limit for limit, n in held.items() if n * 2 > len(mine))),
        profile=last.profile,
        memory_used_bytes=_most(r.memory_used_bytes for r in mine),
        memory_total_bytes=last.memory_total_bytes,
        own_bytes=_most(own),
        link_generation=typical(lambda r: r.link_generation),
        link_generation_max=typical(lambda r: r.link_generation_max),
        link_width=typical(lambda r: r.link_width),
        link_width_max=typical(lambda r: r.link_width_max),
    )


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
