"""Requests as OpenTelemetry traces: what is sent, and that a collector can do no harm."""

from __future__ import annotations

import gzip
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from tests.unit.answer_cases import ARRIVAL, MS, WALL_OFFSET, spike, warm
from tests.unit.cli_runs import ROOT
from tests.unit.trace_cases import arbitrary
from tests.workloads.waiting import wait_for
from tracer import otlp
from tracer.config import Config, OtlpSection
from tracer.derived import Derived
from tracer.export.otlp import body, encode, runs
from tracer.exports import Exports
from tracer.otlp import Sender, Target, target


def spans(item: Derived, **resource: str) -> list[dict[str, Any]]:
    found = orjson.loads(body([encode(item, resource)]))
    (entry,) = found["resourceSpans"]
    (scope,) = entry["scopeSpans"]
    named: list[dict[str, Any]] = scope["spans"]
    return named


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    """Attributes as values; 64-bit integers are text in OTLP's JSON."""

    def value(typed: dict[str, Any]) -> Any:
        ((kind, held),) = typed.items()
        if kind == "arrayValue":
            return [value(item) for item in held["values"]]
        return int(held) if kind == "intValue" else held

    return {item["key"]: value(item["value"]) for item in attributes}


def test_a_request_is_a_span_with_one_for_each_phase() -> None:
    root, *inner = spans(spike())
    wall = ARRIVAL + WALL_OFFSET
    assert root["name"] == "chat beta"
    assert (root["kind"], root["status"]) == (2, {})
    assert int(root["startTimeUnixNano"]) == wall
    assert int(root["endTimeUnixNano"]) == wall + 2012 * MS
    assert [span["name"] for span in inner] == [
        "ttft.queue", "ttft.evict", "ttft.spawn", "ttft.load", "ttft.init", "ttft.prefill",
        "ttft.generation",
    ]  # fmt: skip
    assert {span["parentSpanId"] for span in inner} == {root["spanId"]}
    assert {span["traceId"] for span in inner} == {root["traceId"]}
    load = plain(inner[3]["attributes"])
    assert load == {"ttft.phase": "load", "ttft.load.meta_ms": 210.0, "ttft.load.disk_ms": 900.0}
    assert int(inner[3]["startTimeUnixNano"]) == wall + 325 * MS


def test_what_is_told_of_a_request() -> None:
    found = plain(spans(spike())[0]["attributes"])
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "llama.cpp",
        "gen_ai.request.model": "beta",
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 26,
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.time_to_first_chunk": 1.912400001,
        "server.port": 8080,
        "http.response.status_code": 200,
        "ttft.request_id": 17,
        "ttft.spike": True,
        "ttft.cause": "load.disk",
        "ttft.load_ms": 1110.0,
        "ttft.weights": ["beta.gguf"],
        "ttft.switched_from": "alpha",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert "ttft.incomplete_because" not in found
    gone = plain(spans(replace(warm(1), outcome="client_gone", ttft_ns=None))[0]["attributes"])
    assert gone["error.type"] == "client_gone"
    assert "gen_ai.response.time_to_first_chunk" not in gone
    assert spans(replace(warm(1), outcome="server_died"))[0]["status"]["code"] == 2


def test_the_origin_can_be_named() -> None:
    entry = orjson.loads(encode(spike(), {"host.name": "nas"}))
    assert plain(entry["resource"]["attributes"]) == {
        "service.name": "llama-server:8080", "host.name": "nas"
    }  # fmt: skip
    named = orjson.loads(encode(spike(), {"service.name": "x"}))
    assert plain(named["resource"]["attributes"]) == {"service.name": "x"}


@settings(max_examples=60, deadline=None)
@given(arbitrary)
def test_any_request_makes_a_sound_trace(item: Derived) -> None:
    found = spans(item)
    root = found[0]
    ids = [span["spanId"] for span in found]
    assert len(set(ids)) == len(ids)
    assert [span["parentSpanId"] for span in found[1:]] == [root["spanId"]] * (len(found) - 1)
    for span in found:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
        assert re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
    assert spans(item) == found
    pieces = [piece for _, run in runs(item.phases.intervals) for piece in run]
    assert sorted(pieces, key=lambda one: one.start_ns) == sorted(
        item.phases.intervals, key=lambda one: one.start_ns
    )


# --- sending ----------------------------------------------------------------------------


class Collector(ThreadingHTTPServer):
    """Keeps what it was sent; answers with `status`."""

    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []

    @property
    def requests(self) -> list[int]:
        """Ids of the requests that came, in order."""
        return [
            plain(entry["scopeSpans"][0]["spans"][0]["attributes"])["ttft.request_id"]
            for sent in self.bodies
            for entry in sent["resourceSpans"]
        ]


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        if self.server.status == 200:
            self.server.heads.append({"path": self.path, **dict(self.headers.items())})
            self.server.bodies.append(orjson.loads(data))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def collecting(tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    collector = Collector()
    if tls is not None:
        collector.socket = tls.wrap_socket(collector.socket, server_side=True)
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()


def to(port: int, environ: dict[str, str] | None = None, scheme: str = "http") -> Target:
    found = target(OtlpSection(endpoint=f"{scheme}://127.0.0.1:{port}"), environ or {})
    assert found is not None
    return found


def test_requests_arrive() -> None:
    packed = {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_HEADERS": "x-k=v"}
    with collecting() as collector:
        sender = Sender(to(collector.server_port, packed))
        sender.add([spike(1), warm(2)])
        sender.add([warm(3)])
        wait_for(lambda: sender.state().sent == 3, 20, "three requests to be sent")
        sender.close()
    assert sorted(collector.requests) == [1, 2, 3]
    head = collector.heads[0]
    assert (head["path"], head["Content-Type"], head["x-k"]) == (
        "/v1/traces", "application/json", "v",
    )  # fmt: skip
    assert (sender.state().dropped, sender.state().trouble) == (0, None)


def test_only_what_is_over_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        config = Config(otlp=OtlpSection(endpoint=f"http://127.0.0.1:{collector.server_port}"))
        ours = Exports(config, lambda: b"")
        request = replace(spike(5).evidence.request, end_ns=None)
        still = replace(spike(5), evidence=replace(spike(5).evidence, request=request))
        ours.add([still, spike(6)])
        wait_for(lambda: ours.states()[0].sent == 1, 20, "a request to be sent")
    assert collector.requests == [6]


def accounted(sender: Sender) -> int:
    state = sender.state()
    return (state.sent or 0) + (state.dropped or 0)


def test_a_collector_that_is_down_costs_a_bounded_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_WAITS_S", (0.02,))
    size = len(encode(warm(1), {"host.name": "x" * 9}))
    monkeypatch.setattr(otlp, "QUEUE_BYTES", 20 * size)
    with collecting() as collector:
        sender = Sender(to(collector.server_port))
        collector.status = 503
        began = time.monotonic()
        for number in range(100):
            sender.add([warm(number)])
        assert time.monotonic() - began < 20
        wait_for(lambda: sender.state().trouble is not None, 20, "the trouble to be told")
        assert sender.state().trouble == "the collector answered 503"
        collector.status = 200
        wait_for(lambda: accounted(sender) == 100, 20, "all to be sent or dropped")
        state = sender.state()
        sender.close()
    assert state.trouble is None
    assert 99 in collector.requests
    assert len(set(collector.requests)) == len(collector.requests) == state.sent


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender(to(1))
    sender.add([warm(1)])
    wait_for(lambda: sender.state().trouble is not None, 20, "the trouble to be told")
    began = time.monotonic()
    sender.close()
    assert time.monotonic() - began < 20
    assert "refused" in (sender.state().trouble or "")


def test_what_is_refused_for_good_is_dropped_and_said() -> None:
    with collecting() as collector:
        collector.status = 401
        sender = Sender(to(collector.server_port))
        sender.add([warm(1)])
        wait_for(lambda: sender.state().dropped == 1, 20, "it to be dropped")
        assert "answered 401" in (sender.state().trouble or "")
        sender.close()


def test_the_state_tells_no_secret() -> None:
    found = target(
        OtlpSection(endpoint="https://user:secret@host:4318", headers={"k": "secret"}), {}
    )
    assert found is not None
    sender = Sender(found)
    sender.close()
    assert "secret" not in repr(sender.state())
    assert sender.state().to == "https://host:4318/v1/traces"


TLS = """
import ssl, sys
from tracer.host.tls import without_tls
without_tls()
import asyncio, http.client
from tests.unit.answer_cases import warm
from tracer.config import OtlpSection
from tracer.export.otlp import body, encode
from tracer.otlp import post, target
post(target(OtlpSection(endpoint=sys.argv[1]), {}), body([encode(warm(9), {})]))
""".replace("import ssl, sys", "import sys")


def test_tls_works_in_a_daemon_that_left_it_out(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "1", "-subj", "/CN=x",
            "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        capture_output=True,
        check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with collecting(context) as collector:
        url = f"https://127.0.0.1:{collector.server_port}"
        ran = [
            subprocess.run(
                [sys.executable, "-c", TLS, url],
                capture_output=True,
                text=True,
                cwd=ROOT,
                env={"PATH": "/usr/bin", **trust},
                check=False,
            )
            for trust in ({"SSL_CERT_FILE": str(cert)}, {})
        ]
    assert (ran[0].returncode, ran[0].stderr) == (0, "")
    assert collector.requests == [9]
    assert "CERTIFICATE_VERIFY_FAILED" in ran[1].stderr
