"""Slices of one request: its own, its phases and stages, its hop, its runner's work."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec

from tracer.derived import Derived, Interval
from tracer.export.shared import request_end
from tracer.export.tracks import Slice, Trace, Track, clip
from tracer.stacks.told import told

WORK = ("load", "transfer", "init", "spawn", "prefill")


def request_slice(item: Derived) -> Slice:
    """The request from arrival to its end, phases inside it, stages inside those."""
    evidence = item.evidence
    start, end = evidence.request.arrival_ns, request_end(item)
    name = f"#{evidence.id} {item.model or 'unknown model'}"
    whole = Slice(start, end, name, "request", _request_args(item))
    stop = min(start + max(item.window_ns, 0), end)
    ran = _ran(item)
    stages = [
        (
            one.stage.partition(".")[0],
            Slice(one.start_ns, one.end_ns, one.stage, "stage", _stage_args(one, ran.get(id(one)))),
        )
        for one in item.phases.intervals
    ]
    phase_of = {id(piece): phase for phase, piece in stages}
    pieces = clip((piece for _, piece in stages), start, stop)
    for phase, run in groupby(pieces, key=lambda piece: phase_of[id(piece)]):
        parts = list(run)
        inside = [piece for piece in parts if piece.name != phase]
        whole.inside.append(Slice(parts[0].start_ns, parts[-1].end_ns, phase, "phase", {}, inside))
    if item.ttft_ns is not None and stop < end:
        whole.inside.append(Slice(stop, end, "generate", "phase", {"tokens": item.tokens}))
    return whole


def _ran(item: Derived) -> dict[int, dict[str, Any]]:
    """What ran in each stage, by id() of its longest piece: that tells it for all of them."""
    longest: dict[str, Interval] = {}
    for one in item.phases.intervals:
        known = longest.get(one.stage)
        if known is None or one.end_ns - one.start_ns > known.end_ns - known.start_ns:
            longest[one.stage] = one
    return {id(longest[s["stage"]]): s for s in told(item) or () if s["stage"] in longest}


def _stage_args(one: Interval, ran: dict[str, Any] | None) -> dict[str, Any]:
    args: dict[str, Any] = {"estimate": True} if one.estimate else {}
    if ran is not None:
        args |= {name: ran[name] for name in ("samples", "processors", "modules", "functions")}
    return args


def _request_args(item: Derived) -> dict[str, Any]:
    """What the trace says of a request: verdict first."""
    evidence, request = item.evidence, item.evidence.request
    says = request.says
    return {
        "id": evidence.id,
        "verdict": msgspec.to_builtins(item.spike) | {"typical_ns": item.spike.typical_ns},
        "ttft_ms": _ms(item.ttft_ns),
        "outcome": item.outcome,
        "died_in": item.died_in,
        "complete": item.complete,
        "incomplete_because": item.incomplete_because,
        "server": evidence.server,
        "model": item.model,
        "endpoint": request.endpoint,
        "stream": request.stream,
        "status": request.status,
        "prompt_tokens": item.prompt_tokens,
        "cached_tokens": item.cached_tokens,
        "tokens": item.tokens,
        "phases_ms": {phase: _ms(ns) for phase, ns in item.phases.phases_ns.items()},
        "stages_ms": {stage: _ms(ns) for stage, ns in item.phases.stages_ns.items()},
        "overlaps_ms": {pair: _ms(ns) for pair, ns in item.phases.overlaps_ns.items()},
        "evidence": msgspec.to_builtins(item.facts),
        "server_says": msgspec.to_builtins(says) if says is not None else None,
        "triggered_by": item.timeline.triggered_by,
        "waited_for": list(item.timeline.waited_for),
        "retry_of": list(item.timeline.retry_of),
    }


def _ms(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1e6, 6)


def marks(trace: Trace, item: Derived, track: Track) -> None:
    """The moments of a request, on its track."""
    request = item.evidence.request
    moments = {
        "read": request.read_ns,
        "body complete": request.body_ns,
        "prompt start": item.timeline.prompt_start_ns,
        "first byte": request.head_ns,
        "first token": request.first_token_ns,
        "second token": request.second_token_ns,
        "first answer": request.first_answer_ns,
    }
    for name, ns in moments.items():
        if ns is not None:
            trace.instant(ns, name, track, "mark")


def hop_slice(item: Derived) -> Slice | None:
    """The request the front made to the runner for this one."""
    hop = item.evidence.hop
    if hop is None:
        return None
    end = hop.end_ns if hop.end_ns is not None else max(request_end(item), hop.arrival_ns)
    args = {"request": item.evidence.id, "status": hop.status, "endpoint": hop.endpoint}
    piece = Slice(
        hop.arrival_ns, max(end, hop.arrival_ns), f"hop of #{item.evidence.id}", "hop", args
    )
    first = hop.first_token_ns
    if first is not None and piece.start_ns < first < piece.end_ns:
        piece.inside.append(Slice(piece.start_ns, first, "to first token", "hop"))
    return piece


def work_of(item: Derived) -> list[tuple[int, str, Interval]]:
    """Claims that are work of a process: (tgid, phase, claim)."""
    found = []
    for claim in item.timeline.claims:
        phase = claim.stage.partition(".")[0]
        tgid = claim.tgid if claim.tgid is not None else item.evidence.runner
        if phase in WORK and tgid is not None and claim.end_ns > claim.start_ns:
            found.append((tgid, phase, claim))
    return found


def union(claims: Iterable[Interval]) -> list[Slice]:
    """Claims of several requests to the same stage joined into the work they saw."""
    joined: list[Slice] = []
    for stage, run in groupby(
        sorted(claims, key=lambda one: (one.stage, one.start_ns)), key=lambda one: one.stage
    ):
        last: Slice | None = None
        for claim in run:
            if last is not None and claim.start_ns <= last.end_ns:
                last.end_ns = max(last.end_ns, claim.end_ns)
                continue
            last = Slice(claim.start_ns, claim.end_ns, stage, "work")
            joined.append(last)
    return joined
