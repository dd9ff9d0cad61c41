"""Counters in the Prometheus text format, without its library: 2 MB saved for a page of text."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from tracer import reasons
from tracer.answers_state import Status
from tracer.derived import PHASES, Derived
from tracer.render_units import clean

BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
MAX_SERIES = 200
"""Label values come from clients (model names): beyond this many, new ones are `other`."""

Key = tuple[str, ...]


class Metric(NamedTuple):
    """A metric as it is exported."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: Key = ()


METRICS = {
    metric.name: metric
    for metric in (
        Metric("ttft_requests_total", "counter", "Requests that are over.",
               ("server", "model", "outcome")),
        Metric("ttft_ttft_seconds", "histogram", "Time to first token.",
               ("server", "model", "kind")),
        Metric("ttft_phase_seconds_total", "counter", "Time from arrival to first token, by phase.",
               ("server", "model", "phase")),
        Metric("ttft_spikes_total", "counter", "Requests whose first token was slow, by cause.",
               ("server", "model", "cause")),
        Metric("ttft_spike_phase_seconds_total", "counter",
               "Time of requests whose first token was slow, by cause and phase.",
               ("server", "model", "cause", "phase")),
        Metric("ttft_lost_seconds_total", "counter",
               "What slow first tokens waited beyond what is typical, by cause.",
               ("server", "model", "cause")),
        Metric("ttft_weight_bytes_total", "counter", "Bytes of weights brought in, by source.",
               ("server", "model", "source")),
        Metric("ttft_evictions_total", "counter", "Models stopped to make room for another.",
               ("server", "model", "by")),
        Metric("ttft_open_requests", "gauge", "Requests that are not over."),
        Metric("ttft_servers", "gauge", "Servers watched."),
        Metric("ttft_server_unreadable", "gauge", "1 for a server whose requests cannot be read.",
               ("server", "reason")),
        Metric("ttft_probe_group_attached", "gauge", "Whether a probe group is attached.",
               ("group",)),
        Metric("ttft_records_lost_total", "counter", "Records lost on the way from the kernel.",
               ("kind",)),
        Metric("ttft_history_bytes", "gauge", "Size of the history."),
        Metric("ttft_history_pending", "gauge", "Requests that wait for the disk."),
        Metric("ttft_history_dropped_total", "counter", "Requests that the disk never took."),
        Metric("ttft_export_sent_total", "counter", "Requests sent elsewhere.", ("to",)),
        Metric("ttft_export_dropped_total", "counter", "Requests not sent: nobody took them.",
               ("to",)),
        Metric("ttft_own_cpu_seconds_total", "counter", "CPU time of ttftd itself."),
        Metric("ttft_own_memory_bytes", "gauge", "Memory of ttftd itself (PSS)."),
        Metric("ttft_bpf_seconds_total", "counter", "Run time of the BPF programs."),
        Metric("ttft_bpf_runs_total", "counter", "Runs of the BPF programs."),
        Metric("ttft_start_time_seconds", "gauge", "When ttftd began, since the epoch."),
        Metric("ttft_info", "gauge", "The version of ttftd and of the kernel; always 1.",
               ("version", "kernel")),
    )
}  # fmt: skip
"""Every metric there is; the dashboard is checked against it."""


class Metrics:
    """Counts since the daemon began. Feed it each request once, when it is final.

    Any thread may call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[tuple[str, str]] = set()
        self._counts: dict[str, dict[Key, float]] = {
            name: {} for name, metric in METRICS.items() if metric.kind == "counter"
        }
        self._ttft: dict[Key, list[int]] = {}
        self._ttft_ns: dict[Key, int] = {}

    def observe(self, derived: Derived) -> None:
        """Count one request that is over."""
        with self._lock:
            self._count(derived)

    def _count(self, derived: Derived) -> None:
        key = self._series(derived.evidence.server, derived.model or "unknown")
        self._add("ttft_requests_total", (*key, derived.outcome), 1)
        for phase in PHASES:
            spent = derived.phases.phases_ns.get(phase, 0) / 1e9
            self._add("ttft_phase_seconds_total", (*key, phase), spent)
        if derived.spike.is_spike:
            self._spike(derived, key)
        if derived.ttft_ns is not None:
            series = (*key, derived.kind)
            counts = self._ttft.setdefault(series, [0] * (len(BUCKETS_S) + 1))
            counts[bisect_left(BUCKETS_S, derived.ttft_ns / 1e9)] += 1
            self._ttft_ns[series] = self._ttft_ns.get(series, 0) + derived.ttft_ns
        # What one start brought in counts once, not for each request that waited for it.
        if derived.timeline.triggered_by in (None, derived.evidence.id):
            self._weights(derived, key)
            old = reasons.evicted_other(derived.evidence)
            if old is not None:
                self._add("ttft_evictions_total", (*self._series(key[0], old), key[1]), 1)

    def _spike(self, derived: Derived, key: tuple[str, str]) -> None:
        cause = derived.spike.cause or "unknown"
        self._add("ttft_spikes_total", (*key, cause), 1)
        self._add("ttft_lost_seconds_total", (*key, cause), _lost_s(derived))
        for phase, ns in derived.phases.phases_ns.items():
            if ns:
                self._add("ttft_spike_phase_seconds_total", (*key, cause, phase), ns / 1e9)

    def _weights(self, derived: Derived, key: tuple[str, str]) -> None:
        disk = derived.facts.weights_bytes_from_disk
        whole = derived.facts.weights_bytes
        far = derived.phases.stages_ns.get("load.network", 0) > 0
        if disk:
            self._add("ttft_weight_bytes_total", (*key, "network" if far else "disk"), disk)
        if disk is not None and whole is not None and whole > disk:
            self._add("ttft_weight_bytes_total", (*key, "cache"), whole - disk)

    def _series(self, server: str, model: str) -> tuple[str, str]:
        server, model = clean(server), clean(model)  # the page is read in terminals too
        if (server, model) not in self._known and len(self._known) >= MAX_SERIES:
            return "other", "other"
        self._known.add((server, model))
        return server, model

    def _add(self, name: str, key: Key, count: float) -> None:
        counts = self._counts[name]
        counts[key] = counts.get(key, 0) + count

    def text(self, status: Status) -> bytes:
        """The page of `/metrics`."""
        now = _of_status(status)
        with self._lock:
            lines = [
                line
                for name, metric in METRICS.items()
                for line in self._lines(metric, now.get(name) or self._counts.get(name, {}))
            ]
        return "".join(line + "\n" for line in lines).encode(errors="replace")

    def _lines(self, metric: Metric, values: Mapping[Key, float]) -> Iterator[str]:
        yield f"# HELP {metric.name} {metric.text}"
        yield f"# TYPE {metric.name} {metric.kind}"
        if metric.kind == "histogram":
            yield from self._histogram(metric)
        for key, value in values.items():
            yield f"{metric.name}{_labels(zip(metric.labels, key, strict=True))} {value!r}"

    def _histogram(self, metric: Metric) -> Iterator[str]:
        for key, counts in self._ttft.items():
            labels = list(zip(metric.labels, key, strict=True))
            total = 0
            for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), counts, strict=True):
                total += count
                yield f"{metric.name}_bucket{_labels([*labels, ('le', bound)])} {total}"
            yield f"{metric.name}_sum{_labels(labels)} {self._ttft_ns[key] / 1e9!r}"
            yield f"{metric.name}_count{_labels(labels)} {total}"


def _lost_s(derived: Derived) -> float:
    decoding = derived.phases.stages_ns.get("prefill.decode", 0)
    usual = derived.spike.typical_ns
    if usual is None:
        usual = derived.phases.phases_ns.get("prefill", 0) - decoding
    return max(0, sum(derived.phases.phases_ns.values()) - decoding - usual) / 1e9


def _of_status(status: Status) -> dict[str, dict[Key, float]]:
    """What is true right now, or counted elsewhere; unknown values are left out."""
    cost, history = status.cost, status.history
    single = {
        "ttft_open_requests": status.open_requests,
        "ttft_servers": len(status.servers),
        "ttft_history_bytes": history.size_bytes,
        "ttft_history_pending": history.pending,
        "ttft_history_dropped_total": history.dropped,
        "ttft_own_cpu_seconds_total": _seconds(cost.cpu_ns),
        "ttft_own_memory_bytes": cost.pss_bytes,
        "ttft_bpf_seconds_total": _seconds(cost.bpf_ns),
        "ttft_bpf_runs_total": cost.bpf_runs,
        "ttft_start_time_seconds": status.began_wall_ns / 1e9,
    }
    found: dict[str, dict[Key, float]] = {
        name: {(): value} for name, value in single.items() if value is not None
    }
    found["ttft_info"] = {(status.version, status.kernel): 1}
    found["ttft_records_lost_total"] = {(kind,): count for kind, count in status.lost.items()}
    found["ttft_probe_group_attached"] = {(p.group,): int(p.attached) for p in status.probes}
    found["ttft_server_unreadable"] = {
        (clean(server.name), server.unreadable): 1 for server in status.servers if server.unreadable
    }
    sending = [one for one in status.exports if one.sent is not None]
    found["ttft_export_sent_total"] = {(one.name,): one.sent or 0 for one in sending}
    found["ttft_export_dropped_total"] = {(one.name,): one.dropped or 0 for one in sending}
    return found


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escape(value)}"' for name, value in pairs)
    return f"{{{text}}}" if text else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
