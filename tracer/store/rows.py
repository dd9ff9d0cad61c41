"""One request as the history keeps it."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import msgspec

from tracer import answers
from tracer.derive import warm_record
from tracer.derived import Derived
from tracer.errors import StoreError
from tracer.evidence import Evidence


class Row(NamedTuple):
    """Columns of `requests`, then those of `details`; `arrival_ns` is wall-clock time."""

    id: int
    arrival_ns: int
    server: str
    model: str | None
    kind: str
    outcome: str
    final: bool
    is_spike: bool
    warm: bool
    ttft_ns: int | None
    prompt_tokens: int | None
    phases: bytes
    answer: bytes
    baseline: bytes | None
    detail: bytes
    evidence: bytes


REQUEST_COLUMNS = Row._fields[:14]


def encode(derived: Derived) -> Row:
    """The row of a request; evidence and detail are compressed."""
    evidence = derived.evidence
    return Row(
        id=evidence.id,
        arrival_ns=answers.arrival_wall_ns(derived),
        server=evidence.server,
        model=derived.model,
        kind=derived.kind,
        outcome=derived.outcome,
        final=evidence.request.end_ns is not None,
        is_spike=derived.spike.is_spike,
        warm=derived.warm,
        ttft_ns=derived.ttft_ns,
        prompt_tokens=derived.prompt_tokens,
        phases=msgspec.json.encode(derived.phases.phases_ns),
        answer=answers.dumps(answers.answer(derived)),
        baseline=_baseline(derived),
        detail=zlib.compress(answers.dumps(answers.detail(derived)), 1),
        evidence=zlib.compress(msgspec.json.encode(evidence), 6),
    )


def _baseline(derived: Derived) -> bytes | None:
    """What the baseline takes from it, where that is not what the other columns say."""
    warm = warm_record(derived)
    if warm is None:
        return None
    plain = msgspec.structs.replace(
        warm,
        ttft_ns=derived.ttft_ns,
        prompt_tokens=derived.prompt_tokens,
        phases_ns=derived.phases.phases_ns,
        clocks_mhz={},
    )
    return None if warm == plain else msgspec.json.encode(warm)


def evidence_from(blob: bytes) -> Evidence:
    """The evidence in a row's `evidence` column."""
    try:
        return msgspec.json.decode(zlib.decompress(blob), type=Evidence)
    except (zlib.error, msgspec.DecodeError) as error:
        raise StoreError(
            f"the evidence of this request cannot be read: {error}",
            "it was written by another version, or the history is damaged",
        ) from error


def detail_from(row: tuple[bytes, bytes]) -> bytes:
    """The answer of `ttft show --json`: (answer, compressed detail) as one JSON object."""
    answer, packed = row
    return answer[:-1] + b"," + zlib.decompress(packed)[1:]
