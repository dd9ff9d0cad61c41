"""A recording comes from anybody: no number in it makes its answers or its trace fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.evidence_build import hop, request, warm
from tests.unit.scenarios import warm_router
from tests.unit.test_requests import cold_switch
from tests.unit.test_verdicts_waiting import ahead
from tracer.answers import answer, detail, dumps
from tracer.derive import derive
from tracer.derived import Derived
from tracer.errors import RecordError
from tracer.export.chrome import dump
from tracer.recording import header, line, replay
from tracer.records import Says
from tracer.store.rows import encode

Path_ = tuple[str | int, ...]
LINES = [orjson.loads(line(record)) for record in cold_switch().records()]
WHOLE = (2**31, 2**53, 2**62, 2**63 - 1, 2**64 - 1, -(2**63))
REAL = (1e18, 1e300, 1.7e308, 5e-324, -1.0)


def leaves(value: object, path: Path_ = ()) -> Iterator[Path_]:
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(one, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


NUMBERS = list(leaves(LINES))


def told(found: list[Derived]) -> None:
    """All that is made of requests."""
    orjson.loads(dump(found))
    for item in found:
        orjson.loads(dumps({**answer(item), **detail(item)}))
        encode(item)


def replayed(folder: Path, *changes: tuple[Path_, float]) -> None:
    lines: Any = orjson.loads(orjson.dumps(LINES))
    for path, number in changes:
        into = lines
        for key in path[:-1]:
            into = into[key]
        into[path[-1]] = number
    file = folder / "odd.ttft"
    file.write_bytes(header() + b"".join(msgspec.json.encode(one) + b"\n" for one in lines))
    try:
        found = replay(file)
    except RecordError:
        return
    told(found)


@pytest.mark.parametrize("field", ["pages", "bytes", "size"])
def test_sums_beyond_64_bits(tmp_path: Path, field: str) -> None:
    paths = [path for path in NUMBERS if path[-1] == field]
    assert paths
    for number in (2**53, 2**63 - 1):
        replayed(tmp_path, *((path, number) for path in paths))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(WHOLE)), max_size=3))
def test_any_number_anywhere(tmp_path: Path, changes: list[tuple[Path_, float]]) -> None:
    replayed(tmp_path, *changes)


@pytest.mark.parametrize("took", REAL)
@pytest.mark.parametrize("field", ["prompt_ms", "predicted_ms", "load_ms"])
def test_a_duration_the_server_cannot_mean(took: float, field: str) -> None:
    says = msgspec.structs.replace(Says(prompt_ms=25.0, prompt_n=26), **{field: took})
    for streams in (True, False):
        e = warm_router(
            hop=hop(arrival=1, head=2012, first_token=2036, end=2100, says=says),
            req=request(read=0.2, head=2012.2, first_token=2037, end=2101, event_stream=streams),
            others=(ahead(end=2009),),
            baseline=warm(),
        )  # fmt: skip
        told([derive(e)])


def test_a_sum_beyond_64_bits_is_told_as_the_nearest_within() -> None:
    value = {"a": [2**70, (-(2**70), True)], "b": 1.5, "c": None}
    assert dumps(value) == b'{"a":[%d,[%d,true]],"b":1.5,"c":null}' % (2**63 - 1, 1 - 2**63)
