"""What readings of devices tell: how fast they ran while the prompt was worked on, and the link.

Readings are samples, some times a second, so all of it is of the moments that were looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median_low

import msgspec

from tracer import scene
from tracer.derived import Phases
from tracer.evidence import Evidence
from tracer.records import Limit, Telemetry

#: A clock below this part of the highest is low; with something that holds it, below the second.
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
    most of them. `prompt`: the readings are of the work on the prompt.
    """

    device: str
    source: str
    readings: int
    prompt: bool
    name: str | None = None
    busy_percent: int | None = None
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
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
        """The clock as a part of the highest."""
        if self.clock_mhz is None or not self.clock_max_mhz:
            return None
        return self.clock_mhz / self.clock_max_mhz

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
    tree = scene.of(e).tree
    mine = [r for r in _of_prompt(e, phases) if any(h.tgid in tree for h in r.holders)]
    found = []
    for device in sorted({r.device for r in mine}):
        told = [r for r in mine if r.device == device and _at_work(r)]
        slow = [r for r in told if _is_low(r)]
        if len(told) >= _ENOUGH and len(slow) * 2 > len(told):
            found += _seen(e, slow, prompt=True)
    return min(found, key=lambda s: s.share or 1.0, default=None)


def explains(seen: Seen | None, took_ns: int, expected_ns: int) -> bool:
    """Whether at its full clock at least half of what was too long would not have been."""
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


def _at_work(r: Telemetry) -> bool:
    """Whether the clock says how fast it worked: one that idles, or may, has no need of it."""
    if not r.clock_mhz or not r.clock_max_mhz:
        return False
    if r.busy_percent is not None:
        return r.busy_percent >= _AT_WORK_PERCENT
    # Whether it works is not told: that something holds its clock down says so.
    return bool(_HOLDS & frozenset(r.limits or ())) and "idle" not in (r.limits or ())


def _is_low(r: Telemetry) -> bool:
    share = (r.clock_mhz or 0) / (r.clock_max_mhz or 1)
    return share < (_LOW_HELD if _HOLDS & frozenset(r.limits or ()) else _LOW)


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
    return Seen(
        device=last.device,
        source=last.source,
        readings=len(mine),
        prompt=prompt,
        name=last.name,
        busy_percent=typical(lambda r: r.busy_percent),
        clock_mhz=typical(lambda r: r.clock_mhz),
        clock_max_mhz=typical(lambda r: r.clock_max_mhz),
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
