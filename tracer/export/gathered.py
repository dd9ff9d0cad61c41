"""The requests of one trace, with what several of them saw kept once: the interface's share of
the daemon's memory is small, and each request alone may have thousands of facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from msgspec.structs import replace

from tracer.derive import derive
from tracer.derived import Derived
from tracer.errors import TtftError
from tracer.evidence import Evidence
from tracer.export.chrome import pieces

T = TypeVar("T")

FACTS_MAX = 60_000
"""Some 60 MB with the events that are made of them; a single request never has as many."""
_SHARED = ("lives", "files", "opens", "spans", "inserts", "resident", "memory", "io", "ran",
           "libraries", "calls", "cached", "devices", "telemetry", "polls",
           "others")  # fmt: skip


def traced(evidences: Iterable[Evidence]) -> Iterator[bytes]:
    """Their trace in pieces; it is put together before the first is asked for."""
    return pieces(gathered(derive(evidence) for evidence in evidences))


def gathered(items: Iterable[Derived]) -> list[Derived]:
    """All of them; `TtftError` for more than may be held."""
    kept: list[Derived] = []
    known: dict[Any, Any] = {}
    for item in items:
        kept.append(replace(item, evidence=_once(item.evidence, known)))
        if len(known) > FACTS_MAX and len(kept) > 1:
            raise TtftError(
                f"the trace of these requests is too large: {len(kept)} of them saw "
                f"{len(known)} different things",
                "ask for a shorter time, or for one request by its id",
            )
    return kept


def _once(evidence: Evidence, known: dict[Any, Any]) -> Evidence:
    """The same with the first of equal facts in place of each, without what only led to it."""

    def first(all_: Iterable[T]) -> tuple[T, ...]:
        return tuple(known.setdefault(one, one) for one in all_)

    samples = (replace(one, stacks=first(one.stacks)) for one in evidence.samples)
    names = evidence.names
    return replace(
        evidence,
        baseline=(),
        samples=first(samples),
        names=names and replace(names, at=first(names.at)),
        **{name: first(getattr(evidence, name)) for name in _SHARED},
    )
