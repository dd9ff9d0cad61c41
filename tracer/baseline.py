"""What a warm request of a kind typically takes, from the recent history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from tracer.derived import PHASES
from tracer.records import Warm

#: Fewer warm requests than this are too little to say what is typical.
ENOUGH = 5
#: History older than so many requests no longer counts.
RECENT = 100
#: Prompt sizes must differ this much before a slope says anything.
_SPREAD_TOKENS = 64
_PAIR_LIMIT = 40


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """`typical_ns` None: too little history. `per_token_ns`: growth of prefill, if known.

    `base_ns` is prefill at no tokens; sizes seen lie in [`least_tokens`, `most_tokens`].
    """

    count: int
    typical_ns: int | None = None
    phases_ns: dict[str, int] = msgspec.field(default_factory=dict)
    base_ns: int = 0
    per_token_ns: float | None = None
    least_tokens: int = 0
    most_tokens: int = 0

    def prefill_ns(self, tokens: int) -> int | None:
        """What prefill of so many uncached tokens should take, by the growth seen."""
        if self.per_token_ns is None:
            return None
        return round(self.base_ns + self.per_token_ns * tokens)


def of(history: Iterable[Warm], server: str, model: str | None, kind: str) -> Baseline:
    """The baseline of (server, model, kind) over its latest `RECENT` warm requests."""
    mine = [w for w in history if (w.server, w.model, w.kind) == (server, model, kind)]
    recent = sorted(mine, key=lambda w: w.ts_ns)[-RECENT:]
    if len(recent) < ENOUGH:
        return Baseline(count=len(recent))
    base, slope, sizes = _growth(recent)
    return Baseline(
        count=len(recent),
        typical_ns=round(median(w.ttft_ns for w in recent)),
        phases_ns={p: round(median(w.phases_ns.get(p, 0) for w in recent)) for p in PHASES},
        base_ns=base,
        per_token_ns=slope,
        least_tokens=min(sizes, default=0),
        most_tokens=max(sizes, default=0),
    )


def _growth(recent: Sequence[Warm]) -> tuple[int, float | None, list[int]]:
    """Theil-Sen line of prefill over uncached tokens; one through zero where sizes hardly differ.

    The latter takes all of prefill for growth, so it can only say too much, never too little.
    """
    points = [
        (w.prompt_tokens, w.phases_ns.get("prefill", 0))
        for w in recent
        if w.prompt_tokens is not None and w.prompt_tokens > 0
    ][-_PAIR_LIMIT:]
    sizes = [n for n, _ in points]
    if len(points) < ENOUGH:
        return 0, None, sizes
    slopes = [
        (b - a) / (n - m)
        for i, (m, a) in enumerate(points)
        for n, b in points[i + 1 :]
        if n != m
    ]  # fmt: skip
    if max(sizes) - min(sizes) >= _SPREAD_TOKENS and slopes:
        slope = max(0.0, median(slopes))
        base = median(took - slope * n for n, took in points)
        return max(0, round(base)), slope, sizes
    return 0, median(took / n for n, took in points), sizes
