"""What ran in each stage, as JSON for answers and traces. Pure."""

from __future__ import annotations

from typing import Any

from tracer.derived import Derived
from tracer.stacks.fold import Function, stages

Json = dict[str, Any]


def told(derived: Derived) -> list[Json] | None:
    """Each stage's samples and its most frequent functions; None where nothing was sampled."""
    if not derived.evidence.samples:
        return None
    return [
        {
            "stage": stage.stage,
            "samples": stage.samples,
            "processors": stage.processors,
            "modules": [
                {"module": m.module, "samples": m.samples, "share": m.share} for m in stage.modules
            ],
            "functions": [_function(one) for one in stage.functions],
        }
        for stage in stages(derived.evidence, derived.phases)
    ]


def _function(one: Function) -> Json:
    return {
        "function": one.name,
        "module": one.module,
        "samples": one.samples,
        "share": one.share,
        "callers": list(one.callers),
    }
