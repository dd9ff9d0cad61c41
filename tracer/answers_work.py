"""What `evidence_detail` says of work beside reading: uploads, compilation, the processor.

None where nothing of the kind was seen.
"""

from __future__ import annotations

from typing import Any

from tracer import contention, device, scene
from tracer.derived import Derived
from tracer.scene import Scene

Json = dict[str, Any]


def work(derived: Derived) -> Json:
    """`transfer`, `compiled` and `processor` of one request."""
    s = scene.of(derived.evidence)
    return {
        "transfer": _transfer(s, derived),
        "compiled": _compiled(s),
        "processor": _processor(s, derived),
    }


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1_000_000


def _transfer(s: Scene, derived: Derived) -> Json | None:
    """`took_ms`: of all uploads, those hidden behind other phases (`hidden_ms`) too."""
    size, took = device.uploaded(s)
    if not size:
        return None
    shown = derived.phases.phases_ns.get("transfer", 0)
    return {
        "bytes": size,
        "took_ms": _ms(took),
        "bytes_per_s": round(size / took * 1e9) if took else None,
        "hidden_ms": _ms(max(0, took - shown)),
    }


def _compiled(s: Scene) -> Json | None:
    """What was looked up in compile caches: not there and made, or there."""
    missed = [c for c, end in device.misses(s) if end > s.start_ns and c.ts_ns < s.end_ns]
    found = [c for c in device.hits(s) if s.start_ns <= c.ts_ns < s.end_ns]
    if not missed and not found:
        return None
    return {
        "caches": sorted({c.folder for c in (*missed, *found)}),
        "missed": len(missed),
        "found": len(found),
    }


def _processor(s: Scene, derived: Derived) -> Json | None:
    """In the prompt, in time that passed; see `tracer.contention.Processor`."""
    seen = contention.of(s, derived.timeline)
    if seen is None:
        return None
    return {
        "waited_ms": _ms(seen.passed_ns(seen.waited_ns)),
        "throttled_ms": _ms(seen.passed_ns(seen.throttled_ns)),
        "processors": _per(seen.ran_ns, seen.took_ns),
        "others_processors": _per(seen.others_ns, seen.took_ns),
    }


def _per(amount_ns: int | None, took_ns: int) -> float | None:
    """How many processors that was on average."""
    return None if amount_ns is None else round(amount_ns / took_ns, 2)
