"""What driver calls tell of a request: times in milliseconds from its arrival."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.evidence_build import (
    MS,
    NEW,
    SIZE,
    evidence,
    front,
    hop,
    intervals,
    life,
    ms,
    ns,
    opened,
    request,
    span,
)
from tests.unit.scenarios import cold_router, router, warm_router
from tests.unit.trace_rules import check, load
from tracer import answers, drivers, phases, scene, timeline
from tracer.callevents import thinned
from tracer.derive import derive
from tracer.evidence import Evidence
from tracer.export import chrome
from tracer.fileevents import MIB
from tracer.records import Armed, Call, DeviceCall, DeviceWhat
from tracer.render_show import show

ON = Armed(ts_ns=ns(-1000), group="devices", on=True, why="process")

OFF = Armed(ts_ns=ns(-2000), group="devices", on=False)


def did(
    at: float, what: DeviceWhat, took: float, *, n: int = 1, end: float | None = None,
    device: str = "nvidia0", tgid: int = NEW, tid: int = NEW, **kw: Any,
) -> DeviceCall:  # fmt: skip
    """`n` calls from `at` to `end`, in which they took so many milliseconds in all."""
    return DeviceCall(
        ts_ns=ns(at), end_ns=ns(at + took if end is None else end), tgid=tgid, tid=tid,
        device=device, driver="nvidia", what=what, count=n, busy_ns=round(took * MS), **kw,
    )  # fmt: skip


def stages(e: Evidence) -> dict[str, float]:
    return ms(phases.split(timeline.build(e)).stages_ns)


def test_a_slow_first_open_is_spawn_device() -> None:
    """Between exec and the first look at the weights; the rest is as it was."""
    e = router(devices=(did(70, "open", 25, first=True),))
    tiled = intervals(phases.split(timeline.build(e)), timeline.build(e))
    assert tiled[3:6] == [
        ("spawn.exec", 67, 70), ("spawn.device", 70, 95), ("spawn.exec", 95, 99)
    ]  # fmt: skip


def test_a_device_brought_up_while_it_looks_what_fits() -> None:
    """The runner knows its weights by name already; time in the driver is the driver's."""
    before = stages(router())
    after = stages(router(devices=(did(200, "open", 40), did(260, "context", 100))))
    assert after["spawn.device"] == 140
    assert after["spawn.fit"] == before["spawn.fit"] - 140


def test_of_a_run_with_pauses_the_time_in_calls_counts() -> None:
    found = phases.split(
        timeline.build(router(devices=(did(68, "query", 6, n=500, end=98),)))
    ).intervals
    assert [
        (x.end_ns - x.start_ns, x.estimate) for x in found if x.stage == "spawn.device"
    ] == [(6 * MS, True)]  # fmt: skip


@pytest.mark.parametrize("what", ["transfer", "submit"])
def test_work_brings_no_device_up(what: DeviceWhat) -> None:
    assert "spawn.device" not in stages(router(devices=(did(70, what, 25),)))


def test_small_calls_claim_nothing() -> None:
    calls = tuple(did(68 + i, "query", 0.9, n=90) for i in range(20))
    assert stages(router(devices=calls)) == stages(router())


def test_contexts_and_cache_after_the_load() -> None:
    """No library was seen to do it; what it was for is an estimate."""
    e = router(devices=(did(890, "context", 20), did(915, "allocate", 30, bytes=64 * MIB)))
    found = phases.split(timeline.build(e))
    assert ms(found.stages_ns)["init.context"] == 20
    assert ms(found.stages_ns)["init.kv"] == 30
    assert all(x.estimate for x in found.intervals if x.stage in ("init.context", "init.kv"))


def test_a_library_that_was_seen_has_the_word() -> None:
    call = Call(
        ts_ns=ns(940), end_ns=ns(940), tgid=NEW, tid=NEW, library="llama", layer="engine",
        symbol="llama_init_from_model", what="context", count=1,
    )  # fmt: skip
    plain = stages(router(calls=(call,)))
    assert stages(router(calls=(call,), devices=(did(890, "context", 20),))) == plain


def test_uploads_by_the_driver() -> None:
    up = did(885, "transfer", 40, n=4, end=930, bytes=128 * MIB)
    found = phases.split(timeline.build(router(devices=(up,))))
    assert ms(found.stages_ns)["transfer.h2d"] == 40
    assert stages(router(devices=(did(885, "transfer", 40, bytes=MIB - 1),))) == stages(router())


def test_a_transfer_under_a_load_is_hidden_by_it() -> None:
    e = cold_router(devices=(did(2000, "transfer", 1000, bytes=240 * MIB),))
    assert ms(phases.split(timeline.build(e)).overlaps_ns)["transfer+load"] == 1000


def test_a_device_brought_up_by_the_first_prompt() -> None:
    """Nothing was started: the server asks for its device when there is work."""
    d = derive(warm_router(devices=(did(2, "open", 15),)))
    assert d.phases.stages_ns["spawn.device"] == 15 * MS
    assert not d.warm
    quick = derive(warm_router(devices=tuple(did(2 + i, "open", 0.05) for i in range(9))))
    assert quick.warm
    assert quick.phases == derive(warm_router()).phases


def slow_start(*devices: DeviceCall) -> Evidence:
    """A runner that takes two seconds to get at its device, and little for all else."""
    return evidence(
        request(read=0.2, first_token=2400, second_token=2410, end=2500),
        hop=hop(arrival=2300, head=2310, first_token=2390, second_token=2400, end=2490),
        runner=NEW,
        lives=(front(), life(NEW, "beta", fork=10, exec=12)),
        opens=(opened(2100, 1),),
        spans=(span(2110, 2150, "mmap", SIZE, token=1, populate=True),),
        resident_before=False,
        devices=devices,
    )


def test_a_slow_open_is_the_cause_and_the_device_is_named() -> None:
    """Case 18: driver bring-up without persistence mode."""
    up = did(30, "open", 2003.4, first=True), did(2040, "context", 20), did(2070, "query", 4)
    d = derive(slow_start(*up))
    assert d.phases.stages_ns["spawn.device"] == round(2027.4 * MS)
    assert (d.spike.cause, d.spike.first_expanded) == ("spawn.device", "spawn")
    assert d.spike.because is not None and d.spike.advice is not None
    assert "looking for devices took 2.03 s, of it opening nvidia0 2.00 s" in d.spike.because
    assert "persistence mode" in d.spike.advice


def test_the_same_start_with_no_device_is_not_blamed_on_one() -> None:
    d = derive(slow_start())
    assert d.spike.cause == "spawn.exec"
    assert d.spike.because is not None and "device" not in d.spike.because


def gpu_calls(*armed: Armed, devices: tuple[DeviceCall, ...] = ()) -> int | None:
    return derive(warm_router(devices=devices, armed=armed)).facts.gpu_calls


def test_calls_are_counted_where_they_were_seen() -> None:
    """Null without a device, with the probes off, or with them late; never 0 then."""
    some = (did(2, "query", 1, n=7), did(4, "submit", 1, n=5), did(6, "sync", 1, n=3, tgid=999))
    off = OFF
    late = Armed(ts_ns=ns(15), group="devices", on=True, why="slow")
    with_it = Armed(ts_ns=ns(1), group="devices", on=True, why="arrival")
    quiet = Armed(ts_ns=ns(10), group="devices", on=False, why="quiet")
    assert gpu_calls(devices=some) is None
    assert gpu_calls(off, devices=some) is None
    assert gpu_calls(off, late, devices=some) is None
    assert gpu_calls(ON, quiet, devices=some) is None
    assert gpu_calls(off, ON, devices=some) == 12
    assert gpu_calls(off, with_it, devices=some) == 12
    assert gpu_calls(ON) == 0


def test_a_request_shorter_than_what_may_be_missed() -> None:
    e = warm_router(request=request(first_token=3, end=4), hop=None, armed=(OFF,))
    assert not drivers.known(e, ns(0), ns(3))


def test_calls_before_the_request_are_not_its_own() -> None:
    before, across = did(-20, "query", 1, n=70), did(-10, "sync", 1, n=20, end=10)
    assert gpu_calls(ON, devices=(before, across)) == 10


def test_answer_has_them_by_device_and_class() -> None:
    e = warm_router(
        devices=(
            did(2, "allocate", 1, n=2, bytes=30, number=0x2B),
            did(5, "allocate", 3, bytes=12, failed=1, number=0x27),
            did(9, "other", 0.5, number=0x30000007, device="nvidia-uvm"),
        )
    )
    rows = answers.evidence_detail(e)["devices"]
    assert rows == [
        {
            "tgid": NEW, "device": "nvidia0", "driver": "nvidia", "what": "allocate", "count": 3,
            "failed": 1, "bytes": 42, "busy_ms": 4.0, "longest_ms": 3.0,
            "numbers": ["0x27", "0x2b"],
        },
        {
            "tgid": NEW, "device": "nvidia-uvm", "driver": "nvidia", "what": "other", "count": 1,
            "failed": 0, "bytes": None, "busy_ms": 0.5, "longest_ms": 0.5,
            "numbers": ["0x30000007"],
        },
    ]  # fmt: skip


some_calls = st.lists(
    st.builds(
        lambda at, took, pause, n, what, size, tgid: did(
            at, what, took, n=n, end=at + took + pause, bytes=size, tgid=tgid
        ),
        st.integers(-2000, 3000),
        st.integers(0, 1500),
        st.integers(0, 500),
        st.integers(1, 1000),
        st.sampled_from(get_args(DeviceWhat)),
        st.none() | st.integers(1, 1 << 40),
        st.sampled_from((NEW, 1, 999)),
    ),
    max_size=12,
)


@given(some_calls, st.sampled_from((router, cold_router, warm_router)))
def test_phases_add_up_whatever_the_drivers_did(calls: list[DeviceCall], make: Any) -> None:
    d = derive(make(devices=tuple(calls), armed=(ON,)))
    window = d.timeline.end_ns - d.timeline.start_ns
    assert sum(d.phases.phases_ns.values()) == window
    assert sum(d.phases.stages_ns.values()) == window
    assert d.facts.gpu_calls is not None and d.facts.gpu_calls >= 0


def test_where_nobody_was_to_serve_it() -> None:
    e = evidence(request(end=50, why="client_gone"), lives=(life(NEW, "beta"),), armed=(ON,))
    assert derive(e).facts.gpu_calls is None
    assert drivers.brought_up(scene.of(e)) == []


def test_show_names_the_longest_classes() -> None:
    """Of many calls, and of those that were seen only in part."""
    e = warm_router(
        armed=(ON,),
        devices=(
            did(2, "open", 3), did(6, "allocate", 2, n=4, bytes=3 * MIB), did(9, "query", 1, n=90),
            did(11, "free", 0.5), did(12, "sync", 0.25),
        ),
    )  # fmt: skip
    d = derive(e)
    lines = "\n".join(show({**answers.answer(d), **answers.detail(d)}))
    assert "driver calls  97: open 1 in 3.00 ms, allocate 4 in 2.00 ms (3.15 MB)," in lines
    assert "sync" not in lines
    late = derive(msgspec.structs.replace(e, armed=()))
    assert "driver calls  in part: open 1" in "\n".join(
        show({**answers.answer(late), **answers.detail(late)})
    )
    none = derive(warm_router())
    assert "driver calls" not in "\n".join(show({**answers.answer(none), **answers.detail(none)}))


def test_trace_has_them_on_their_threads() -> None:
    e = router(devices=(did(70, "open", 25, first=True, number=0x2B),))
    events = orjson.loads(chrome.dump([derive(e)]))["traceEvents"]
    (event,) = (x for x in events if x.get("cat") == "driver")
    at = (event["name"], event["ph"], event["dur"], event["pid"])
    assert at == ("open nvidia0", "X", 25000, NEW)
    assert event["args"] == {
        "driver": "nvidia", "count": 1, "failed": 0, "bytes": None, "busy_ms": 25.0,
        "number": "0x2b",
    }  # fmt: skip
    assert check(load(chrome.dump([derive(e)]))) == []


@given(some_calls, st.integers(1, 6))
def test_many_runs_are_joined_and_none_is_lost(calls: list[DeviceCall], most: int) -> None:
    calls.sort(key=lambda c: (c.ts_ns, c.tid, c.device, c.what))
    found = thinned(calls, most)
    assert found == calls or len(found) <= len(calls)
    for name in ("count", "failed"):
        assert sum(getattr(c, name) for c in found) == sum(getattr(c, name) for c in calls)
    assert sum(c.bytes or 0 for c in found) == sum(c.bytes or 0 for c in calls)
    assert all(0 <= c.busy_ns <= c.end_ns - c.ts_ns for c in found)
    assert {(c.tgid, c.what) for c in found} == {(c.tgid, c.what) for c in calls}


def test_a_long_load_keeps_its_slow_calls_apart() -> None:
    """Ten thousand runs of one thread become a few, in order."""
    calls = [did(i * 10, "query", 1, n=3) for i in range(10_000)]
    found = thinned([*calls, did(500, "open", 900)], 1000)
    assert sum(c.count for c in found) == 30_001
    assert len(found) == 65
    (opened,) = (c for c in found if c.what == "open")
    assert opened.busy_ns == 900 * MS
