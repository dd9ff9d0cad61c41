"""A request as one OpenTelemetry trace, in the JSON of OTLP: a span for it, a span for each phase.

Names are those of the GenAI semantic conventions where they have one, else begin with `ttft.`.
The encoding is small and fixed, so no library is needed for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import orjson

from tracer import __version__
from tracer.derived import Derived, Interval

Json = dict[str, Any]

_OPERATIONS = {
    "chat": "chat",
    "completion": "text_completion",
    "infill": "text_completion",
    "embedding": "embeddings",
}
_PROVIDERS = {"llama-server": "llama.cpp", "local-ai": "localai"}
_INTERNAL, _SERVER = 1, 2
_ERROR = 2


def encode(derived: Derived, resource: dict[str, str]) -> bytes:
    """One entry of `resourceSpans`; `resource` adds to or replaces what is told of its origin."""
    evidence = derived.evidence
    origin = {"service.name": evidence.server, **resource}
    entry = {
        "resource": {"attributes": attributes(origin)},
        "scopeSpans": [
            {"scope": {"name": "ttft", "version": __version__}, "spans": list(_spans(derived))}
        ],
    }
    return orjson.dumps(entry)


def body(entries: list[bytes]) -> bytes:
    """The request body that carries these entries."""
    return b'{"resourceSpans":[' + b",".join(entries) + b"]}"


def attributes(values: dict[str, Any]) -> list[Json]:
    """Key and typed value of all that are known."""
    return [{"key": key, "value": _value(v)} for key, v in values.items() if v is not None]


def _value(value: object) -> Json:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}


class _Ids:
    """The same for the same request, however often it is sent."""

    def __init__(self, derived: Derived) -> None:
        evidence = derived.evidence
        wall = evidence.request.arrival_ns + evidence.wall_offset_ns
        seed = f"{evidence.server}\0{evidence.id}\0{wall}".encode(errors="replace")
        self.trace = blake2b(seed, digest_size=16).hexdigest()
        self._seed, self._count = seed, 0

    def span(self) -> str:
        self._count += 1
        return blake2b(self._seed, digest_size=8, salt=self._count.to_bytes(8, "big")).hexdigest()


def _spans(derived: Derived) -> Iterator[Json]:
    ids = _Ids(derived)
    evidence, request = derived.evidence, derived.evidence.request
    offset = evidence.wall_offset_ns
    start = request.arrival_ns
    end = max(request.end_ns or 0, start + derived.window_ns)
    root = ids.span()
    operation = _operation(derived)
    name = f"{operation} {derived.model}" if derived.model else operation
    span = _span(ids.trace, root, name, start + offset, end + offset)
    yield span | {
        "kind": _SERVER,
        "attributes": attributes(_of_request(derived, operation)),
        "status": _status(derived),
    }
    for phase, pieces in runs(derived.phases.intervals):
        begin, stop = pieces[0].start_ns, pieces[-1].end_ns
        inner = _span(ids.trace, ids.span(), f"ttft.{phase}", begin + offset, stop + offset)
        yield inner | {
            "parentSpanId": root,
            "kind": _INTERNAL,
            "attributes": attributes(_of_phase(phase, pieces)),
        }
    if derived.ttft_ns is not None and end > start + derived.ttft_ns:
        first = start + derived.ttft_ns
        inner = _span(ids.trace, ids.span(), "ttft.generation", first + offset, end + offset)
        yield inner | {"parentSpanId": root, "kind": _INTERNAL}


def _span(trace: str, span: str, name: str, start_ns: int, end_ns: int) -> Json:
    return {
        "traceId": trace,
        "spanId": span,
        "name": name,
        "startTimeUnixNano": str(max(0, start_ns)),
        "endTimeUnixNano": str(max(0, start_ns, end_ns)),
    }


def runs(intervals: tuple[Interval, ...]) -> Iterator[tuple[str, list[Interval]]]:
    """Neighbouring intervals of one phase, in order of time."""
    run: list[Interval] = []
    for item in sorted(intervals, key=lambda one: one.start_ns):
        phase = item.stage.partition(".")[0]
        if run and (run[-1].end_ns != item.start_ns or _phase(run[0]) != phase):
            yield _phase(run[0]), run
            run = []
        run.append(item)
    if run:
        yield _phase(run[0]), run


def _phase(interval: Interval) -> str:
    return interval.stage.partition(".")[0]


def _operation(derived: Derived) -> str:
    kind = derived.kind.partition("/")[0]
    return _OPERATIONS.get(kind, kind or "chat")


def _of_request(derived: Derived, operation: str) -> Json:
    evidence, request, facts = derived.evidence, derived.evidence.request, derived.facts
    ttft_s = None if derived.ttft_ns is None else derived.ttft_ns / 1e9
    found = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDERS.get(evidence.program, evidence.program),
        "gen_ai.request.model": request.model or derived.model,
        "gen_ai.response.model": request.reply_model,
        "gen_ai.request.stream": request.stream,
        "gen_ai.usage.input_tokens": derived.prompt_tokens,
        "gen_ai.usage.output_tokens": derived.tokens,
        "gen_ai.usage.cache_read.input_tokens": derived.cached_tokens,
        "gen_ai.response.time_to_first_chunk": ttft_s if request.stream else None,
        "server.address": request.conn.server_ip,
        "server.port": request.conn.server_port,
        "url.path": request.endpoint,
        "http.request.method": "POST",
        "http.response.status_code": request.status,
        "error.type": None if derived.outcome in ("ok", "open") else derived.outcome,
        "ttft.request_id": evidence.id,
        "ttft.ttft_ms": None if ttft_s is None else ttft_s * 1e3,
        "ttft.complete": derived.complete,
        "ttft.incomplete_because": derived.incomplete_because,
        "ttft.died_in": derived.died_in,
        "ttft.switched_from": facts.switched_from,
        "ttft.weights": [path.rpartition("/")[2] for path in facts.weights] or None,
        "ttft.weights_bytes": facts.weights_bytes,
        "ttft.weights_bytes_from_disk": facts.weights_bytes_from_disk,
    }
    spent = {f"ttft.{phase}_ms": ns / 1e6 for phase, ns in derived.phases.phases_ns.items()}
    return found | spent | _of_verdict(derived)


def _of_verdict(derived: Derived) -> Json:
    spike = derived.spike
    return {
        "ttft.spike": spike.is_spike,
        "ttft.typical_ms": None if spike.typical_ns is None else spike.typical_ns / 1e6,
        "ttft.cause": spike.cause,
        "ttft.why": list(spike.why) or None,
        "ttft.because": spike.because,
        "ttft.advice": spike.advice,
        "ttft.switch_is_cause": spike.switch_is_cause,
        "ttft.confidence": spike.confidence,
    }


def _of_phase(phase: str, pieces: list[Interval]) -> Json:
    spent: dict[str, float] = {}
    for item in pieces:
        name = f"ttft.{item.stage}_ms"
        spent[name] = spent.get(name, 0.0) + (item.end_ns - item.start_ns) / 1e6
    estimate = any(item.estimate for item in pieces)
    return {"ttft.phase": phase, "ttft.estimate": True if estimate else None, **spent}


def _status(derived: Derived) -> Json:
    if derived.outcome in ("server_error", "server_died"):
        return {"code": _ERROR, "message": derived.outcome}
    return {}
