"""What slow first tokens add up to: by cause, by model, by switch. From their answers as JSON.

Time lost is what a request waited beyond what is typical, decoding left out where the reply was
not streamed; without a typical time all but the work on the prompt is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from tracer import codes
from tracer.answers import SCHEMA, Json, ms, wall_time

_SWITCHES_MAX = 20

K = TypeVar("K")


class ModelCount(NamedTuple):
    """A model in a time. `typical_ns`: median of its newest warm requests of its last kind."""

    model: str
    servers: tuple[str, ...]
    requests: int
    warm: int
    typical_ns: int | None


class Counts(NamedTuple):
    """All requests of a time, and those of each model, the last used first."""

    requests: int
    models: list[ModelCount]


class _Verdict(msgspec.Struct, frozen=True):
    typical_ms: float | None = None
    cause: str | None = None
    switch_is_cause: bool | None = None


class _Evidence(msgspec.Struct, frozen=True):
    switched_from: str | None = None


class Slow(msgspec.Struct, frozen=True):
    """As much of a spike's answer as the sums need."""

    id: int
    model: str | None
    phases_ms: dict[str, float]
    stages_ms: dict[str, float]
    evidence: _Evidence
    spike: _Verdict

    @property
    def waited_ms(self) -> float:
        """From arrival to the first token, or as long as it lived without one."""
        return sum(self.phases_ms.values())

    @property
    def lost_ms(self) -> float:
        """What it waited beyond what is typical."""
        return _lost(self.phases_ms, self.stages_ms, self.spike.typical_ms)


def lost_ms(answer: Json) -> float:
    """What the request of an answer waited beyond what is typical, in ms."""
    return _lost(answer["phases_ms"], answer["stages_ms"], answer["spike"]["typical_ms"])


def _lost(phases: dict[str, float], stages: dict[str, float], typical_ms: float | None) -> float:
    decoding = stages.get("prefill.decode", 0.0)
    usual = phases.get("prefill", 0.0) - decoding if typical_ms is None else typical_ms
    return max(0.0, sum(phases.values()) - decoding - usual)


_decoder = msgspec.json.Decoder(Slow)


def slow(answers: Iterable[Iterable[bytes]]) -> Iterator[Slow]:
    """Spikes from batches of answers; without those that are not as answers are."""
    for batch in answers:
        for answer in batch:
            with suppress(msgspec.DecodeError):  # of another version, or damaged
                yield _decoder.decode(answer)


@dataclass(slots=True)
class Sum:
    """Spikes of one cause, model or switch. `worst`: the one that waited longest."""

    spikes: int = 0
    lost_ms: float = 0.0
    worst: Slow | None = None
    models: dict[str, None] = field(default_factory=dict)

    def add(self, one: Slow) -> None:
        self.spikes += 1
        self.lost_ms += one.lost_ms
        if one.model is not None:
            self.models[one.model] = None
        if self.worst is None or one.waited_ms > self.worst.waited_ms:
            self.worst = one

    def json(self) -> Json:
        """The figures all sums have."""
        worst = self.worst
        return {
            "spikes": self.spikes,
            "lost_ms": round(self.lost_ms, 6),
            "worst_ms": None if worst is None else round(worst.waited_ms, 6),
            "worst_id": None if worst is None else worst.id,
        }


@dataclass(slots=True)
class Sums:
    """All spikes of a time."""

    whole: Sum = field(default_factory=Sum)
    causes: dict[str, Sum] = field(default_factory=dict)
    models: dict[str, Sum] = field(default_factory=dict)
    switches: dict[tuple[str, str], Sum] = field(default_factory=dict)

    def add(self, one: Slow) -> None:
        """Count one spike."""
        self.whole.add(one)
        self.causes.setdefault(one.spike.cause or "unknown", Sum()).add(one)
        if one.model is None:
            return
        self.models.setdefault(one.model, Sum()).add(one)
        before = one.evidence.switched_from
        if one.spike.switch_is_cause and before:
            self.switches.setdefault((before, one.model), Sum()).add(one)

    def by_cause(self) -> list[Json]:
        """The dearest first."""
        return [
            {
                "cause": cause,
                "means": codes.meaning(cause, "stage", "cause"),
                "advice": _advice(cause),
                "models": list(total.models),
                **total.json(),
            }
            for cause, total in _dearest(self.causes)
        ]

    def by_model(self, counts: Iterable[ModelCount]) -> list[Json]:
        """The dearest first, those without spikes last."""
        known = {count.model: count for count in counts}
        found = {**dict.fromkeys(known, Sum()), **self.models}
        return [_of_model(name, known.get(name), total) for name, total in _dearest(found)]

    def by_switch(self) -> list[Json]:
        """Switches of models that made the first token slow, the dearest first."""
        return [
            {"from": before, "to": after, **total.json()}
            for (before, after), total in _dearest(self.switches)[:_SWITCHES_MAX]
        ]


def _advice(cause: str) -> str | None:
    found = codes.get(cause, "stage", "cause")
    return None if found is None else found.advice


def _dearest(sums: dict[K, Sum]) -> list[tuple[K, Sum]]:
    return sorted(sums.items(), key=lambda item: -item[1].lost_ms)


def _of_model(name: str, count: ModelCount | None, total: Sum) -> Json:
    return {
        "model": name,
        "servers": [] if count is None else list(count.servers),
        "requests": None if count is None else count.requests,
        "warm": None if count is None else count.warm,
        "typical_ms": None if count is None else ms(count.typical_ns),
        **total.json(),
    }


def answer(
    counts: Counts, sums: Sums, *, since_ns: int, until_ns: int, model: str | None, whole: bool
) -> Json:
    """The answer of `/v1/summary`; `whole` is false when there were more spikes than are read."""
    return {
        "schema": SCHEMA,
        "since": wall_time(since_ns),
        "until": wall_time(until_ns),
        "model": model,
        "requests": counts.requests,
        "whole": whole,
        **sums.whole.json(),
        "by_cause": sums.by_cause(),
        "by_model": sums.by_model(counts.models),
        "by_switch": sums.by_switch(),
    }
