"""The worked sequences of the design: evidence by hand, the whole tiling compared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.evidence_build import (
    NEW,
    OLD,
    evidence,
    front,
    hop,
    insert,
    intervals,
    life,
    ms,
    ns,
    other,
    poll,
    request,
    signal,
    span,
)
from tests.unit.scenarios import (
    cold_router,
    draining,
    ollama_like,
    router,
    sleeper,
    third,
    tiling,
    warm_router,
)
from tracer import phases, timeline
from tracer.evidence import Evidence
from tracer.records import Says


def test_router_with_a_warm_page_cache() -> None:
    t = timeline.build(router())
    assert intervals(phases.split(t), t) == [
        ("queue.socket", 0, 1.3),
        ("evict.stop", 1.3, 59),
        ("evict.wait", 59, 67),
        ("spawn.exec", 67, 99),
        ("spawn.fit", 99, 547),
        ("load.meta", 547, 868),
        ("load.cache", 868, 882),
        ("init.rest", 882, 1030),
        ("prefill.tokenize", 1030, 1035),
        ("prefill.prompt", 1035, 1113.5),
        ("prefill.relay", 1113.5, 1114),
    ]
    assert (t.triggered_by, t.waited_for, t.retry_of, t.engine_seen) == (17, (), (), True)
    assert t.prompt_start_ns == t.start_ns + 1_035_000_000


def test_router_with_a_cold_page_cache() -> None:
    assert ms(phases.split(timeline.build(cold_router())).stages_ns) == {
        "queue.socket": 1.3, "evict.stop": 57.7, "evict.wait": 8, "spawn.exec": 32,
        "spawn.fit": 448, "load.meta": 321, "load.disk": 5014, "init.rest": 148,
        "prefill.tokenize": 5, "prefill.prompt": 78.5, "prefill.relay": 0.5,
    }  # fmt: skip


def test_a_warm_request_is_routed_and_worked_on() -> None:
    assert tiling(warm_router()) == [
        ("queue.socket", 0, 0.2),
        ("queue.front", 0.2, 1),
        ("prefill.tokenize", 1, 3),
        ("prefill.prompt", 3, 29.8),
        ("prefill.relay", 29.8, 30),
    ]


def test_sleep_and_wake_in_the_same_process() -> None:
    assert tiling(sleeper()) == [
        ("queue.socket", 0, 1.2),
        ("spawn.fit", 1.2, 300),
        ("load.meta", 300, 500),
        ("load.cache", 500, 520),
        ("init.rest", 520, 640),
        ("prefill.prompt", 640, 720),
    ]
    assert timeline.build(sleeper()).triggered_by == 17


def test_ollama_kills_waits_starts_and_polls() -> None:
    assert tiling(ollama_like()) == [
        ("queue.socket", 0, 1),
        ("queue.front", 1, 10),
        ("evict.stop", 10, 40),
        ("evict.wait", 40, 900),
        ("spawn.exec", 900, 950),
        ("spawn.fit", 950, 1000),
        ("load.meta", 1000, 1010),
        ("load.cache", 1010, 1900),
        ("init.rest", 1900, 2251),
        ("init.poll", 2251, 2260),
        ("prefill.tokenize", 2260, 2265),
        ("prefill.prompt", 2265, 2399),
        ("prefill.relay", 2399, 2400),
    ]
    hidden = phases.split(timeline.build(ollama_like())).overlaps_ns
    assert ms(hidden) == {"spawn+evict": 120}


def test_a_front_that_polls_once_a_second_notices_late() -> None:
    """Another client's health check shows it ready 900 ms before the front asks."""
    e = ollama_like(
        program="llama-swap",
        polls=(
            poll(arrival=2250, head=2251, status=200),
            poll(xid=91, arrival=3149, head=3150, status=200, client_tgid=100),
        ),
        hop=hop(arrival=3151, head=3155, first_token=3299, end=3400),
        request=request(read=1, body=1, head=3300, first_token=3300, end=3401),
    )
    assert ("init.poll", 2251, 3151) in tiling(e)


def test_readiness_that_nothing_showed_stays_in_init() -> None:
    got = tiling(ollama_like(polls=()))
    assert ("init.rest", 1900, 2260) in got
    assert not [x for x in got if x[0] == "init.poll"]


def test_a_runner_that_listens_only_once_it_is_ready() -> None:
    e = ollama_like(polls=(), lives=(front("ollama"), life(NEW, "beta", fork=900, listen=2000)))
    assert ("init.poll", 2000, 2260) in tiling(e)


def test_weights_faulted_lazily_inside_the_first_prompt() -> None:
    """Two threads; the coalesced run has idle time in it and gives its busy time only."""
    e = warm_router(
        hop=hop(arrival=1, head=3, first_token=999, end=1100),
        req=request(read=0.2, head=3.2, first_token=1000, end=1101),
        spans=(
            span(100, 300, "fault_major", 4096 * 500, count=500, tid=301),
            span(200, 400, "fault_major", 4096 * 500, count=500, tid=302),
            span(500, 900, "fault_minor", 4096 * 100, count=100, busy=50, tid=301),
        ),
    )
    t = timeline.build(e)
    assert intervals(phases.split(t), t) == [
        ("queue.socket", 0, 0.2),
        ("queue.front", 0.2, 1),
        ("prefill.tokenize", 1, 3),
        ("prefill.prompt", 3, 100),
        ("load.disk", 100, 400),
        ("prefill.prompt", 400, 850),
        ("load.cache", 850, 900),
        ("prefill.prompt", 900, 999),
        ("prefill.relay", 999, 1000),
    ]
    assert [x.estimate for x in t.claims if x.stage.startswith("load")] == [False, False, True]


def test_minor_faults_that_waited_for_the_disk_are_the_disks() -> None:
    """With readahead the fault finds its page and sleeps until it is filled."""
    e = warm_router(
        spans=(span(5, 25, "fault_minor", 4096 * 20, count=20),),
        inserts=(insert(5, 24, 320),),
    )
    assert ("load.disk", 5, 25) in tiling(e)


def test_second_model_waits_until_the_first_has_drained() -> None:
    t = timeline.build(draining())
    assert intervals(phases.split(t), t)[:4] == [
        ("queue.socket", 0, 1.3),
        ("queue.drain", 1.3, 2000),
        ("evict.stop", 2000, 2059),
        ("evict.wait", 2059, 2067),
    ]
    assert (t.triggered_by, t.waited_for) == (17, (16,))


def test_an_older_server_kills_the_busy_runner() -> None:
    """Evict from the kill on: the old request ends because of it."""
    killed = life(OLD, "alpha", exit=59, exit_signal=9, signals=(signal(3, 9, OLD),))
    e = router(
        lives=(front(), killed, life(NEW, "beta", fork=67, exec=69)),
        others=(other(16, arrival=-500, model="alpha", runner=OLD, runner_arrival=-499, end=58),),
    )
    t = timeline.build(e)
    assert intervals(phases.split(t), t)[:4] == [
        ("queue.socket", 0, 1.3),
        ("queue.drain", 1.3, 3),
        ("evict.stop", 3, 59),
        ("evict.wait", 59, 67),
    ]


def test_third_request_for_the_model_being_loaded() -> None:
    t = timeline.build(third())
    assert intervals(phases.split(t), t) == [
        ("spawn.fit", 0, 47),
        ("load.meta", 47, 368),
        ("load.cache", 368, 382),
        ("init.rest", 382, 530),
        ("queue.busy", 530, 690),
        ("prefill.tokenize", 690, 700),
        ("prefill.prompt", 700, 780),
        ("prefill.relay", 780, 781),
    ]
    assert (t.triggered_by, t.waited_for) == (18, (18,))


def test_third_request_with_a_free_slot_does_its_own_prefill() -> None:
    """The first is still at work when the prompt begins: it held another slot."""
    e = third(
        hop=hop(arrival=531, head=536, first_token=690, end=900),
        others=(
            other(18, arrival=-500, model="beta", runner=NEW, runner_arrival=530,
                  runner_head=535, first_token=614, end=1690),
        ),
    )  # fmt: skip
    t = timeline.build(e)
    assert intervals(phases.split(t), t)[-4:] == [
        ("queue.front", 530, 531),
        ("prefill.tokenize", 531, 536),
        ("prefill.shared", 536, 690),
        ("prefill.relay", 690, 781),
    ]
    assert t.waited_for == ()


def test_vllm_has_no_hop_and_no_known_header_time() -> None:
    e = evidence(
        request(read=1, body=0.5, head=15, first_token=400, end=500),
        program="vllm", server="vllm:8000", runner=100,
        lives=(front("vllm", "single"),), resident_before=True,
        others=(other(16, arrival=-500, model="beta", runner=100, end=200),),
    )  # fmt: skip
    t = timeline.build(e)
    assert intervals(phases.split(t), t) == [("queue.socket", 0, 1), ("prefill.prompt", 1, 400)]
    assert (t.engine_seen, t.prompt_start_ns, t.waited_for) == (False, None, ())


def test_vllm_wakes_inside_a_waiting_request() -> None:
    """What its worker reads of the weights counts as load, the rest as prefill."""
    e = evidence(
        request(read=1, body=0.5, head=15, first_token=400, end=500),
        program="vllm", server="vllm:8000", runner=100,
        lives=(front("vllm", "single"), life(500, None, ppid=100, command=None)),
        spans=(span(100, 150, "fault_minor", 4096, tgid=500),),
    )  # fmt: skip
    assert tiling(e) == [
        ("queue.socket", 0, 1),
        ("prefill.prompt", 1, 100),
        ("load.cache", 100, 150),
        ("prefill.prompt", 150, 400),
    ]


def test_not_streaming_takes_decoding_apart() -> None:
    """No early headers: prompt start is the hop's arrival, and decoding the server's word."""
    e = warm_router(
        hop=hop(arrival=1, stream=False, event_stream=False, head=500, end=500,
                says=Says(prompt_ms=60.0, predicted_ms=400.0)),
        req=request(stream=False, event_stream=False, read=0.2, head=501, end=501),
    )  # fmt: skip
    t = timeline.build(e)
    assert intervals(phases.split(t), t) == [
        ("queue.socket", 0, 0.2),
        ("queue.front", 0.2, 1),
        ("prefill.prompt", 1, 100),
        ("prefill.decode", 100, 500),
        ("prefill.relay", 500, 501),
    ]


def whole(end: float, **kw: Any) -> Evidence:
    """A reply in one piece of 60 ms of prompt and 400 ms of decoding, beside request 16."""
    first = other(16, arrival=-100, model="beta", runner=NEW, runner_arrival=-99,
                  first_token=-40, end=end)  # fmt: skip
    done = 501 + kw.pop("later", 0)
    return warm_router(
        hop=hop(arrival=1, stream=False, event_stream=False, head=done - 1, end=done - 1,
                says=Says(prompt_ms=60.0, predicted_ms=400.0)),
        req=request(stream=False, event_stream=False, read=0.2, head=done, end=done),
        others=(first,), **kw,
    )  # fmt: skip


def test_a_whole_reply_that_waited_for_the_slot() -> None:
    t = timeline.build(whole(end=2000, later=2000))
    assert intervals(phases.split(t), t) == [
        ("queue.socket", 0, 0.2),
        ("queue.busy", 0.2, 2000),
        ("prefill.prompt", 2000, 2100),
        ("prefill.decode", 2100, 2500),
        ("prefill.relay", 2500, 2501),
    ]
    assert t.waited_for == (16,)


def test_a_whole_reply_beside_another_had_a_slot_of_its_own() -> None:
    """The other ended while this one was decoding: nobody waited."""
    t = timeline.build(whole(end=300))
    assert t.waited_for == ()
    assert [x[0] for x in intervals(phases.split(t), t)] == [
        "queue.socket", "queue.front", "prefill.shared", "prefill.decode", "prefill.relay",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("prompt_ms", "begun", "estimate"),
    [(26.8, 3, False), (27.8, 2, True), (40.0, 1, True), (None, 3, False)],
)
def test_headers_that_left_late_are_put_right_by_the_servers_own_word(
    prompt_ms: float | None, begun: float, estimate: bool
) -> None:
    """Its HTTP thread may be late on a busy machine; but nothing began before the hop came."""
    says = Says(prompt_ms=prompt_ms, prompt_n=26)
    e = warm_router(
        hop=hop(arrival=1, read=1.1, body=1, head=3, first_token=29.8, end=100, says=says)
    )
    t = timeline.build(e)
    assert t.prompt_start_ns == ns(begun)
    assert any(c.estimate for c in t.claims if c.stage == "prefill.prompt") == estimate
