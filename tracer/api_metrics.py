"""Counters in the Prometheus text format, without its library: 2 MB saved for a page of text."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping

from tracer.derived import PHASES, Derived

BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
MAX_SERIES = 200
"""Label values come from clients (model names): beyond this many, new ones are `other`."""

Key = tuple[str, ...]
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counts since the daemon began. Feed it each request once, when it is final.

    Any thread may call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[Key, int] = {}
        self._spikes: dict[Key, int] = {}
        self._phases_ns: dict[Key, int] = {}
        self._ttft: dict[tuple[str, str], list[int]] = {}
        self._ttft_ns: dict[Key, int] = {}

    def observe(self, derived: Derived) -> None:
        """Count one request that is over."""
        with self._lock:
            self._count(derived)

    def _count(self, derived: Derived) -> None:
        server, model = self._series(derived.evidence.server, derived.model or "unknown")
        _add(self._requests, (server, model, derived.outcome), 1)
        if derived.spike.is_spike:
            _add(self._spikes, (server, model, derived.spike.cause or "unknown"), 1)
        for phase in PHASES:
            _add(self._phases_ns, (server, model, phase), derived.phases.phases_ns.get(phase, 0))
        if derived.ttft_ns is not None:
            counts = self._ttft.setdefault((server, model), [0] * (len(BUCKETS_S) + 1))
            counts[bisect_left(BUCKETS_S, derived.ttft_ns / 1e9)] += 1
            _add(self._ttft_ns, (server, model), derived.ttft_ns)

    def _series(self, server: str, model: str) -> tuple[str, str]:
        known = {key[:2] for key in self._requests}
        if (server, model) in known or len(known) < MAX_SERIES:
            return server, model
        return "other", "other"

    def text(self, lost: Mapping[str, int]) -> bytes:
        """The page of `/metrics`; `lost`: records lost, by kind."""
        with self._lock:
            lines = self._lines(lost)
        return "".join(line + "\n" for line in lines).encode()

    def _lines(self, lost: Mapping[str, int]) -> list[str]:
        return [
            *_counter(
                "ttft_requests_total",
                "Requests that are over.",
                self._requests,
                ("server", "model", "outcome"),
            ),
            *_counter(
                "ttft_spikes_total",
                "Requests whose first token was slow, by cause.",
                self._spikes,
                ("server", "model", "cause"),
            ),
            *_counter(
                "ttft_phase_seconds_total",
                "Time from arrival to first token, by phase.",
                {key: ns / 1e9 for key, ns in self._phases_ns.items()},
                ("server", "model", "phase"),
            ),
            *self._histogram(),
            *_counter(
                "ttft_records_lost_total",
                "Records lost on the way from the kernel.",
                {(kind,): count for kind, count in lost.items()},
                ("kind",),
            ),
        ]

    def _histogram(self) -> Iterable[str]:
        name = "ttft_first_token_seconds"
        yield f"# HELP {name} Time to first token."
        yield f"# TYPE {name} histogram"
        for (server, model), counts in self._ttft.items():
            labels = (("server", server), ("model", model))
            total = 0
            for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), counts, strict=True):
                total += count
                yield f"{name}_bucket{_labels((*labels, ('le', bound)))} {total}"
            yield f"{name}_sum{_labels(labels)} {self._ttft_ns[server, model] / 1e9!r}"
            yield f"{name}_count{_labels(labels)} {total}"


def _add(counts: dict[Key, int], key: Key, count: int) -> None:
    counts[key] = counts.get(key, 0) + count


def _counter(
    name: str, text: str, values: Mapping[Key, float], labels: tuple[str, ...]
) -> Iterable[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} counter"
    for key, value in values.items():
        yield f"{name}{_labels(tuple(zip(labels, key, strict=True)))} {value!r}"


def _labels(pairs: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
