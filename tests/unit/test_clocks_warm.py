"""A device's clock while a prompt was slow, beside the one it has in warm prompts."""

from __future__ import annotations

from pathlib import Path
from statistics import median_low
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.build import ms
from tests.unit.evidence_build import warm
from tests.unit.test_clocks import (
    GPU,
    THROTTLED,
    UNEXPLAINED,
    held,
    reading,
    replayed,
    slow,
    story,
    throughout,
    verdict,
)
from tracer import clocks
from tracer.answers import answer, detail
from tracer.derive import derive
from tracer.derived import Derived
from tracer.pipeline import Pipeline
from tracer.records import AnyRecord, Telemetry, Warm
from tracer.render_show import show


def ran_at(*clocks: int, ttft: float = 300, device: str = GPU, **kw: Any) -> tuple[Warm, ...]:
    """Warm prompts: at these clocks, and others that were too short to be read."""
    known = warm(ttft, count=max(5, len(clocks)), **kw)
    told = (*({device: mhz} for mhz in clocks), *({} for _ in known[len(clocks) :]))
    return tuple(replace(w, clocks_mhz=mhz) for w, mhz in zip(known, told, strict=True))


def compared(d: Derived) -> tuple[str | None, int | None, int | None]:
    (one,) = detail(d)["evidence_detail"]["telemetry"]
    return one["compared"], one["clock_warm_mhz"], one["clock_max_mhz"]


@pytest.mark.parametrize("limits", [(), ("power",)])
@pytest.mark.parametrize(
    ("usual", "expected"),
    [(210, UNEXPLAINED), (250, UNEXPLAINED), (205, UNEXPLAINED), (2000, THROTTLED)],
)
def test_a_device_that_is_never_faster_is_not_slow(
    limits: tuple[Any, ...], usual: int, expected: object
) -> None:
    """As low as ever: warm prompts are as quick as they are at that clock."""
    d = derive(slow(*throughout(210, limits=limits), baseline=ran_at(usual)))
    assert verdict(d) == expected
    assert compared(d) == ("warm", usual, 2100)


def test_a_clock_below_the_one_of_warm_prompts() -> None:
    """Far from low for the device, and nothing is said to hold it."""
    d = derive(slow(*throughout(1200), took=1000, baseline=ran_at(1950, 2000, 2050)))
    assert verdict(d) == THROTTLED
    assert (d.spike.because or "").endswith(
        "while RTX 3060 ran at 1200 MHz (P8) in place of 2000 in warm prompts."
    )
    assert compared(d) == ("warm", 2000, 2100)
    highest = derive(slow(*throughout(1200), took=1000, baseline=ran_at()))
    assert verdict(highest) == UNEXPLAINED
    assert compared(highest) == ("highest", None, 2100)


def test_the_highest_is_what_counts_without_warm_readings() -> None:
    """Those of another server, or of another device, are none of this one."""
    for other in (ran_at(), ran_at(210, device="0000:02:00.0")):
        d = derive(slow(*throughout(210), baseline=other))
        assert verdict(d) == THROTTLED
        assert (d.spike.because or "").endswith("while RTX 3060 ran at 210 of 2100 MHz (P8).")
        assert compared(d) == ("highest", None, 2100)
    elsewhere = ran_at(210, server="ollama:11434")
    d = derive(slow(*throughout(210), baseline=(*warm(), *elsewhere)))
    assert verdict(d) == THROTTLED
    assert compared(d) == ("highest", None, 2100)


def test_a_device_that_tells_no_highest_clock() -> None:
    told = throughout(900, clock_max_mhz=None)
    d = derive(slow(*told, baseline=ran_at(2000)))
    assert verdict(d) == THROTTLED
    assert compared(d) == ("warm", 2000, None)
    d = derive(slow(*told))
    assert verdict(d) == UNEXPLAINED
    assert compared(d) == (None, None, None)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 3000), max_size=6), st.integers(1, 3000), st.integers(1, 3000),
    st.booleans(), st.integers(901, 5000),
)  # fmt: skip
def test_any_clocks(usual: list[int], now: int, most: int, held: bool, took: int) -> None:
    """With warm readings the highest is of no account; without them the limits are."""
    readings = throughout(now, clock_max_mhz=most, limits=("power",) if held else ())
    d = derive(slow(*readings, took=took, baseline=ran_at(*usual)))
    full = median_low(usual) if usual else most
    share = now / full
    low = share < (0.8 if usual or held else 0.5)
    enough = took * (1 - share) * 2 >= took - 299
    sure = abs(took * (1 - share) * 2 - (took - 299)) > 20
    if sure or not low:
        assert (d.spike.why == ("power.clock",)) == (low and enough)
    assert compared(d) == ("warm" if usual else "highest", full if usual else None, most)


def test_show_names_both() -> None:
    d = derive(slow(*throughout(1200), took=1000, baseline=ran_at(2000)))
    shown = " ".join(" ".join(show(answer(d) | detail(d))).split())
    assert "in the prompt: 1200 of 2100 MHz (P8), 2000 in warm prompts, 97 % busy" in shown


# --- from records to the verdict ------------------------------------------------------


def warm_readings(clock: int) -> list[Telemetry]:
    """Of the six warm requests, if they take more than 400 ms."""
    at = (100 + 1000 * i + more for i in range(6) for more in (210, 390))
    return [replace(reading(0, clock, tgid=100), ts_ns=ms(t)) for t in at]


@pytest.mark.parametrize(
    ("usual", "expected"), [(2000, THROTTLED), (330, UNEXPLAINED), (None, THROTTLED)]
)
def test_a_replayed_recording_knows_the_clock_of_warm_prompts(
    tmp_path: Path, usual: int | None, expected: object
) -> None:
    before = [] if usual is None else warm_readings(usual)
    records = story(200, [*before, *held(300, 1900)], 1900, usual=450)
    d = replayed(records, tmp_path / "warm.ttft")
    assert verdict(d) == expected
    assert [w.clocks_mhz for w in d.evidence.baseline] == [
        {} if usual is None else {GPU: usual}
    ] * 6
    (one,) = clocks.devices(d.evidence, d.phases)
    assert one.compared == ("highest" if usual is None else "warm")
    rest = Pipeline()
    for record in context_at(records, 10_600):
        rest.feed(record)
    later = [x for r in records if r.ts_ns >= ms(10_600) for x in rest.feed(r)]
    assert later[-1].spike == d.spike


def context_at(records: list[AnyRecord], at: float) -> list[AnyRecord]:
    """The context with which a recording begins then."""
    pipeline = Pipeline()
    for record in records:
        if record.ts_ns < ms(at):
            pipeline.feed(record)
    return pipeline.snapshot()
