"""Derived: what is concluded about one request. All times in integer nanoseconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from tracer.evidence import Evidence

Phase = Literal["queue", "evict", "spawn", "load", "transfer", "init", "prefill", "other"]
PHASES: tuple[Phase, ...] = (
    "queue",
    "evict",
    "spawn",
    "load",
    "transfer",
    "init",
    "prefill",
    "other",
)
Outcome = Literal["ok", "client_gone", "server_error", "server_died", "open"]


class Interval(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A claim of the timeline: [start, end) belongs to `stage` (`phase.part`).

    Claims may overlap; phases.py decides. `tgid` and `tid`: whose work, if known.
    """

    stage: str
    start_ns: int
    end_ns: int
    estimate: bool = False
    tgid: int | None = None
    tid: int | None = None


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Claims over the window [start_ns, end_ns] and the marks they hang on.

    `unseen`: when something that counts may have happened unseen, as [start, end) each.
    """

    start_ns: int
    end_ns: int
    claims: tuple[Interval, ...]
    prompt_start_ns: int | None
    triggered_by: int | None
    waited_for: tuple[int, ...]
    retry_of: tuple[int, ...]
    engine_seen: bool
    unseen: tuple[tuple[int, int], ...] = ()


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Disjoint intervals that tile the window; sums by phase, stage and hidden overlap."""

    intervals: tuple[Interval, ...]
    phases_ns: dict[str, int]
    stages_ns: dict[str, int]
    overlaps_ns: dict[str, int]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence as figures; None is unknown, never 0."""

    weights: tuple[str, ...]
    weights_bytes: int | None
    weights_bytes_from_disk: int | None
    major_faults: int | None
    minor_faults: int | None
    gpu_calls: int | None
    processes_started: int | None
    processes_exited: int | None
    reclaim_ns: int | None
    resident_before: bool | None
    switched_from: str | None


class Spike(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict. Only `is_spike` and `typical_ns` are set when it is not a spike."""

    is_spike: bool
    typical_ns: int | None = None
    first_expanded: str | None = None
    dominant: str | None = None
    cause: str | None = None
    why: tuple[str, ...] = ()
    because: str | None = None
    advice: str | None = None
    switch_is_cause: bool | None = None
    confidence: float | None = None


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """One request explained. `ttft_ns` None: no first token, see `died_in`."""

    evidence: Evidence
    model: str | None
    kind: str
    outcome: Outcome
    died_in: str | None
    ttft_ns: int | None
    window_ns: int
    first_decode_ns: int | None
    first_answer_ns: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    tokens: int | None
    timeline: Timeline
    phases: Phases
    facts: Facts
    spike: Spike
    warm: bool
    complete: bool
    incomplete_because: str | None

    @property
    def wants_names(self) -> bool:
        """Whether somebody will ask which functions ran; a refusal is none of those."""
        return self.spike.is_spike or self.outcome not in ("ok", "server_error")

    @property
    def over(self) -> bool:
        """Whether this is the last word on it."""
        return self.evidence.request.end_ns is not None or self.outcome == "server_died"
