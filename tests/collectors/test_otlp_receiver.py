"""Spans as the official definitions of OTLP take them, in a receiver that is strict, and as a real
OpenTelemetry Collector does.

Its bodies are parsed into OpenTelemetry's own messages: an unknown field, a wrong type or a wrong
enumeration is an error. OTLP's JSON differs from that of protocol buffers in one thing, the ids in
hexadecimal, which are checked and turned first.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson, Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.collectors.otelcol import Otelcol
from tests.unit.answer_cases import spike, warm
from tests.unit.test_otlp import collecting
from tests.workloads.llama import free_port
from tests.workloads.stub_clients import call, stream
from tests.workloads.stub_server import StubServer
from tests.workloads.ttftd import UNIT_NICE, Ttftd
from tests.workloads.waiting import wait_for
from tracer.export import otlp

pytestmark = pytest.mark.collectors
_IDS = {"traceId": 32, "spanId": 16, "parentSpanId": 16}


def received(body: dict[str, Any]) -> ExportTraceServiceRequest:
    """The message; ValueError or ParseError for what is none."""
    message = ExportTraceServiceRequest()
    Parse(json.dumps(_turned(body)), message)
    return message


def _turned(value: Any) -> Any:
    if isinstance(value, list):
        return [_turned(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _turned(item) for key, item in value.items()}
    for key, digits in _IDS.items():
        if key in found:
            if not re.fullmatch(rf"[0-9a-f]{{{digits}}}", found[key]):
                raise ValueError(f"{key}: {found[key]!r}")
            found[key] = base64.b64encode(bytes.fromhex(found[key])).decode()
    return found


def spans(messages: Iterable[ExportTraceServiceRequest]) -> list[Span]:
    return [
        span
        for message in messages
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def assert_sound(found: list[Span]) -> None:
    """Ids are there and unique, times go forward, parents are in the same trace."""
    known = {(span.trace_id, span.span_id) for span in found}
    assert len(known) == len(found)
    for span in found:
        assert len(span.trace_id) == 16 and any(span.trace_id)
        assert len(span.span_id) == 8 and any(span.span_id)
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.name
        if span.parent_span_id:
            assert (span.trace_id, span.parent_span_id) in known
            assert span.kind == Span.SPAN_KIND_INTERNAL
        else:
            assert span.kind == Span.SPAN_KIND_SERVER
        keys = [pair.key for pair in span.attributes]
        assert len(keys) == len(set(keys))
        assert all(pair.value.WhichOneof("value") for pair in span.attributes)


def test_what_is_encoded_is_otlp() -> None:
    items = [spike(1), warm(2)]
    entries = [otlp.encode(item, {"deployment.environment.name": "home"}) for item in items]
    message = received(json.loads(otlp.body(entries)))
    found = spans([message])
    assert_sound(found)
    roots = [span for span in found if not span.parent_span_id]
    assert [span.name for span in roots] == ["chat beta", "chat beta"]
    assert {len(span.trace_id) for span in found} == {16}
    names = {pair.key for pair in message.resource_spans[0].resource.attributes}
    assert {"service.name", "deployment.environment.name"} <= names


@pytest.mark.parametrize(
    "wrong",
    [
        '{"resourceSpan": []}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "AbCd"}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"kind": "SERVER"}]}]}]}',
    ],
)
def test_the_receiver_is_strict(wrong: str) -> None:
    with pytest.raises(Exception, match=r"resourceSpan|traceId|kind"):
        received(json.loads(wrong))


def test_a_collector_passes_on_all_of_it(tmp_path: Path) -> None:
    """Sent to the collector, and from there to the receiver."""
    entries = [otlp.encode(item, {}) for item in (spike(1), warm(2))]
    with collecting() as last, Otelcol(tmp_path, last.server_port) as collector:
        request = urllib.request.Request(
            f"http://127.0.0.1:{collector.port}/v1/traces",
            otlp.body(entries),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert (answer.status, json.load(answer)) == (200, {"partialSuccess": {}})
        wait_for(lambda: bool(last.bodies), 30, "the collector to pass it on", 0.1)
        bodies = list(last.bodies)
    assert {head["path"] for head in last.heads} == {"/v1/traces"}
    sent = received(json.loads(otlp.body(entries)))
    assert by_id(spans(map(received, bodies))) == by_id(spans([sent]))


def by_id(found: list[Span]) -> dict[bytes, str]:
    """All that is in each span, as text; the collector adds a status that says nothing."""
    for span in found:
        if span.status == Status():
            span.ClearField("status")
    return {span.span_id: MessageToJson(span, sort_keys=True) for span in found}


@pytest.mark.kernel
@pytest.mark.parametrize("by", ["itself", "collector"])
def test_a_daemon_sends_them(tmp_path: Path, by: str) -> None:
    port = free_port()
    with ExitStack() as stack:
        last = stack.enter_context(collecting())
        stack.enter_context(StubServer(chunks=2, port=port))
        to = last.server_port
        if by == "collector":
            to = stack.enter_context(Otelcol(tmp_path, to)).port
        config = (
            f'[[server]]\nname = "seen"\nport = {port}\n'
            f'[otlp]\nendpoint = "http://127.0.0.1:{to}"\n'
        )
        daemon = stack.enter_context(Ttftd(tmp_path / "ttftd", config, UNIT_NICE))
        daemon.wait_server(port)

        async def ask() -> None:
            for model in ("one", "two", "\u4e2d\n\x1b[2J"):
                await stream("127.0.0.1", port, call(model, 2))

        asyncio.run(ask())

        def seen() -> list[str]:
            found = spans(map(received, last.bodies))
            return [span.name for span in found if not span.parent_span_id]

        wanted = {"chat one", "chat two", "chat \u4e2d\n\x1b[2J"}
        wait_for(lambda: wanted <= set(seen()), 30, "three requests to be received", 0.1)
        assert_sound(spans(map(received, last.bodies)))
        (export,) = daemon.get("/v1/status")["exports"]
        assert (export["dropped"], export["trouble"]) == (0, None)
