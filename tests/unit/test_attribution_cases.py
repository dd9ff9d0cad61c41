"""Situations that users reported, as evidence, and what must be said of each."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.unit.evidence_build import (
    BETA,
    FRONT,
    MS,
    NEW,
    OLD,
    SIZE,
    front,
    hop,
    insert,
    life,
    opened,
    other,
    request,
    signal,
    span,
    warm,
)
from tests.unit.scenarios import (
    PAGES,
    cold_router,
    metadata,
    old_runner,
    ollama_like,
    router,
    sleeper,
    warm_router,
)
from tracer import codes
from tracer.derive import derive
from tracer.derived import Derived, Spike
from tracer.evidence import Evidence
from tracer.records import Says


def verdict(d: Derived) -> tuple[str | None, str | None, tuple[str, ...], bool | None]:
    return d.spike.dominant, d.spike.cause, d.spike.why, d.spike.switch_is_cause


def test_case_1_cold_switch() -> None:
    d = derive(cold_router(baseline=warm()))
    assert d.spike == Spike(
        is_spike=True,
        typical_ns=30 * MS,
        first_expanded="load",
        dominant="load",
        cause="load.disk",
        why=(),
        because=(
            "5.33 s of 6.11 s (87 %) went to load: 253 MB of beta.gguf came from disk "
            "(sda1, ext4) in 5.01 s (50 MB/s), after alpha had been stopped to make room."
        ),
        advice=codes.get("load.disk", "stage").advice,  # type: ignore[union-attr]
        switch_is_cause=True,
        confidence=0.97,
    )
    assert d.facts.weights == ("beta.gguf",)
    assert d.facts.weights_bytes_from_disk == PAGES * 4096
    assert d.facts.weights_bytes == SIZE
    assert (d.facts.switched_from, d.facts.resident_before) == ("alpha", False)
    assert (d.facts.processes_started, d.facts.processes_exited) == (1, 1)


def test_case_2_switched_straight_back() -> None:
    d = derive(router(baseline=warm()))
    assert d.facts.weights_bytes_from_disk == 0
    assert d.phases.stages_ns.get("load.disk") is None
    assert verdict(d) == ("spawn", "spawn.fit", (), True)
    assert d.spike.first_expanded == "spawn"
    assert d.spike.because == (
        "480 ms of 1.11 s (43 %) went to spawn: starting the program took 32 ms, working out "
        "what fits in memory took 448 ms, after alpha had been stopped to make room."
    )


def test_case_3_both_resident_is_no_spike() -> None:
    d = derive(warm_router(previous_model="alpha", baseline=warm()))
    assert d.spike == Spike(is_spike=False, typical_ns=30 * MS)
    assert d.warm


def test_case_3_slow_with_both_resident_is_correlation() -> None:
    """Nothing was read or started: the switch only came at the same time."""
    slow = warm_router(
        previous_model="alpha", baseline=warm(),
        hop=hop(arrival=1, head=3, first_token=2999, end=3100, says=Says(prompt_n=26)),
        req=request(read=0.2, head=3.2, first_token=3000, end=3101),
    )  # fmt: skip
    d = derive(slow)
    assert verdict(d) == ("prefill", "prefill.unexplained", (), False)
    assert d.facts.switched_from == "alpha"


def test_case_4_a_nas_mount_is_named() -> None:
    remote = msgspec.structs.replace(BETA, path="/n/beta.gguf", fs="nfs4", device="nas:/models")
    d = derive(cold_router(files=(remote,), baseline=warm()))
    assert verdict(d) == ("load", "load.network", (), True)
    assert "came from the network (nas:/models, nfs4) in 5.01 s (50 MB/s)" in (
        d.spike.because or ""
    )


def test_case_5_page_by_page_without_readahead() -> None:
    faults = span(882, 5882, "fault_major", SIZE, count=PAGES, busy=4900)
    e = cold_router(
        spans=(metadata(300.5, 500, 3), span(868, 869, "mmap", SIZE, token=4), faults),
        inserts=(insert(882, 5882, PAGES),),
        baseline=warm(),
    )
    d = derive(e)
    assert verdict(d) == ("load", "load.disk", ("load.readahead",), True)
    assert d.facts.major_faults == PAGES
    assert f"in {PAGES} page faults of 4 KiB" in (d.spike.because or "")


def evicted_from_cache(pages: int = PAGES, baseline_ms: float = 30) -> Evidence:
    return warm_router(
        baseline=warm(baseline_ms),
        hop=hop(arrival=1, head=3, first_token=4999, end=5100, says=Says(prompt_n=26)),
        req=request(read=0.2, head=3.2, first_token=5000, end=5101),
        spans=(span(10, 4900, "fault_minor", 4096 * 900, count=900, busy=4800),),
        inserts=(insert(10, 4890, pages),),
    )


def test_case_6_a_backup_emptied_the_page_cache() -> None:
    d = derive(evicted_from_cache())
    assert verdict(d) == ("load", "load.disk", ("evicted.pagecache",), False)
    assert d.facts.processes_started == 0
    assert d.facts.weights_bytes_from_disk == PAGES * 4096
    assert d.spike.advice == (
        "Keep other reads from filling the page cache (run backups with direct I/O or a limit)."
    )


def test_case_7_asleep_after_idle_time() -> None:
    d = derive(sleeper(baseline=warm(40)))
    assert verdict(d) == ("spawn", "spawn.fit", ("idle.timeout",), False)
    assert d.spike.first_expanded == "spawn"
    assert d.facts.processes_started == 0
    assert d.facts.weights_bytes == SIZE
    assert "its prompt cache with it" in (d.spike.because or "")


def test_case_8_long_prompt_on_a_warm_model() -> None:
    long = warm_router(
        baseline=warm(),
        hop=hop(arrival=1, head=3, first_token=1999, end=2100,
                says=Says(prompt_ms=1990.0, prompt_n=4000, cache_n=0)),
        req=request(read=0.2, head=3.2, first_token=2000, end=2101),
    )  # fmt: skip
    d = derive(long)
    assert verdict(d) == ("prefill", "prefill.prompt", (), False)
    assert d.spike.first_expanded == "prefill"
    assert d.spike.because == (
        "2.00 s of 2.00 s (99 %) went to prefill: a prompt of 4000 tokens to work on, "
        "with nothing loaded and nothing started."
    )


def second_on_the_slot(**kw: Any) -> Evidence:
    base: dict[str, Any] = {
        "baseline": warm(),
        "hop": hop(arrival=1, head=2010, first_token=2036, end=2100, says=Says(prompt_n=26)),
        "req": request(read=0.2, head=2010.2, first_token=2037, end=2101),
        "others": (
            other(16, arrival=-100, model="beta", runner=NEW, runner_arrival=-99, runner_head=-98,
                  first_token=-60, end=2009),
        ),
    }  # fmt: skip
    return warm_router(**{**base, **kw})


def test_case_9_second_request_on_one_slot() -> None:
    d = derive(second_on_the_slot())
    assert verdict(d) == ("queue", "queue.busy", (), False)
    assert d.timeline.waited_for == (16,)
    assert d.spike.because == (
        "2.01 s of 2.04 s (98 %) went to queue: the runner was busy for 2.01 s with request 16."
    )


def test_case_9_a_later_arrival_that_overtook_is_named_too() -> None:
    first = other(16, arrival=-100, runner=NEW, runner_arrival=-99, first_token=-60, end=1000)
    overtook = other(18, arrival=500, runner=NEW, runner_arrival=501, runner_head=1002,
                     first_token=1050, end=2009)  # fmt: skip
    d = derive(second_on_the_slot(others=(first, overtook)))
    assert d.timeline.waited_for == (16, 18)
    assert d.phases.stages_ns["queue.busy"] == round(2008.8 * MS)


def test_case_9_an_older_server_sends_no_early_headers() -> None:
    """Prompt start is then when the slot came free, and marked as an estimate."""
    d = derive(
        second_on_the_slot(
            hop=hop(arrival=1, head=2036, first_token=2036, end=2100, says=Says(prompt_n=26)),
            req=request(read=0.2, head=2036.2, first_token=2037, end=2101),
        )
    )
    assert verdict(d) == ("queue", "queue.busy", (), False)
    assert d.phases.stages_ns["prefill.prompt"] == 27 * MS
    assert all(x.estimate for x in d.phases.intervals if x.stage == "prefill.prompt")


def test_case_11_the_client_gives_up_during_the_load() -> None:
    """Nothing came: no TTFT, but as long as it waited it is judged, and listed."""
    gone = cold_router(
        hop=None,
        req=request(read=1.3, body=0.1, end=3000, why="client_gone", status=None,
                    event_stream=False),
        inserts=(insert(868, 3000, 100_000 // 4),),
        spans=(metadata(300.5, 500, 3), span(868, 3000, "mmap", SIZE, token=4, populate=True)),
        baseline=warm(),
    )  # fmt: skip
    d = derive(gone)
    assert (d.outcome, d.died_in, d.ttft_ns, d.window_ns) == (
        "client_gone", "load", None, 3000 * MS,
    )  # fmt: skip
    assert verdict(d) == ("load", "load.disk", (), True)
    assert (d.spike.because or "").endswith("; the client then gave up.")
    assert d.facts.weights_bytes_from_disk == 25_000 * 4096
    assert not d.warm


def test_case_11_the_next_try_finds_it_loading() -> None:
    d = derive(cold_router(others=(other(16, arrival=-3000, end=-10, model="beta", failed=True,
                                         same_body=True, status=None),)))  # fmt: skip
    assert d.timeline.retry_of == (16,)
    assert d.outcome == "ok"


def killed_in_load() -> Evidence:
    new = life(NEW, "beta", fork=67, exec=69, exit=3000, exit_signal=9,
               signals=(signal(2999, 9, NEW, sender=FRONT),))  # fmt: skip
    return cold_router(
        program="llama-swap",
        hop=None,
        lives=(front("llama-swap"), old_runner(), new),
        req=request(read=1.3, body=0.1, head=3001, end=3002, status=502, event_stream=False),
        inserts=(insert(868, 2999, 25_000),),
        spans=(metadata(300.5, 500, 3), span(868, 3000, "mmap", SIZE, token=4, populate=True)),
        baseline=warm(),
    )


def test_case_12_the_front_kills_a_slow_load() -> None:
    d = derive(killed_in_load())
    assert (d.outcome, d.died_in, d.ttft_ns) == ("server_died", "load", None)
    assert verdict(d) == ("load", "load.disk", ("died.killed_by_front",), True)
    assert d.facts.weights_bytes_from_disk == 25_000 * 4096
    assert "the front killed the runner before it was ready" in (d.spike.because or "")
    assert d.spike.advice == "Raise the front's time-out for loading a model."


def crashed(**kw: Any) -> Evidence:
    """The runner of this model died before; the request starts another."""
    dead: dict[str, Any] = {
        "exit": -200,
        "exit_signal": 11,
        "signals": (signal(-200, 11, OLD, sender=None),),
        **kw,
    }
    return cold_router(
        lives=(front(), life(OLD, "beta", **dead), life(NEW, "beta", fork=67, exec=69)),
        previous_model="beta",
        baseline=warm(),
    )


def test_case_13_the_runner_crashed() -> None:
    d = derive(crashed())
    assert verdict(d) == ("load", "load.disk", ("died.signal",), False)
    assert "after the runner had crashed" in (d.spike.because or "")
    assert d.phases.phases_ns["evict"] == 0


def test_case_13_the_request_it_crashed_under() -> None:
    d = derive(
        warm_router(
            lives=(front(), life(NEW, "beta", exit=500, exit_signal=11)),
            hop=hop(arrival=1, head=3, end=500, why="server_gone"),
            req=request(read=0.2, head=3.2, end=501, error=True),
        )
    )
    assert (d.outcome, d.died_in, d.ttft_ns) == ("server_died", "prefill", None)


def test_case_14_out_of_memory() -> None:
    """A SIGKILL that the kernel itself sent."""
    d = derive(crashed(exit_signal=9, signals=(signal(-200, 9, OLD, sender=None),)))
    assert verdict(d) == ("load", "load.disk", ("died.oom",), False)
    assert d.spike.advice == "Raise the memory limit, or use a smaller model or context."


def test_case_15_memory_limit_below_the_model() -> None:
    d = derive(evicted_from_cache(pages=3 * PAGES))
    assert verdict(d) == ("load", "load.disk", ("load.refault",), False)
    assert d.facts.weights_bytes_from_disk == 3 * PAGES * 4096
    assert d.facts.weights_bytes == SIZE


def test_case_19_waiting_for_memory_belongs_to_evict() -> None:
    d = derive(ollama_like(server="llama-server:8080", baseline=warm()))
    assert d.phases.phases_ns["other"] == 0
    assert d.phases.stages_ns["evict.wait"] == 860 * MS


def test_case_20_readiness_noticed_late() -> None:
    """Loaded and answering health checks of others for 1.4 s before the front asked."""
    polls = ollama_like().polls
    e = ollama_like(
        program="llama-swap",
        polls=(polls[1],),
        hop=hop(arrival=3651, head=3655, first_token=3799, end=3900, says=Says(prompt_n=26)),
        request=request(read=1, body=1, head=3800, first_token=3800, end=3901),
        baseline=warm(),
    )
    d = derive(e)
    assert d.phases.stages_ns["init.poll"] == 1400 * MS
    assert verdict(d) == ("init", "init.poll", (), True)


def test_case_25_a_503_is_no_spike() -> None:
    single = sleeper(
        request=request(read=1.2, body=0.2, head=1.5, end=1.6, status=503, event_stream=False),
        opens=(opened(-100, 4, tgid=FRONT),),
        spans=(span(-50, 500, "mmap", SIZE, token=4, populate=True, tgid=FRONT),),
        baseline=warm(),
    )
    d = derive(single)
    assert (d.outcome, d.died_in, d.ttft_ns) == ("server_error", "load", None)
    assert d.spike == Spike(is_spike=False, typical_ns=30 * MS)


def test_case_25_the_try_that_succeeds_lists_the_others() -> None:
    tries = tuple(
        other(n, arrival=-1000 + 100 * n, end=-999 + 100 * n, status=503, failed=True,
              same_body=True)
        for n in range(1, 6)
    )  # fmt: skip
    d = derive(warm_router(others=(*tries, other(9, arrival=-300, end=-299, status=200))))
    assert d.timeline.retry_of == (1, 2, 3, 4, 5)
    assert d.timeline.waited_for == ()
    assert d.ttft_ns == 30 * MS
