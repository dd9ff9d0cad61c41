"""Records in, explained requests out: the fold, the derivation and the warm history. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from tracer.derive import derive as derive_one
from tracer.derived import Derived
from tracer.evidence import Evidence
from tracer.records import AnyRecord, Warm
from tracer.requests import Fold

#: Warm requests kept for each (server, model, kind).
WARM_KEPT = 50
#: (server, model, kind) kept, those used last.
KINDS_KEPT = 256

Derive = Callable[[Evidence], Derived]
Kind = tuple[str, str | None, str]


class Pipeline:
    """Feeds records to the fold and explains what comes out against the warm history.

    `derive` stands in for `tracer.derive.derive` in tests.
    """

    def __init__(self, derive: Derive | None = None) -> None:
        self._fold = Fold()
        self._derive = derive_one if derive is None else derive
        self._warm: dict[Kind, deque[Warm]] = {}

    def feed(self, record: AnyRecord) -> list[Derived]:
        """Take in one record; the requests to report because of it.

        A request is reported at its first token (streaming only) and again, for good, at
        its end.
        """
        if isinstance(record, Warm):
            self._remember(record)
            return []
        return [self._explain(evidence) for evidence in self._fold.feed(record)]

    def finish(self) -> list[Derived]:
        """What is still open, explained so far; to call when no more records come."""
        return [self._explain(evidence) for evidence in self._fold.finish()]

    def open_requests(self) -> tuple[int, ...]:
        """Ids of the requests that are not over."""
        return self._fold.open_ids()

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
        return derived

    def _against_history(self, evidence: Evidence) -> Derived:
        """Derived with the baseline of its own model and kind, which deriving tells."""
        derived = self._derive(evidence)
        history = self._warm.get((evidence.server, derived.model, derived.kind))
        if not history:
            return derived
        return self._derive(msgspec.structs.replace(evidence, baseline=tuple(history)))

    def _learn(self, derived: Derived) -> None:
        if not derived.warm or derived.outcome != "ok":
            return
        if derived.ttft_ns is None or derived.model is None:
            return
        evidence = derived.evidence
        self._remember(
            Warm(
                ts_ns=evidence.request.arrival_ns,
                server=evidence.server,
                model=derived.model,
                kind=derived.kind,
                ttft_ns=derived.ttft_ns,
                prompt_tokens=derived.prompt_tokens,
                phases_ns=dict(derived.phases.phases_ns),
            )
        )

    def _remember(self, warm: Warm) -> None:
        kind = (warm.server, warm.model, warm.kind)
        history = self._warm.pop(kind, None)
        if history is None:
            history = deque(maxlen=WARM_KEPT)
        history.append(warm)
        self._warm[kind] = history
        while len(self._warm) > KINDS_KEPT:
            del self._warm[next(iter(self._warm))]
