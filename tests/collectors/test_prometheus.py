"""Metrics as a real Prometheus takes them, and the dashboard's questions to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from msgspec.structs import replace

from tests.collectors.prometheus import Prometheus
from tests.unit.answer_cases import ARRIVAL, MS, spike, warm
from tests.unit.fake_daemon import STATUS
from tests.unit.test_metrics import DASHBOARD, switched
from tests.workloads.llama import free_port
from tests.workloads.stub_clients import call, stream
from tests.workloads.stub_server import StubServer
from tests.workloads.ttftd import UNIT_NICE, Ttftd
from tests.workloads.waiting import wait_for
from tracer.answers_state import Export
from tracer.api_metrics import METRICS, Metrics
from tracer.api_port import MetricsPort

pytestmark = pytest.mark.collectors
SCRAPED_S = 30.0
#: What Grafana puts in, as far as a query here has it.
PUT_IN = {"$server": ".*", "$model": ".*", "$__range": "1m", "$__rate_interval": "1m"}


@pytest.mark.kernel
def test_a_daemon_is_scraped(tmp_path: Path) -> None:
    """What was asked is what it counts."""
    port, page = free_port(), free_port()
    config = f'[[server]]\nname = "seen"\nport = {port}\n[metrics]\nlisten = "127.0.0.1:{page}"\n'
    with (
        StubServer(chunks=2, port=port),
        Ttftd(tmp_path / "ttftd", config, UNIT_NICE) as daemon,
        Prometheus(tmp_path, page) as prometheus,
    ):
        daemon.wait_server(port)

        async def ask() -> None:
            for _ in range(7):
                await stream("127.0.0.1", port, call('odd "name"\n\\', 2))

        asyncio.run(ask())
        counted = 'sum(ttft_requests_total{server="seen"})'
        wait_for(lambda: prometheus.value(counted) == 7, SCRAPED_S, "seven requests", 0.2)
        ((labels, _),) = prometheus.query('ttft_requests_total{server="seen"}')
        assert labels["model"] == 'odd "name"\\x0a\\'
        assert prometheus.value("up") == 1
        assert prometheus.value("scrape_samples_scraped") == prometheus.value(
            "scrape_samples_post_metric_relabeling"
        )
        (target,) = prometheus.get("targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        inside = 'sum(ttft_ttft_seconds_bucket{server="seen",le="+Inf"})'
        assert prometheus.value(inside) == 7


@contextmanager
def serving(metrics: Metrics) -> Iterator[int]:
    """The page on a port, as the daemon has it."""
    status = replace(
        STATUS, exports=(Export(name="otlp", to="http://127.0.0.1:4318", sent=3, dropped=1),)
    )
    port = free_port()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    page = MetricsPort(("127.0.0.1", port), lambda: metrics.text(status))
    asyncio.run_coroutine_threadsafe(page.start(), loop).result(10)
    assert page.trouble is None
    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(page.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def questions() -> list[str]:
    """Every query of the dashboard, with what Grafana puts in."""
    board = orjson.loads(DASHBOARD.read_bytes())
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    for name, value in PUT_IN.items():
        found = [query.replace(name, value) for query in found]
    return found


def test_the_dashboards_questions_are_answered(tmp_path: Path) -> None:
    """Each with data, and every metric there is arrives."""
    metrics = Metrics()
    for item in (switched(), warm(1), spike(2, ARRIVAL + 3000 * MS)):
        metrics.observe(item)
    asked = questions()
    assert len(asked) > 15
    assert not any("$" in query for query in asked)
    with serving(metrics) as port, Prometheus(tmp_path, port) as prometheus:
        wait_for(
            lambda: prometheus.value("count_over_time(up[1m])") == 1, SCRAPED_S, "a scrape", 0.2
        )
        for number in range(3, 30):
            metrics.observe(spike(number, ARRIVAL + number * 3000 * MS))
        wait_for(
            lambda: (prometheus.value("count_over_time(up[1m])") or 0) > 3, SCRAPED_S,
            "more scrapes", 0.2,
        )  # fmt: skip
        unanswered = [query for query in asked if not prometheus.query(query)]
        assert unanswered == []
        lost = [q for q in asked if q.startswith("sum(increase(ttft_lost_seconds_total")]
        assert all((prometheus.value(query) or 0) > 0 for query in lost)
        names = set(prometheus.get("label/__name__/values"))
        told = {name for name in names if name.startswith("ttft_")}
        whole = {n for n, m in METRICS.items() if m.kind != "histogram"}
        assert whole - told == set()
        assert {"ttft_ttft_seconds_bucket", "ttft_ttft_seconds_sum"} <= told
        for label in ("server", "model"):
            match = {"match[]": "ttft_requests_total"}
            assert prometheus.get(f"label/{label}/values", **match) != []
