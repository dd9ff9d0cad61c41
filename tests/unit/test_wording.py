"""The sentence of a verdict: where its time went."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.unit.answer_cases import MS, spike
from tracer.case import Case
from tracer.wording import because


def load(cause: str, **stages_ms: int) -> str:
    """What is said of a load of such stages."""
    item = spike()
    stages = {f"load.{name}": took * MS for name, took in stages_ms.items()}
    phases = replace(
        item.phases, stages_ns=stages, phases_ns={"load": sum(stages.values())}
    )  # fmt: skip
    case = Case(
        evidence=item.evidence, timeline=item.timeline, phases=phases, facts=item.facts,
        model="beta", kind=item.kind, outcome="ok", took_ns=item.ttft_ns, uncached_tokens=26,
        complete=True,
    )  # fmt: skip
    return because(case, cause, ())


def test_no_large_part_of_a_load_is_left_out() -> None:
    said = load("load.meta", meta=294, disk=133, rest=348)
    assert "775 ms of" in said
    assert "went to load: parsing the header took 294 ms, and 253 MB of" in said
    assert "in 133 ms (1903 MB/s), and copying or placing it between reads took 348 ms" in said


@pytest.mark.parametrize(("rest", "told"), [(0, False), (99, False), (100, True), (900, True)])
def test_a_tenth_is_a_large_part(rest: int, told: bool) -> None:
    assert ("copying or placing" in load("load.disk", disk=1000 - rest, rest=rest)) == told
