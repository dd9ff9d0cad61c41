"""Antecedents and switches beyond the numbered cases."""

from __future__ import annotations

from tests.unit.evidence_build import (
    NEW,
    OLD,
    SIZE,
    command,
    front,
    hop,
    life,
    other,
    request,
    signal,
    span,
    warm,
)
from tests.unit.scenarios import (
    cold_router,
    draining,
    metadata,
    router,
    warm_router,
)
from tracer.derive import derive
from tracer.derived import Derived
from tracer.records import Says


def verdict(d: Derived) -> tuple[str | None, str | None, tuple[str, ...], bool | None]:
    return d.spike.dominant, d.spike.cause, d.spike.why, d.spike.switch_is_cause


def test_options_of_one_model_make_two() -> None:
    old = life(
        OLD, "beta", exit=59, exit_code=0, command=command("beta", options=("ctx-size=2048",))
    )
    new = life(NEW, "beta", fork=67, exec=69, command=command("beta", options=("ctx-size=8192",)))
    d = derive(router(lives=(front(), old, new), previous_model="beta", baseline=warm()))
    assert verdict(d) == ("spawn", "spawn.fit", ("options.changed",), False)
    assert d.phases.stages_ns["evict.stop"] > 0


def test_unloaded_after_idle_time_by_a_front() -> None:
    old = life(OLD, "beta", exit=-60_000, exit_signal=15, signals=(signal(-60_100, 15, OLD),))
    new = life(NEW, "beta", fork=67, exec=69)
    d = derive(router(lives=(front(), old, new), previous_model="beta", baseline=warm()))
    assert d.spike.why == ("idle.timeout",)
    assert d.spike.switch_is_cause is False


def test_waiting_for_another_models_request_is_the_switch() -> None:
    d = derive(draining(baseline=warm()))
    assert verdict(d) == ("queue", "queue.drain", (), True)
    assert d.timeline.waited_for == (16,)
    assert "request 16 had to end first (2.00 s)" in (d.spike.because or "")


def test_waiting_for_another_models_start() -> None:
    """The model is resident, but the front does nothing else while it starts another one."""
    e = warm_router(
        program="ollama", server="llama-server:8080", baseline=warm(),
        lives=(front("ollama"), life(NEW, "beta"), life(500, "gamma", fork=-300, exec=-299)),
        hop=hop(arrival=2001, head=2003, first_token=2030, end=2100, says=Says(prompt_n=26)),
        req=request(read=0.2, head=2031, first_token=2031, end=2101),
        others=(other(16, arrival=-400, model="gamma", runner=500, runner_arrival=1990,
                      first_token=2200, end=3000),),
        previous_model="gamma",
    )  # fmt: skip
    d = derive(e)
    assert verdict(d) == ("queue", "queue.switch", (), True)
    assert d.timeline.waited_for == (16,)
    assert d.timeline.triggered_by is None


def test_the_first_load_of_all_is_no_switch() -> None:
    e = cold_router(lives=(front(), life(NEW, "beta", fork=67, exec=69)), previous_model=None)
    assert verdict(derive(e)) == ("load", "load.disk", (), False)


def test_the_model_that_was_stopped_is_named_whoever_was_asked_last() -> None:
    """Loaded by an administrator, no request of it: the switch is from it all the same."""
    d = derive(router(previous_model="beta", baseline=warm()))
    assert d.facts.switched_from is None
    assert d.spike.switch_is_cause is True
    assert "after alpha had been stopped to make room" in (d.spike.because or "")


def test_a_retry_finds_the_load_its_first_try_began() -> None:
    """The old model went before this request came; it waits for the switch all the same."""
    first = other(16, arrival=-300, model="beta", end=-100, runner=NEW, failed=True,
                  same_body=True)  # fmt: skip
    lives = (
        front(),
        life(400, "beta", fork=-90_000, exit=-60_000, exit_code=0),
        life(OLD, "alpha", fork=-59_900, exit=-250, exit_code=0),
        life(NEW, "beta", fork=-240, exec=-239),
    )
    d = derive(router(lives=lives, others=(first,), previous_model="beta", baseline=warm()))
    assert (d.timeline.triggered_by, d.timeline.retry_of) == (16, (16,))
    assert d.phases.phases_ns["evict"] == 0
    assert d.spike.why == ()
    assert d.spike.switch_is_cause is True
    assert "after alpha had been stopped to make room" in (d.spike.because or "")


def test_requests_on_other_runners_are_no_drain_where_nothing_had_to_go() -> None:
    busy = other(16, arrival=-500, model="gamma", runner=500, runner_arrival=-499, end=5000)
    lives = (front(), life(500, "gamma"), life(NEW, "beta", fork=67, exec=69))
    d = derive(router(lives=lives, others=(busy,), previous_model="gamma"))
    assert d.timeline.waited_for == ()
    assert d.phases.stages_ns.get("queue.drain") is None
    assert d.phases.stages_ns["queue.front"] == 65_700_000


def test_a_header_that_took_longest_is_told() -> None:
    late = span(5000, 5014, "mmap", SIZE, token=4, populate=True)
    d = derive(cold_router(spans=(metadata(300.5, 500, 3), late), inserts=(), baseline=warm()))
    assert verdict(d) == ("load", "load.meta", (), True)
    assert "parsing the header took 4.45 s, and 253 MB of beta.gguf came from" in (
        d.spike.because or ""
    )


def test_a_tensor_read_twice_past_the_page_cache_is_no_refault() -> None:
    reads = (metadata(300.5, 500, 3), span(600, 5860, "read_direct", 17 * SIZE // 10, token=4))
    d = derive(cold_router(spans=reads, inserts=(), baseline=warm()))
    assert d.facts.weights_bytes_from_disk == 17 * SIZE // 10
    assert d.facts.weights_bytes == SIZE
    assert verdict(d) == ("load", "load.disk", (), True)
