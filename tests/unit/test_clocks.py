"""A prompt that took longer than its size explains: did the device run at a low clock?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.build import Story, finals, ms, ticked
from tests.unit.evidence_build import FRONT, NEW, hop, ns, request, warm
from tests.unit.scenarios import warm_router
from tests.unit.trace_rules import check, load
from tracer import clocks
from tracer.answers import detail
from tracer.derive import derive
from tracer.derived import Derived
from tracer.evidence import Evidence
from tracer.export.chrome import dump
from tracer.pipeline import Pipeline
from tracer.readings import MAX_OF_REQUEST, MAX_READINGS, Readings
from tracer.recording import Writer, replay
from tracer.records import (
    AnyRecord,
    Holder,
    HttpEnd,
    Says,
    Telemetry,
    Warm,
)

GPU = "0000:01:00.0"


def reading(at: float, clock: int | None, *, tgid: int = NEW, **fields: Any) -> Telemetry:
    """Of a device at work whose clock may be 2100 MHz; `at` in milliseconds from the arrival."""
    plain: dict[str, Any] = {
        "device": GPU, "source": "nvml", "name": "RTX 3060", "clock_max_mhz": 2100,
        "busy_percent": 97, "limits": (), "pstate": 8,
        "holders": (Holder(tgid=tgid, memory_bytes=2 << 30),),
    }  # fmt: skip
    return Telemetry(ts_ns=ns(at), clock_mhz=clock, **(plain | fields))


def throughout(clock: int | None, **fields: Any) -> tuple[Telemetry, ...]:
    return tuple(reading(at, clock, **fields) for at in (250, 500, 750, 1000, 1900))


def slow(
    *readings: Telemetry, tokens: int | None = 26, took: float = 2000,
    baseline: tuple[Warm, ...] = warm(),
) -> Evidence:  # fmt: skip
    """A warm request whose prompt took 1996 ms in place of 25."""
    says = None if tokens is None else Says(prompt_ms=took - 10, prompt_n=tokens, cache_n=0)
    return warm_router(
        req=request(read=0.2, head=3.2, first_token=took, second_token=took + 44, end=took + 101),
        hop=hop(arrival=1, read=1.1, body=1, head=3, first_token=took - 0.2, end=took + 100,
                says=says),
        baseline=baseline, telemetry=readings,
    )  # fmt: skip


def verdict(d: Derived) -> tuple[str | None, str | None, tuple[str, ...]]:
    return d.spike.dominant, d.spike.cause, d.spike.why


THROTTLED = ("prefill", "prefill.throttled", ("power.clock",))
UNEXPLAINED = ("prefill", "prefill.unexplained", ())


def test_a_low_clock() -> None:
    d = derive(slow(*throughout(210)))
    assert verdict(d) == THROTTLED
    assert d.spike.because == (
        "2.00 s of 2.00 s (99 %) went to prefill: a prompt of 26 tokens to work on, while RTX 3060"
        " ran at 210 of 2100 MHz (P8)."
    )
    assert d.spike.advice is not None and d.spike.advice.startswith("Keep the device's clock up")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (("power",), "its power limit"),
        (("power", "thermal"), "its power limit and its temperature"),
        (("setting",), "a setting"),
    ],
)
def test_what_holds_it_is_said(limits: tuple[Any, ...], words: str) -> None:
    d = derive(slow(*throughout(900, limits=limits)))
    assert verdict(d) == THROTTLED
    assert d.spike.because is not None
    assert d.spike.because.endswith(f"ran at 900 of 2100 MHz (P8), held back by {words}.")


@pytest.mark.parametrize(
    "readings",
    [
        (),
        throughout(2000),
        throughout(1200),  # low, but nothing holds it
        throughout(1600, limits=("power",)),  # held, and hardly low
        throughout(None),
        throughout(210, clock_max_mhz=None),
        throughout(210, limits=("idle",), busy_percent=None),  # it waits for something else
        throughout(210, busy_percent=10),
        throughout(210, busy_percent=None, limits=None),  # or may
        throughout(210, tgid=FRONT),  # another's
        throughout(210)[:1],  # the moment in which it was raised
        (*throughout(210)[:2], *throughout(2000)[2:]),
        # What was seen before the prompt began, and long after it.
        (reading(-400, 210), reading(1, 210), reading(2400, 210), reading(2500, 210)),
    ],
)
def test_no_claim(readings: tuple[Telemetry, ...]) -> None:
    assert verdict(derive(slow(*readings))) == UNEXPLAINED


def test_a_clock_that_explains_too_little() -> None:
    """At 60 % of its clock a prompt does not take seventy times as long."""
    assert verdict(derive(slow(*throughout(1260, limits=("thermal",))))) == UNEXPLAINED
    short = [reading(at, 1260, limits=("thermal",)) for at in (210, 250, 290)]
    assert verdict(derive(slow(*short, tokens=100, took=300))) == THROTTLED


def test_a_prompt_that_its_size_explains() -> None:
    """As slow, at the same low clock: but it is as long, and a long one takes that."""
    d = derive(slow(*throughout(210), tokens=26 * 60))
    assert verdict(d) == ("prefill", "prefill.prompt", ())


def test_a_prompt_of_unknown_size() -> None:
    d = derive(slow(*throughout(210), tokens=None))
    assert verdict(d) == ("prefill", "prefill.prompt", ())


def test_a_prompt_as_fast_as_ever() -> None:
    """Nothing to explain, however low the clock."""
    d = derive(replace(slow(*throughout(210), took=30.2), baseline=warm()))
    assert not d.spike.is_spike


def test_the_first_answer_after_a_streamed_token_counts() -> None:
    """A short wait has one reading, and one just after it."""
    assert verdict(derive(slow(reading(1900, 210), reading(2010, 210)))) == THROTTLED


def test_of_several_devices_the_slowest() -> None:
    """Layers are spread over them, and each waits for the others."""
    fast = throughout(1900, device="0000:02:00.0", name="other")
    d = derive(slow(*fast, *throughout(210)))
    assert verdict(d) == THROTTLED
    assert "while RTX 3060 ran" in (d.spike.because or "")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.builds(
            reading,
            st.integers(-100, 3000),
            st.none() | st.integers(0, 20000),
            clock_max_mhz=st.none() | st.integers(0, 20000),
            busy_percent=st.none() | st.integers(0, 100),
            limits=st.none() | st.sampled_from([(), ("idle",), ("power",), ("idle", "thermal")]),
            tgid=st.sampled_from([FRONT, NEW]),
            link_width=st.none() | st.integers(1, 16),
            link_width_max=st.none() | st.integers(1, 16),
        ),
        max_size=8,
    )
)
def test_any_readings(readings: list[Telemetry]) -> None:
    """What is said to be low was, of a device at work, in most of its readings."""
    d = derive(slow(*readings))
    low = clocks.low(d.evidence, d.phases)
    if low is not None:
        assert low.readings >= 1
        assert low.share is not None and low.share < 0.8
    assert (d.spike.cause == "prefill.throttled") == ("power.clock" in d.spike.why)
    assert len(detail(d)["evidence_detail"]["telemetry"]) == len({r.device for r in readings})
    assert check(load(dump([d]))) == []


# --- from records to the verdict ------------------------------------------------------


def story(
    tokens: int, readings: list[Telemetry], took: float, usual: float = 60
) -> list[AnyRecord]:
    """Six warm requests of 200 tokens and 60 ms, and one that takes longer."""
    told = Story(role="single", model="alpha")

    def asked(at: float, port: int, size: int, token: float) -> None:
        xid = told.request(at, port, model="alpha", head=at + 20, token=at + token)
        says = Says(prompt_ms=token - 8, prompt_n=size, cache_n=0)
        told.add(HttpEnd(ts_ns=ms(at + token + 400), xid=xid, why="complete", bytes=500, says=says))

    for i in range(6):
        asked(100 + 1000 * i, 50001 + i, 200, usual)
    asked(10_000, 50100, tokens, took)
    told.add(*readings)
    return told.records(until=20_000)


def held(clock: int, took: float) -> list[Telemetry]:
    """Readings as the daemon takes them: from 200 ms after the arrival, at 4 Hz, and one after."""
    times = [10_200 + 250 * i for i in range(int((took - 200) // 250) + 1)] + [10_010 + took]
    return [replace(reading(0, clock, tgid=100), ts_ns=ms(at)) for at in times]


def replayed(records: list[AnyRecord], path: Path) -> Derived:
    """The last request of a recording of them."""
    with path.open("wb") as file:
        writer = Writer(file)
        for record in records:
            writer.write(record)
        writer.close()
    return replay(path)[-1]


def test_a_replayed_recording_of_a_low_clock(tmp_path: Path) -> None:
    d = replayed(story(200, held(300, 900), 900), tmp_path / "low.ttft")
    assert verdict(d) == THROTTLED
    assert "while RTX 3060 ran at 300 of 2100 MHz (P8)" in (d.spike.because or "")
    assert len(d.evidence.telemetry) == 4


def test_a_replayed_recording_of_a_low_clock_that_slowed_nothing(tmp_path: Path) -> None:
    """As low a clock, and as slow a request: but by the size of its prompt."""
    d = replayed(story(3000, held(300, 900), 900), tmp_path / "long.ttft")
    assert verdict(d) == ("prefill", "prefill.prompt", ())
    quick = replayed(story(200, held(300, 240), 240), tmp_path / "quick.ttft")
    assert not quick.spike.is_spike
    assert len(quick.evidence.telemetry) == 2


def test_readings_go_with_the_request_that_waited() -> None:
    mine = [replace(reading(0, 300, tgid=100), ts_ns=ms(at)) for at in (9_000, 10_300, 12_000)]
    strange = replace(reading(0, 300, tgid=7), ts_ns=ms(10_300))
    found = finals(story(200, [*mine, strange], 900))
    assert found[7].telemetry == (mine[1],)
    assert all(not found[id_].telemetry for id_ in range(1, 7))


def test_who_let_go_of_a_device_gives_no_reading_of_it() -> None:
    let_go = Holder(tgid=100, memory_bytes=0, gone=True)
    other = Holder(tgid=7, memory_bytes=5)
    notes = [
        Telemetry(ts_ns=ms(10_300), device=GPU, source="nvml", holders=(let_go,)),
        replace(reading(0, 300), ts_ns=ms(10_400), holders=(other, let_go)),
    ]
    records = story(200, notes, 900)
    assert all(not found.telemetry for found in finals(records).values())


def test_a_pipeline_goes_on_from_a_snapshot_with_them() -> None:
    records = story(200, held(300, 900), 900)
    whole, first = Pipeline(), Pipeline()
    told = [d for record in records for d in whole.feed(record)]
    at = next(i for i, r in enumerate(records) if r.ts_ns >= ms(10_600))
    for record in records[:at]:
        first.feed(record)
    second = Pipeline()
    for record in first.snapshot():
        second.feed(record)
    rest = [d for record in records[at:] for d in second.feed(record)]
    assert rest[-1] == told[-1]
    assert rest[-1].spike.why == ("power.clock",)


# --- bounds ---------------------------------------------------------------------------


def test_a_long_wait_keeps_samples_of_each_device() -> None:
    kept = Readings()
    for i in range(3 * MAX_OF_REQUEST):
        for device in ("a", "b"):
            kept.feed(Telemetry(ts_ns=i, device=device, source="x", holders=(Holder(tgid=1),)))
    found = kept.of([1], 0, 1 << 62)
    assert len(found) <= MAX_OF_REQUEST
    assert sum(r.device == "a" for r in found) == sum(r.device == "b" for r in found) >= 100
    assert len(list(kept.records())) == min(6 * MAX_OF_REQUEST, MAX_READINGS)
    kept.prune(1 << 62)
    assert list(kept.records()) == []


def test_readings_that_come_late_are_put_in_order() -> None:
    kept = Readings()
    for at in (5, 3, 4):
        kept.feed(Telemetry(ts_ns=at, device="a", source="x", holders=(Holder(tgid=1),)))
    assert [r.ts_ns for r in kept.of([1], 0, 9)] == [3, 4, 5]


def test_readings_that_come_after_the_tick_of_their_moment() -> None:
    """A call may take long: what is told before the request's end counts."""
    records = list(ticked(story(200, [], 900), every=50))
    late = held(300, 900)
    at = next(i for i, r in enumerate(records) if r.ts_ns >= ms(10_950))
    pipeline = Pipeline()
    told = [d for r in [*records[:at], *late, *records[at:]] for d in pipeline.feed(r)]
    assert told[-1].spike.why == ("power.clock",)
