"""What Prometheus reads: the right figures, in its format, bounded; and where it may read them."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from tests.unit.answer_cases import OLD, spike, warm
from tests.unit.fake_daemon import STATUS
from tracer import answers_state, api_port
from tracer.answers_state import Export
from tracer.api_metrics import MAX_SERIES, METRICS, Metrics
from tracer.api_port import MetricsPort
from tracer.config import Config, MetricsSection
from tracer.derived import Derived
from tracer.exports import Exports
from tracer.records import Command
from tracer.render_state import status as status_lines

DASHBOARD = Path(__file__).parents[2] / "grafana" / "ttft.json"
KNOWN = '{server="llama-server:8080",model="beta"'


def page(items: list[Derived], status: Any = STATUS) -> str:
    metrics = Metrics()
    for item in items:
        metrics.observe(item)
    return metrics.text(status).decode()


def test_figures_of_requests() -> None:
    text = page([switched(), warm(1), warm(2, model='q"uo\\te\n')])
    chat = f'{KNOWN},kind="chat/stream"'
    for line in (
        f'ttft_requests_total{KNOWN},outcome="ok"}} 2',
        f'ttft_ttft_seconds_bucket{chat},le="0.05"}} 1',
        f'ttft_ttft_seconds_bucket{chat},le="+Inf"}} 2',
        f"ttft_ttft_seconds_sum{chat}}} 1.943400001",
        f"ttft_ttft_seconds_count{chat}}} 2",
        f'ttft_spikes_total{KNOWN},cause="load.disk"}} 1',
        f'ttft_lost_seconds_total{KNOWN},cause="load.disk"}} 1.881400001',
        f'ttft_spike_phase_seconds_total{KNOWN},cause="load.disk",phase="load"}} 1.11',
        f'ttft_weight_bytes_total{KNOWN},source="disk"}} 253116416',
        'ttft_evictions_total{server="llama-server:8080",model="alpha",by="beta"} 1',
    ):
        assert f"\n{line}\n" in text
    assert 'model="q\\"uo\\\\te\\\\x0a"' in text


def switched() -> Derived:
    """The runner that went held alpha."""
    item = spike()
    lives = tuple(
        replace(life, command=Command(program="llama-server", role="runner", model="alpha"))
        if life.tgid == OLD
        else life
        for life in item.evidence.lives
    )
    return replace(item, evidence=replace(item.evidence, lives=lives))


def test_weights_by_source_and_once_for_each_start() -> None:
    item = spike()
    cached = replace(item.facts, weights_bytes=1000, weights_bytes_from_disk=400)
    text = page([replace(item, facts=cached)])
    assert f'ttft_weight_bytes_total{KNOWN},source="disk"}} 400\n' in text
    assert f'ttft_weight_bytes_total{KNOWN},source="cache"}} 600\n' in text
    far = replace(item.phases, stages_ns={**item.phases.stages_ns, "load.network": 5})
    assert f'{KNOWN},source="network"}} 400\n' in page([replace(item, facts=cached, phases=far)])
    waited = replace(item, timeline=replace(item.timeline, triggered_by=3))
    unknown = replace(item, facts=replace(cached, weights_bytes_from_disk=None))
    assert "ttft_weight_bytes_total{" not in page([waited, unknown])


def test_figures_of_the_daemon() -> None:
    exports = (Export(name="otlp", to="http://x", sent=7, dropped=2), Export(name="m", to="y"))
    text = page([], replace(STATUS, exports=exports))
    for line in (
        'ttft_records_lost_total{kind="packet"} 3',
        "ttft_open_requests 1",
        "ttft_servers 2",
        'ttft_server_unreadable{server="vllm:8000",reason="tls"} 1',
        'ttft_probe_group_attached{group="lifecycle"} 1',
        'ttft_probe_group_attached{group="faults"} 0',
        "ttft_own_memory_bytes 38000000",
        "ttft_bpf_seconds_total 0.0012",
        'ttft_export_sent_total{to="otlp"} 7',
        'ttft_export_dropped_total{to="otlp"} 2',
        'ttft_info{version="0.1.0",kernel="6.18.0"} 1',
    ):
        assert f"\n{line}\n" in text
    unknown = page([], replace(STATUS, cost=answers_state.Cost()))
    assert "\nttft_own_memory_bytes" not in unknown


def test_series_are_bounded() -> None:
    text = page([warm(number, model=f"m{number}") for number in range(MAX_SERIES + 50)])
    assert text.count("ttft_requests_total{") == MAX_SERIES + 1
    assert 'ttft_requests_total{server="other",model="other",outcome="ok"} 50\n' in text


SAMPLE = re.compile(
    r'([a-z_]+)(\{[a-z]+="(?:[^"\\\n]|\\.)*"(?:,[a-z]+="(?:[^"\\\n]|\\.)*")*\})? \S+'
)


def test_every_line_is_a_sample_of_a_known_metric() -> None:
    hostile = 'a"b\\c\nd}\u202e{e="'
    hostile += "\x1b]0;x\x07\x9b"
    for line in page([spike(), warm(2, model=hostile)]).splitlines():
        assert line.isprintable()
        if line.startswith("# "):
            assert line.split()[2] in METRICS
            continue
        found = SAMPLE.fullmatch(line)
        assert found is not None, line
        assert re.sub(r"_(bucket|sum|count)$", "", found[1]) in METRICS
        float(line.rpartition(" ")[2])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool is installed")
def test_promtool_finds_nothing_wrong() -> None:
    ran = subprocess.run(
        ["promtool", "check", "metrics"], input=page([spike()]), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are() -> None:
    board = orjson.loads(DASHBOARD.read_bytes())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    queries += [item["query"]["query"] for item in board["templating"]["list"] if "query" in item
                and isinstance(item["query"], dict)]  # fmt: skip
    asked: set[str] = set()
    for query in queries:
        for name in re.findall(r"\bttft_[a-z_]+", query):
            whole = name if name in METRICS else re.sub(r"_(bucket|sum|count)$", "", name)
            assert whole in METRICS, name
            asked.add(whole)
        labels = set(re.findall(r"([a-z]+)=~", query))
        labels |= {x for by in re.findall(r"by \(([a-z, ]+)\)", query) for x in by.split(", ")}
        labels |= set(re.findall(r"label_values\([^,]+, ([a-z]+)\)", query))
        having = [set(METRICS[name].labels) for name in METRICS if name in query] or [set()]
        assert labels <= set.union(*having) | {"le"}, query
    essential = ("ttft_ttft_seconds", "ttft_spikes_total", "ttft_lost_seconds_total",
                 "ttft_weight_bytes_total", "ttft_evictions_total", "ttft_own_memory_bytes",
                 "ttft_records_lost_total", "ttft_phase_seconds_total")  # fmt: skip
    assert set(essential) <= asked


# --- the port ---------------------------------------------------------------------------


def asked(head: bytes, address: str = "127.0.0.1") -> bytes:
    """What a port answers."""

    async def ask() -> bytes:
        port = MetricsPort((address, free_port()), lambda: b"ttft_servers 1\n")
        await port.start()
        assert port.trouble is None
        reader, writer = await asyncio.open_connection("127.0.0.1", port.address[1])
        writer.write(head)
        reply = await reader.read()
        writer.close()
        await port.stop()
        return reply

    return asyncio.run(ask())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(path: str, host: str = "127.0.0.1:9843", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def test_the_port_answers_metrics_and_nothing_else() -> None:
    head, _, body = asked(get("/metrics")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"text/plain; version=0.0.4" in head
    assert body == b"ttft_servers 1\n"
    assert asked(get("/metrics?x=1", "localhost")).startswith(b"HTTP/1.1 200")
    assert asked(get("/metrics", "[::1]:9843")).startswith(b"HTTP/1.1 200")
    assert asked(get("/metrics", method="HEAD")).endswith(b"\r\n\r\n")
    for other in ("/", "/v1/requests", "/v1/../metrics", "//metrics"):
        assert asked(get(other)).startswith(b"HTTP/1.1 404")
    assert asked(get("/metrics", method="POST")).startswith(b"HTTP/1.1 405")


def test_a_web_page_cannot_have_it_through_a_name_of_its_own() -> None:
    assert asked(get("/metrics", "evil.example")).startswith(b"HTTP/1.1 403")
    assert asked(get("/metrics", "evil.example"), "0.0.0.0").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "head", [b"GET /metrics HT", b"x" * 20_000, b"\x16\x03\x01\x00", b"\r\n\r\n"]
)
def test_what_is_no_request_gets_nothing_and_holds_nothing(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_port, "HEAD_S", 0.1)
    assert asked(head)[:12] in (b"", b"HTTP/1.1 404")


def exports(config: Config) -> Exports:
    return Exports(config, lambda: b"")


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        ours = exports(Config(metrics=MetricsSection(listen=where)))
        asyncio.run(ours.start())
    (state,) = ours.states()
    assert (state.name, state.to, state.sent) == ("metrics", f"http://{where}/metrics", None)
    assert "in use" in (state.trouble or "")
    assert "in use" in capsys.readouterr().err
    told = answers_state.status(replace(STATUS, exports=(state,)))
    assert f"Exports  metrics at http://{where}/metrics" in status_lines(told)


def test_without_being_asked_there_is_nothing() -> None:
    assert exports(Config()).states() == ()
