"""One request as the history keeps it."""

from __future__ import annotations

import zlib
from typing import NamedTuple, TypeVar

import msgspec

from tracer import answers
from tracer.derive import warm_record
from tracer.derived import Derived
from tracer.errors import StoreError
from tracer.evidence import Evidence
from tracer.records import Warm

T = TypeVar("T")

UNPACKED_MAX = 256 << 20
"""Bytes of the detail or evidence of a request; far more than any has."""


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


def read(what: str, column: object, kind: type[T], *, packed: bool = False) -> T:
    """What a column with JSON holds, which may be anything; StoreError: not what was written."""
    try:
        if not isinstance(column, bytes):
            raise TypeError(f"it is no bytes but {type(column).__name__}")
        return msgspec.json.decode(_unpacked(column) if packed else column, type=kind)
    except (zlib.error, msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise _unreadable(what, error) from error


def _unpacked(column: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(column, UNPACKED_MAX)
    if not unpacking.eof:
        raise ValueError("it is cut short, or too long")
    return data


def _unreadable(what: str, error: Exception) -> StoreError:
    return StoreError(
        f"the {what} of this request cannot be read: {error}",
        "it was written by another version, or the history is damaged",
    )


def _columns(row: tuple[object, ...], kind: type[T]) -> T:
    """A row as what its columns should be: SQLite itself lets them hold anything."""
    try:
        return msgspec.convert(row, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise _unreadable("row", error) from error


def when(row: tuple[object, ...]) -> tuple[int, int]:
    """(arrival, id)."""
    return _columns(row, tuple[int, int])


def group(row: tuple[object, ...]) -> tuple[str, str, str, int]:
    """(server, model, kind, when it was last used)."""
    return _columns(row, tuple[str, str, str, int])


def answer_from(row: tuple[object, ...]) -> tuple[int, bytes]:
    """(id, answer): one that is JSON."""
    number, answer = _columns(row, tuple[int, bytes])
    read("answer", answer, dict[str, object])
    return number, answer


class _Warm(NamedTuple):
    arrival_ns: int
    ttft_ns: int
    prompt_tokens: int | None
    phases: bytes
    baseline: bytes | None


def warm_from(group: tuple[str, str, str], wall_offset_ns: int, row: tuple[object, ...]) -> Warm:
    """What a request tells the baseline: what was kept for it, else what the columns say."""
    found = _columns(row, _Warm)
    server, model, kind = group
    plain = Warm(
        ts_ns=found.arrival_ns - wall_offset_ns,
        server=server,
        model=model,
        kind=kind,
        ttft_ns=found.ttft_ns,
        prompt_tokens=found.prompt_tokens,
        phases_ns=read("phases", found.phases, dict[str, int]),
    )
    if found.baseline is None:
        return plain
    try:
        kept = read("baseline", found.baseline, Warm)
    except StoreError:  # of a newer version
        return plain
    return msgspec.structs.replace(kept, ts_ns=plain.ts_ns)


def evidence_from(column: object) -> Evidence:
    """The evidence in a row's `evidence` column."""
    return read("evidence", column, Evidence, packed=True)


def detail_from(row: tuple[object, ...]) -> bytes:
    """The answer of `ttft show --json`: (answer, compressed detail) as one JSON object."""
    answer, packed = row
    whole = read("answer", answer, dict[str, object])
    return answers.dumps(whole | read("detail", packed, dict[str, object], packed=True))
