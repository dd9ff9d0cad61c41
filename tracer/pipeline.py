"""Records in, explained requests out: the fold, the derivation and the warm history. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tracer.derive import derive as derive_one
from tracer.derive import warm_record
from tracer.derived import Derived
from tracer.evidence import Evidence
from tracer.records import AnyRecord, Names, Warm
from tracer.requests import Fold

#: Warm requests kept for each (server, model, kind).
WARM_KEPT = 50
#: (server, model, kind) kept, those used last.
KINDS_KEPT = 256
#: Requests that are over, whose functions may yet get names.
SAMPLED_KEPT = 16

Derive = Callable[[Evidence], Derived]
Kind = tuple[str, str | None, str]
Looks = tuple[str, str | None, bool | None, bool, str | None, int | None]
_K = TypeVar("_K")
_V = TypeVar("_V")


class Pipeline:
    """Feeds records to the fold and explains what comes out against the warm history.

    `derive` stands in for `tracer.derive.derive` in tests.
    """

    def __init__(self, derive: Derive | None = None) -> None:
        self._fold = Fold()
        self._derive = derive_one if derive is None else derive
        self._warm: dict[Kind, deque[Warm]] = {}
        self._kinds: dict[Looks, Kind] = {}
        self._sampled: dict[int, Derived] = {}

    def feed(self, record: AnyRecord) -> list[Derived]:
        """Take in one record; the requests to report because of it.

        A request is reported at its first token (streaming only) and again, for good, at
        its end. What ran may get names later: then it is told once more, with nothing else new.
        """
        if isinstance(record, Warm):
            self._remember(record)
            return []
        if isinstance(record, Names):
            return self._named(record)
        return [self._explain(evidence) for evidence in self._fold.feed(record)]

    def finish(self) -> list[Derived]:
        """What is still open, explained so far; to call when no more records come."""
        return [self._explain(evidence) for evidence in self._fold.finish()]

    def open_requests(self) -> tuple[int, ...]:
        """Ids of the requests that are not over."""
        return self._fold.open_ids()

    def waiting(self) -> frozenset[int]:
        """Fronts of servers where a request has not got its first token yet."""
        return self._fold.waiting()

    def explain_open(self, now_ns: int) -> list[Derived]:
        """The requests that are not over, explained so far."""
        return [self._against_history(e) for e in self._fold.open_requests(now_ns)]

    def snapshot(self) -> list[AnyRecord]:
        """Records from which a new pipeline continues as this one would."""
        warm = [w for history in self._warm.values() for w in history]
        return [*warm, *self._fold.snapshot()]

    def _explain(self, evidence: Evidence) -> Derived:
        derived = self._against_history(evidence)
        if evidence.request.end_ns is not None:
            self._learn(derived)
        if derived.over and evidence.samples:
            self._sampled[evidence.id] = derived
            while len(self._sampled) > SAMPLED_KEPT:
                del self._sampled[next(iter(self._sampled))]
        return derived

    def _named(self, names: Names) -> list[Derived]:
        derived = self._sampled.pop(names.id, None)
        if derived is None:
            return []
        evidence = msgspec.structs.replace(derived.evidence, names=names)
        return [msgspec.structs.replace(derived, evidence=evidence)]

    def _against_history(self, evidence: Evidence) -> Derived:
        """Derived with the baseline of its own model and kind, which only deriving tells: so
        with that of the last request that looked the same, and again where that was wrong."""
        looks = _looks(evidence)
        guess = self._kinds.get(looks)
        derived = self._derive_with(evidence, guess)
        kind = (evidence.server, derived.model, derived.kind)
        if kind == guess:
            return derived
        _put(self._kinds, looks, kind)
        if kind not in self._warm and guess not in self._warm:
            return derived
        return self._derive_with(evidence, kind)

    def _derive_with(self, evidence: Evidence, kind: Kind | None) -> Derived:
        baseline = tuple(self._warm.get(kind, ())) if kind is not None else ()
        return self._derive(msgspec.structs.replace(evidence, baseline=baseline))

    def _learn(self, derived: Derived) -> None:
        warm = warm_record(derived) if derived.outcome == "ok" else None
        if warm is not None:
            self._remember(warm)

    def _remember(self, warm: Warm) -> None:
        kind: Kind = (warm.server, warm.model, warm.kind)
        history = self._warm.get(kind) or deque(maxlen=WARM_KEPT)
        history.append(warm)
        _put(self._warm, kind, history)


def _put(kept: dict[_K, _V], key: _K, value: _V) -> None:
    """Put it last; forget the first beyond the limit."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > KINDS_KEPT:
        del kept[next(iter(kept))]


def _looks(evidence: Evidence) -> Looks:
    asked, hop = evidence.request, evidence.hop
    return (
        evidence.server,
        asked.endpoint,
        asked.stream,
        asked.event_stream,
        asked.model or (hop.model if hop is not None else None) or asked.reply_model,
        evidence.runner,
    )
