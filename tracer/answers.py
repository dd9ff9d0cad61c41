"""Answers: what the interface says, as JSON objects, from `Derived` and the daemon's state.

A time in milliseconds (`_ms`) is the float nearest to a decimal of six places, so that
multiplied by 10^6 and rounded it is the integer of nanoseconds it came from. A time in
nanoseconds (`_ns`) is CLOCK_MONOTONIC. Unknown is null, never 0.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import orjson

from tracer import answers_work, clocks
from tracer.derived import PHASES, Derived, Facts, Spike
from tracer.drivers import used as used_devices
from tracer.evidence import Evidence, Exchange
from tracer.records import Says
from tracer.stacks.told import told

SCHEMA = 1

Json = dict[str, Any]

_MOST = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def dumps(value: object) -> bytes:
    """One JSON value, without a newline. A whole number beyond 64 bits, which only a sum of
    made-up ones can be, is told as the nearest within."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_within(value))


def _within(value: object) -> object:
    if isinstance(value, dict):
        return {key: _within(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_within(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, -_MOST), _MOST)
    return value


def ms(ns: int | None) -> float | None:
    """Nanoseconds as milliseconds, exact to the nanosecond."""
    return None if ns is None else ns / 1_000_000


def wall_time(wall_ns: int) -> str:
    """RFC 3339 with milliseconds, in UTC, of nanoseconds since the epoch."""
    seconds, rest = divmod(wall_ns, 1_000_000_000)
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        # A wall clock this far off is nonsense, but it must not cost the answer.
        moment = _EPOCH
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 1_000_000:03d}Z"


def arrival_wall_ns(derived: Derived) -> int:
    """When the request arrived, in nanoseconds since the epoch."""
    evidence = derived.evidence
    return evidence.request.arrival_ns + evidence.wall_offset_ns


def answer(derived: Derived) -> Json:
    """The JSON object of one request, as the listings print it."""
    evidence, request = derived.evidence, derived.evidence.request
    timeline, phases = derived.timeline, derived.phases
    return {
        "schema": SCHEMA,
        "id": evidence.id,
        "server": evidence.server,
        "model": derived.model,
        "weights": [path.rpartition("/")[2] or path for path in derived.facts.weights],
        "endpoint": request.endpoint,
        "stream": request.stream,
        "status": request.status,
        "outcome": derived.outcome,
        "died_in": derived.died_in,
        "complete": derived.complete,
        "incomplete_because": derived.incomplete_because,
        "wall_time": wall_time(arrival_wall_ns(derived)),
        "at_ns": _marks(derived),
        "ttft_ms": ms(derived.ttft_ns),
        "prompt_bytes": request.prompt_bytes,
        "prompt_tokens": derived.prompt_tokens,
        "cached_tokens": derived.cached_tokens,
        "tokens": derived.tokens,
        "first_decode_ms": ms(derived.first_decode_ns),
        "first_answer_ms": ms(derived.first_answer_ns),
        "phases_ms": {phase: ms(phases.phases_ns.get(phase, 0)) for phase in PHASES},
        "stages_ms": {stage: ms(ns) for stage, ns in phases.stages_ns.items()},
        "overlaps_ms": {pair: ms(ns) for pair, ns in phases.overlaps_ns.items()},
        "triggered_by": timeline.triggered_by,
        "waited_for": list(timeline.waited_for),
        "retry_of": list(timeline.retry_of),
        "evidence": _facts(derived.facts),
        "server_says": _says(evidence),
        "spike": _spike(derived.spike),
    }


def _marks(derived: Derived) -> Json:
    request = derived.evidence.request
    first = None if derived.ttft_ns is None else request.arrival_ns + derived.ttft_ns
    return {
        "arrival": request.arrival_ns,
        "read": request.read_ns,
        "first_byte": request.head_ns,
        "prompt_start": derived.timeline.prompt_start_ns,
        "first_token": first,
        "second_token": request.second_token_ns,
        "end": request.end_ns,
    }


def _facts(facts: Facts) -> Json:
    return {
        "weights_bytes": facts.weights_bytes,
        "weights_bytes_from_disk": facts.weights_bytes_from_disk,
        "major_faults": facts.major_faults,
        "minor_faults": facts.minor_faults,
        "gpu_calls": facts.gpu_calls,
        "processes_started": facts.processes_started,
        "processes_exited": facts.processes_exited,
        "reclaim_ms": ms(facts.reclaim_ns),
        "resident_before": facts.resident_before,
        "switched_from": facts.switched_from,
    }


def _says(evidence: Evidence) -> Json:
    """The server's own figures: its reply's, what is missing there from its runner's."""
    replies = [
        exchange.says
        for exchange in (evidence.request, evidence.hop)
        if exchange is not None and exchange.says is not None
    ]

    def first(name: str) -> Any:
        values = (getattr(says, name) for says in replies)
        return next((value for value in values if value is not None), None)

    return {name: first(name) for name in ("prompt_ms", "prompt_n", "cache_n", "load_ms")}


def _spike(spike: Spike) -> Json:
    return {
        "is_spike": spike.is_spike,
        "typical_ms": ms(spike.typical_ns),
        "first_expanded": spike.first_expanded,
        "dominant": spike.dominant,
        "cause": spike.cause,
        "why": list(spike.why) if spike.is_spike else None,
        "because": spike.because,
        "advice": spike.advice,
        "switch_is_cause": spike.switch_is_cause,
        "confidence": spike.confidence,
    }


def detail(derived: Derived) -> Json:
    """What `ttft show --json` adds to the answer: `intervals` and `evidence_detail`."""
    intervals = [
        {
            "stage": interval.stage,
            "start_ns": interval.start_ns,
            "end_ns": interval.end_ns,
            "duration_ms": ms(interval.end_ns - interval.start_ns),
            "estimate": interval.estimate,
            "tgid": interval.tgid,
            "tid": interval.tid,
        }
        for interval in derived.phases.intervals
    ]
    detailed = {**evidence_detail(derived.evidence), **answers_work.work(derived)}
    detailed["stacks"] = told(derived)
    seen = clocks.devices(derived.evidence, derived.phases)
    detailed["telemetry"] = [msgspec.to_builtins(one) for one in seen]
    return {"intervals": intervals, "evidence_detail": detailed}


def evidence_detail(evidence: Evidence) -> Json:
    """The evidence itself, runs of like events summed by process and file."""
    return {
        "front": evidence.front,
        "runner": evidence.runner,
        "watching_since_ns": evidence.began_ns,
        "previous_model": evidence.previous_model,
        "baseline_requests": len(evidence.baseline),
        "processes": _processes(evidence),
        "files": _files(evidence),
        "opens": _opens(evidence),
        "spans": _spans(evidence),
        "devices": _devices(evidence),
        "hop": None if evidence.hop is None else _exchange(evidence.hop),
        "polls": [_exchange(poll) for poll in evidence.polls],
        "others": _others(evidence),
        "memory": [
            {"tgid": item.tgid, "at_ns": item.ts_ns, "rss_bytes": item.rss_bytes}
            for item in evidence.memory
        ],
        "lost": [
            {"kind": lost.kind, "count": lost.count, "at_ns": lost.ts_ns} for lost in evidence.lost
        ],
        "probes_changed": [
            {"group": armed.group, "on": armed.on, "at_ns": armed.ts_ns, "why": armed.why}
            for armed in evidence.armed
        ],
    }


def _devices(evidence: Evidence) -> list[Json]:
    """Calls into drivers of accelerators, by process, device and class; `number` of ioctls."""
    tgids = list(dict.fromkeys(call.tgid for call in evidence.devices))
    return [
        {
            "tgid": tgid,
            "device": used.device,
            "driver": used.driver,
            "what": used.what,
            "count": used.count,
            "failed": used.failed,
            "bytes": used.bytes,
            "busy_ms": ms(used.busy_ns),
            "longest_ms": ms(used.longest_ns),
            "numbers": [hex(number) for number in used.numbers],
        }
        for tgid in tgids
        for used in used_devices(call for call in evidence.devices if call.tgid == tgid)
    ]


def _processes(evidence: Evidence) -> list[Json]:
    return [
        {
            "tgid": life.tgid,
            "ppid": life.ppid,
            "comm": life.comm,
            "program": life.command.program if life.command else None,
            "role": life.command.role if life.command else None,
            "model": life.command.model if life.command else None,
            "started_ns": life.start_ns if life.fork_ns is None else life.fork_ns,
            "exec_ns": life.exec_ns,
            "listen_ns": life.listen_ns,
            "exit_ns": life.exit_ns,
            "exit_code": life.exit_code,
            "exit_signal": life.exit_signal,
            "signals": [
                {"signal": item.signal, "sender": item.sender, "at_ns": item.ts_ns}
                for item in life.signals
            ],
        }
        for life in evidence.lives
    ]


def _names(evidence: Evidence) -> dict[tuple[int, int], str]:
    return {
        (file.dev, file.ino): file.path.rpartition("/")[2] if file.path else f"inode {file.ino}"
        for file in evidence.files
    }


def _files(evidence: Evidence) -> list[Json]:
    cached = {(item.dev, item.ino): item.cached_bytes for item in evidence.resident}
    inserted: dict[tuple[int, int], int] = {}
    for insert in evidence.inserts:
        key = (insert.dev, insert.ino)
        inserted[key] = inserted.get(key, 0) + insert.pages * 4096
    return [
        {
            "dev": file.dev,
            "ino": file.ino,
            "path": file.path,
            "size": file.size,
            "format": file.fmt,
            "file_system": file.fs,
            "device": file.device,
            "cached_bytes": cached.get((file.dev, file.ino)),
            "inserted_bytes": inserted.get((file.dev, file.ino), 0),
        }
        for file in evidence.files
    ]


def _opens(evidence: Evidence) -> list[Json]:
    names = _names(evidence)
    return [
        {
            "file": names.get((item.dev, item.ino), f"inode {item.ino}"),
            "tgid": item.tgid,
            "tid": item.tid,
            "at_ns": item.ts_ns,
        }
        for item in evidence.opens
    ]


def _spans(evidence: Evidence) -> list[Json]:
    names = _names(evidence)
    sums: dict[tuple[int, int, int, str], Json] = {}
    for span in evidence.spans:
        key = (span.tgid, span.dev, span.ino, span.op)
        total = sums.get(key)
        if total is None:
            total = sums[key] = {
                "tgid": span.tgid,
                "file": names.get((span.dev, span.ino), f"inode {span.ino}"),
                "op": span.op,
                "count": 0,
                "bytes": 0,
                "busy_ns": 0,
                "first_ns": span.ts_ns,
                "last_ns": span.end_ns,
            }
        total["count"] += span.count
        total["bytes"] += span.bytes
        total["busy_ns"] += span.busy_ns
        total["first_ns"] = min(total["first_ns"], span.ts_ns)
        total["last_ns"] = max(total["last_ns"], span.end_ns)
    for total in sums.values():
        total["busy_ms"] = ms(total.pop("busy_ns"))
    return list(sums.values())


def _exchange(exchange: Exchange) -> Json:
    return {
        "server_tgid": exchange.server_tgid,
        "client_tgid": exchange.client_tgid,
        "port": exchange.conn.server_port,
        "endpoint": exchange.endpoint,
        "status": exchange.status,
        "arrival_ns": exchange.arrival_ns,
        "read_ns": exchange.read_ns,
        "head_ns": exchange.head_ns,
        "first_token_ns": exchange.first_token_ns,
        "end_ns": exchange.end_ns,
        "why": exchange.why,
        "says": _all_said(exchange.says),
    }


def _all_said(says: Says | None) -> Json | None:
    if says is None:
        return None
    return {name: getattr(says, name) for name in says.__struct_fields__}


def _others(evidence: Evidence) -> list[Json]:
    return [
        {
            "id": other.id,
            "model": other.model,
            "runner": other.runner,
            "arrival_ns": other.arrival_ns,
            "first_token_ns": other.first_token_ns,
            "end_ns": other.end_ns,
            "status": other.status,
        }
        for other in evidence.others
    ]
