"""A request as it is judged: its evidence and what was made of it."""

from __future__ import annotations

import msgspec

from tracer.derived import Facts, Outcome, Phases, Timeline
from tracer.evidence import Evidence


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`took_ns`: TTFT, less decoding where the reply is whole.

    Where the client went away or the server died: how long it had waited in vain. None: not judged.
    """

    evidence: Evidence
    timeline: Timeline
    phases: Phases
    facts: Facts
    model: str | None
    kind: str
    outcome: Outcome
    took_ns: int | None
    uncached_tokens: int | None
    complete: bool

    def stage_ns(self, stage: str) -> int:
        return self.phases.stages_ns.get(stage, 0)

    def phase_ns(self, phase: str) -> int:
        return self.phases.phases_ns.get(phase, 0)
