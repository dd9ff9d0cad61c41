"""The fold, on the sequences that servers make."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.build import CHAT, MIB, NETNS, Story, finals, fold, ms, ticked
from tracer.evidence import Evidence
from tracer.gather import LONG_LOOKBACK_NS, MAX_OTHERS
from tracer.records import (
    AnyRecord,
    Armed,
    Command,
    Connect,
    Exec,
    Fork,
    Lost,
    Process,
    Server,
    Settings,
    Start,
    Take,
    Tick,
)
from tracer.requests import Fold


def cold_switch() -> Story:
    """Alpha started and used, then beta in its place."""
    story = Story()
    story.file(1)
    story.file(2)
    story.runner(0.5, 200, 9001, "alpha")
    story.load(20, 80, 200, 1)
    story.request(10, 50001, tid=101, model="alpha", head=150, token=160, end=200)
    story.hop(120, 9001, 60001, 200, tid=101, model="alpha", head=149, token=159, end=199)
    story.request(1000, 50002, tid=102, model="beta", head=1450, token=1460, end=1500)
    story.exit(1050, 200, signal=15)
    story.runner(1060, 201, 9002, "beta")
    story.load(1100, 1300, 201, 2)
    story.hop(1400, 9002, 60002, 201, tid=102, model="beta", head=1449, token=1459, end=1499)
    return story


def test_router_cold_switch() -> None:
    one, two = finals(cold_switch().records()).values()
    assert (one.id, one.runner, one.previous_model, one.resident_before) == (1, 200, None, False)
    assert (two.id, two.server, two.program, two.front) == (
        2,
        "llama-server:8080",
        "llama-server",
        100,
    )
    assert (two.runner, two.previous_model, two.resident_before) == (201, "alpha", False)
    assert two.hop is not None
    assert (two.hop.arrival_ns, two.hop.server_tgid, two.hop.client_tgid) == (ms(1400), 201, 100)
    assert [(life.tgid, life.exit_signal) for life in two.lives] == [
        (100, None),
        (200, 15),
        (201, None),
    ]
    old = two.lives[1]
    assert [(s.signal, s.sender) for s in old.signals] == [(15, 100)]
    new = two.lives[2]
    assert (new.fork_ns, new.exec_ns, new.listen_ns) == (ms(1060), ms(1061), ms(1071))
    assert [f.ino for f in two.files] == [2]
    assert [(o.ts_ns, o.tgid) for o in two.opens] == [(ms(1100), 201)]
    assert [(s.ts_ns, s.op) for s in two.spans] == [(ms(1101), "mmap")]
    assert [i.pages for i in two.inserts] == [65536]
    assert [(o.id, o.runner, o.end_ns) for o in two.others] == [(1, 200, ms(200))]


def test_request_as_the_facts_say() -> None:
    asked = finals(cold_switch().records())[2].request
    assert msgspec.structs.replace(asked, xid=0) == msgspec.structs.replace(
        asked,
        xid=0,
        endpoint=CHAT,
        arrival_ns=ms(1000),
        server_tgid=100,
        client_tgid=None,
        body_ns=ms(1000.2),
        read_ns=ms(1000.3),
        read_tid=102,
        head_ns=ms(1450),
        first_token_ns=ms(1460),
        first_token_what="text",
        second_token_ns=ms(1470),
        end_ns=ms(1500),
        why="complete",
        status=200,
        stream=True,
        event_stream=True,
        model="beta",
        prompt_bytes=100,
        response_bytes=500,
    )


def test_runner_started_by_an_earlier_request_is_seen_from_its_start() -> None:
    story = cold_switch()
    story.request(1350, 50003, tid=103, model="beta", head=1500, token=1560, end=1600)
    story.hop(1401, 9002, 60003, 201, tid=103, model="beta", head=1499, token=1559, end=1599)
    late = finals(story.records())[3]
    assert late.resident_before is False
    assert [s.ts_ns for s in late.spans] == [ms(1101)]
    assert [(o.id, o.runner) for o in late.others] == [(1, 200), (2, 201)]


def test_warm_request_carries_nothing_of_the_load_but_which_weights() -> None:
    story = cold_switch()
    story.request(5000, 50003, tid=103, model="beta", head=5010, token=5020, end=5100)
    story.hop(5001, 9002, 60003, 201, tid=103, model="beta", head=5009, token=5019, end=5099)
    warm = finals(story.records())[3]
    assert (warm.resident_before, warm.previous_model, warm.runner) == (True, "beta", 201)
    assert (warm.spans, warm.inserts) == ((), ())
    assert [o.ts_ns for o in warm.opens] == [ms(1100)]
    assert [f.ino for f in warm.files] == [2]


def test_hop_on_a_kept_connection() -> None:
    story = cold_switch()
    story.request(5000, 50003, tid=103, model="beta", head=5010, token=5020, end=5100)
    xid = story.hop(
        5001, 9002, 60002, 201, connect=False, model="beta", head=5009, token=5019, end=5099
    )
    warm = finals(story.records())[3]
    assert warm.hop is not None
    assert (warm.hop.xid, warm.hop.client_tgid, warm.runner) == (xid, 100, 201)


def test_hop_on_a_connection_older_than_the_daemon() -> None:
    story = cold_switch()
    story.request(5000, 50003, model="beta", head=5010, token=5020, end=5100)
    xid = story.hop(
        5001, 9002, 61000, 201, connect=False, model="beta", head=5009, token=5019, end=5099
    )
    seen = finals(story.records())
    assert list(seen) == [1, 2, 3]
    assert seen[3].hop is not None and seen[3].hop.xid == xid


def test_direct_call_to_a_runner_is_a_request() -> None:
    story = cold_switch()
    story.hop(5001, 9002, 61000, 201, connect=False, model="beta", head=5009, token=5019, end=5099)
    direct = finals(story.records())[3]
    assert (direct.runner, direct.hop, direct.server) == (201, None, "llama-server:8080")
    assert direct.resident_before is True


@pytest.mark.parametrize("swapped", [False, True])
def test_hops_are_told_apart_by_thread_then_size_then_model(swapped: bool) -> None:
    for how in ("thread", "size", "model"):
        story = Story()
        for tgid, port, model in ((200, 9001, "alpha"), (201, 9002, "beta")):
            story.runner(0.5, tgid, port, model)
        pairs = [("alpha", 300, 101, 9001, 200), ("beta", 400, 102, 9002, 201)]
        asked: dict[int, int] = {}
        for i, (model, size, tid, _, tgid) in enumerate(pairs):
            named = model if how == "model" else "same"
            length = size if how == "size" else 300
            story.request(100 + i, 50001 + i, tid=tid, model=named, size=length, token=300, end=400)
            asked[i + 1] = tgid
        for i, (model, size, tid, port, tgid) in enumerate(reversed(pairs) if swapped else pairs):
            named = model if how == "model" else "same"
            length = size if how == "size" else 300
            by = tid if how == "thread" else 999
            story.hop(
                150 + i, port, 60001 + i, tgid, tid=by, model=named, size=length, token=299, end=399
            )
        assert {i: e.runner for i, e in finals(story.records()).items()} == asked, how


def test_oldest_first_where_nothing_else_tells() -> None:
    story = Story()
    story.runner(0.5, 200, 9001, "alpha")
    for i in range(2):
        story.request(100 + i, 50001 + i, tid=7, model="alpha", token=300, end=400)
    xids = [
        story.hop(150 + i, 9001, 60001 + i, 200, tid=9, model="alpha", token=299, end=399)
        for i in range(2)
    ]
    seen = finals(story.records())
    assert [e.hop.xid for e in seen.values() if e.hop is not None] == xids


def test_retried_hop_keeps_the_one_that_served() -> None:
    story = Story()
    story.runner(0.5, 200, 9001, "alpha")
    story.request(100, 50001, tid=101, model="alpha", head=300, token=310, end=400)
    story.hop(110, 9001, 60001, 200, tid=101, model="alpha", status=503, head=111, end=112)
    xid = story.hop(200, 9001, 60002, 200, tid=101, model="alpha", head=299, token=309, end=399)
    one = finals(story.records())[1]
    assert one.hop is not None and one.hop.xid == xid


def test_hop_through_two_runners_ends_at_the_last() -> None:
    story = Story(program="llama-swap")
    story.runner(0.5, 200, 9001, None)
    story.runner(0.6, 300, 9002, "alpha", parent=200)
    story.request(100, 50001, model="alpha", head=300, token=310, end=400)
    story.hop(110, 9001, 60001, 200, model="alpha", head=299, token=309, end=399)
    conn = story.conn(9002, 60002)
    story.add(Connect(ts_ns=ms(119), tgid=200, tid=200, conn=conn))
    story.exchange(120, conn=conn, taker=(300, 300), model="alpha", head=298, token=308, end=398)
    assert finals(story.records())[1].runner == 300


def test_client_gone_during_load() -> None:
    story = Story()
    story.file(1)
    story.request(100, 50001, model="alpha", end=400, why="client_gone", status=None)
    story.runner(120, 200, 9001, "alpha")
    story.load(150, 900, 200, 1)
    story.request(2000, 50002, model="alpha", head=2100, token=2110, end=2200)
    story.hop(2001, 9001, 60001, 200, model="alpha", head=2099, token=2109, end=2199)
    gone, then = finals(story.records()).values()
    assert (gone.runner, gone.hop, gone.request.why) == (200, None, "client_gone")
    assert gone.request.first_token_ns is None
    assert [o.ino for o in gone.opens] == [1]
    assert then.resident_before is True, "it was passed on at once, so it was ready"
    assert then.previous_model is None, "nobody was answered before"


def test_server_died() -> None:
    story = Story(role="single", model="alpha")
    story.request(100, 50001, model="alpha")
    story.exit(500, 100, signal=9)
    (died,) = finals(story.records(until=3000)).values()
    assert (died.request.why, died.request.end_ns) == ("server_gone", ms(500))
    assert died.lives[0].exit_signal == 9


def test_runner_died_of_a_signal_between_requests() -> None:
    story = cold_switch()
    story.exit(60_000, 201, signal=11)
    story.runner(120_100, 202, 9003, "beta")
    story.load(120_200, 120_400, 202, 2)
    story.request(120_000, 50003, tid=103, model="beta", token=120_600, end=120_700)
    story.hop(120_500, 9003, 60003, 202, tid=103, model="beta", token=120_599, end=120_699)
    third = finals(story.records(every=500))[3]
    assert (third.runner, third.resident_before) == (202, False)
    assert [(x.tgid, x.exit_signal) for x in third.lives][-2:] == [(201, 11), (202, None)]
    assert [(o.id, o.runner) for o in third.others] == [(1, 200), (2, 201)]


def test_503_while_loading_then_success() -> None:
    story = Story(role="single", model="alpha")
    for i in range(3):
        at = 100 + 200 * i
        story.request(at, 50001 + i, model="alpha", status=503, head=at + 1, end=at + 2)
    story.request(900, 50009, model="alpha", head=950, token=960, end=1000)
    seen = finals(story.records())
    last = seen[4]
    assert [(o.id, o.failed, o.same_body, o.status) for o in last.others] == [
        (i, True, True, 503) for i in (1, 2, 3)
    ]
    assert last.runner == 100
    assert seen[1].request.status == 503


def test_two_servers_on_one_port_number_in_two_network_namespaces() -> None:
    one = Story(front=100, netns=1, role="single", model="alpha", name="a:8080")
    two = Story(front=900, netns=2, role="single", model="beta", name="b:8080")
    one.request(100, 50001, model="alpha", token=150, end=200)
    two.request(100, 50001, model="beta", token=160, end=210)
    seen = finals(ticked([*one.told, *two.told]))
    assert [(e.server, e.front, e.request.read_tid, e.others) for e in seen.values()] == [
        ("a:8080", 100, 100, ()),
        ("b:8080", 900, 900, ()),
    ]
    assert [e.request.first_token_ns for e in seen.values()] == [ms(150), ms(160)]


@pytest.mark.parametrize("endpoint", ["/v1/embeddings", "/v1/chat/completions", "/rerank"])
def test_whole_answers_are_told_once_at_their_end(endpoint: str) -> None:
    story = Story(role="single", model="alpha")
    story.request(100, 50001, endpoint=endpoint, model="alpha", stream=None, head=180, end=900)
    (only,) = fold(story.records())
    assert (only.request.end_ns, only.request.endpoint) == (ms(900), endpoint)


def test_streams_are_told_at_the_first_token_and_at_the_end() -> None:
    story = Story(role="single", model="alpha")
    story.request(100, 50001, model="alpha", head=180, token=190, end=900)
    first, last = fold(story.records())
    assert (first.id, first.request.first_token_ns, first.request.end_ns) == (1, ms(190), None)
    assert (last.id, last.request.end_ns) == (1, ms(900))


def test_a_stream_whose_end_came_with_its_first_token_is_told_once() -> None:
    """The end may be later than the tick, which is of the moment before records were taken."""
    story = Story(role="single", model="alpha")
    story.request(100, 50001, model="alpha", head=180, token=190, end=192)
    told = [r for r in story.records() if not isinstance(r, Tick)]
    (only,) = fold([*told, Tick(ts_ns=ms(191)), Tick(ts_ns=ms(300))])
    assert (only.request.first_token_ns, only.request.end_ns) == (ms(190), ms(192))


def test_health_polls_are_no_requests_but_prove_readiness() -> None:
    story = Story()
    story.file(1)
    story.request(100, 50001, model="alpha", head=900, token=910, end=1000)
    story.runner(120, 200, 9001, "alpha")
    story.load(150, 500, 200, 1)
    for i, status in enumerate((503, 503, 200)):
        at = 300 + 250 * i
        story.hop(
            at, 9001, 60001 + i, 200, endpoint="/health", size=0, stream=None, status=status,
            head=at + 1, end=at + 2,
        )  # fmt: skip
    story.hop(850, 9001, 60009, 200, model="alpha", head=899, token=909, end=999)
    story.request(30, 50002, endpoint="/health", size=0, stream=None, head=31, end=32)
    story.request(40, 50003, endpoint="/v1/models", size=0, stream=None, head=41, end=42)
    seen = finals(story.records())
    assert list(seen) == [1]
    assert [(p.arrival_ns, p.status) for p in seen[1].polls] == [
        (ms(300), 503),
        (ms(550), 503),
        (ms(800), 200),
    ]


def test_lost_records_and_probe_groups_in_the_window() -> None:
    story = Story(role="single", model="alpha")
    story.add(
        Armed(ts_ns=ms(10), group="faults", on=True),
        Armed(ts_ns=ms(50), group="faults", on=False),
        Armed(ts_ns=ms(150), group="faults", on=True),
        Lost(ts_ns=ms(20), kind="span", count=3),
        Lost(ts_ns=ms(160), kind="span", count=7),
        Lost(ts_ns=ms(600), kind="span", count=9),
    )
    story.request(100, 50001, model="alpha", token=190, end=200)
    only = finals(story.records())[1]
    assert [(a.ts_ns, a.on) for a in only.armed] == [(ms(50), False), (ms(150), True)]
    assert only.lost == (Lost(ts_ns=ms(160), kind="span", count=7),)


def sleeper() -> Story:
    """A single server that sleeps after 1.5 s and wakes for the next request."""
    story = Story(role="single", model="alpha")
    story.file(1)
    story.load(-900, -800, 100, 1)
    story.request(100, 50001, model="alpha", head=110, token=120, end=200)
    story.request(300, 50002, model="alpha", head=310, token=320, end=400)
    story.span(2000, 2010, 100, 1, "munmap")
    return story


def test_sleep_and_wake() -> None:
    story = sleeper()
    story.load(3010, 3200, 100, 1, token=2)
    story.request(3000, 50003, model="alpha", head=3300, token=3400, end=3500)
    one, two, three = finals(story.records()).values()
    assert [e.resident_before for e in (one, two, three)] == [None, True, False]
    assert three.runner == 100
    assert [s.op for s in three.spans] == ["mmap"]


def test_asleep_and_not_loaded_again_yet() -> None:
    story = sleeper()
    story.request(3000, 50003, model="alpha", end=3005, why="client_gone", status=None)
    assert finals(story.records())[3].resident_before is False


def test_faults_inside_the_prompt_are_no_reload() -> None:
    story = sleeper()
    story.told.pop()  # no munmap
    story.span(3010, 3200, 100, 1, "fault_major", size=64 * MIB)
    story.request(3000, 50003, model="alpha", head=3300, token=3400, end=3500)
    three = finals(story.records())[3]
    assert three.resident_before is True
    assert [s.op for s in three.spans] == ["fault_major"]


def test_a_later_span_replaces_the_provisional_one() -> None:
    story = Story(role="single", model="alpha")
    story.file(1)
    story.span(110, 150, 100, 1, "read", size=3 * MIB)
    story.span(110, 170, 100, 1, "read", size=9 * MIB)
    story.request(100, 50001, model="alpha", token=190, end=200)
    assert [s.bytes for s in finals(story.records())[1].spans] == [9 * MIB]


def test_small_files_bear_on_nothing() -> None:
    story = Story(role="single", model="alpha")
    story.file(1, size=MIB - 1)
    story.span(110, 150, 100, 1, "read", size=3000)
    story.request(100, 50001, model="alpha", token=190, end=200)
    assert finals(story.records())[1].spans == ()


def test_ids_go_on_from_the_start_record_and_its_last_model() -> None:
    story = Story(role="single", model="alpha")
    story.add(Start(ts_ns=1, next_id=41, last_model={"llama-server:8080": "old"}))
    story.request(100, 50001, model="alpha", token=190, end=200)
    story.request(300, 50002, model="beta", token=390, end=400)
    seen = finals(story.records())
    assert [(i, e.previous_model) for i, e in seen.items()] == [(41, "old"), (42, "alpha")]


def test_server_found_only_after_its_first_request() -> None:
    story = Story(role="single", model="alpha")
    story.request(100, 50001, model="alpha", token=300, end=400)
    server = next(r for r in story.told if isinstance(r, Server))
    story.told.remove(server)
    story.add(msgspec.structs.replace(server, ts_ns=ms(250)))
    (only,) = finals(story.records()).values()
    assert (only.request.arrival_ns, only.began_ns) == (ms(100), ms(250))


def test_process_numbers_are_reused() -> None:
    story = Story()
    story.file(1)
    story.runner(10, 200, 9001, "alpha")
    story.exit(50, 200)
    story.runner(150, 200, 9001, "beta")
    story.load(200, 300, 200, 1)
    story.request(100, 50001, model="beta", token=450, end=500)
    story.hop(400, 9001, 60001, 200, model="beta", token=449, end=499)
    only = finals(story.records())[1]
    assert only.resident_before is False
    assert [(x.tgid, x.fork_ns, x.exit_ns) for x in only.lives if x.tgid == 200] == [
        (200, ms(10), ms(50)),
        (200, ms(150), None),
    ]


@pytest.mark.parametrize("apart_ms", [100, 60_000])
def test_what_is_told_of_others_does_not_grow_with_each_switch(apart_ms: int) -> None:
    """A model after the other, for hours: of each former runner its last request bears on the
    next, but not for ever."""
    story = Story()
    for n in range(150):
        at, tgid = 1000 + n * apart_ms, 200 + n
        if n:
            story.exit(at + 1, tgid - 1, signal=15)
        story.runner(at + 2, tgid, 9001, f"model-{n}")
        story.request(
            at, 50001, tid=101, model=f"model-{n}", head=at + 60, token=at + 70, end=at + 80
        )
        story.hop(
            at + 50, 9001, 60001, tgid, tid=101, model=f"model-{n}",
            head=at + 59, token=at + 69, end=at + 79,
        )  # fmt: skip
    told = finals(story.records(every=apart_ms))
    assert len(told) == 150
    for one in told.values():
        assert len(one.others) <= min(MAX_OTHERS, 2 * LONG_LOOKBACK_NS // ms(apart_ms) + 1)
        assert [o.id for o in one.others][-1:] == ([one.id - 1] if one.id > 1 else [])
        assert one.previous_model == (f"model-{one.id - 2}" if one.id > 1 else None)


def test_exec_and_discovery_read_before_the_fork() -> None:
    story = Story()
    command = Command(program="llama-server", role="runner", model="alpha", port=9001)
    tail: list[AnyRecord] = [
        Exec(ts_ns=ms(121), tgid=200, comm="llama-server", command=command),
        Process(ts_ns=ms(130), tgid=200, ppid=100, start_ns=ms(120), comm="llama-server"),
        Fork(ts_ns=ms(120), parent=100, child=200, comm="llama-server"),
    ]
    story.request(100, 50001, model="alpha", end=400, why="client_gone", status=None)
    only = finals([*story.told, *tail, *ticked([], until=500)])[1]
    lives = [x for x in only.lives if x.tgid == 200]
    assert [(x.fork_ns, x.exec_ns) for x in lives] == [(ms(120), ms(121))]


def test_settings_and_clock_offset_are_carried() -> None:
    story = Story(role="single", model="alpha")
    story.add(Settings(ts_ns=5, min_ms=100.0, factor=2.0))
    story.request(100, 50001, model="alpha", token=190, end=200)
    only = finals(story.records())[1]
    assert only.settings == Settings(ts_ns=5, min_ms=100.0, factor=2.0)
    assert only.wall_offset_ns == ms(1_000_000)


def open_ones(story: Story) -> list[Evidence]:
    one = Fold()
    for record in story.records():
        one.feed(record)
    assert one.open_ids() == tuple(e.id for e in one.open_requests(ms(300)))
    return one.finish()


def test_open_at_the_end() -> None:
    story = Story(role="single", model="alpha")
    story.request(100, 50001, model="alpha", token=190, end=200)
    story.request(150, 50002, model="alpha")
    (still,) = open_ones(story)
    assert (still.id, still.request.end_ns, still.request.why) == (2, None, None)
    assert [o.id for o in still.others] == [1]


def test_netns_unknown_on_one_side() -> None:
    story = Story(netns=0, role="single", model="alpha")
    story.netns = NETNS
    story.request(100, 50001, model="alpha", token=190, end=200)
    assert list(finals(story.records())) == [1]


def test_a_start_that_nobody_waited_for_is_kept_until_the_runner_serves() -> None:
    story = Story()
    story.file(1)
    story.request(100, 50001, model="alpha", end=1000, why="client_gone", status=None)
    story.runner(120, 200, 9001, "alpha")
    story.load(150, 300, 200, 1)
    story.load(310, 205_000, 200, 1, token=2)
    story.request(150_000, 50002, tid=7, model="alpha", token=210_100, end=210_200)
    story.hop(210_000, 9001, 60001, 200, tid=7, model="alpha", token=210_099, end=210_199)
    second = finals(story.records(every=500))[2]
    assert second.resident_before is False
    assert [s.ts_ns for s in second.spans] == [ms(151), ms(311)]


def test_waking_for_an_earlier_request_is_seen_from_its_arrival() -> None:
    story = sleeper()
    story.load(3010, 3050, 100, 1, token=2)
    story.request(3000, 50003, model="alpha", head=3300, token=3400, end=3500)
    story.request(3100, 50004, model="alpha", head=3300, token=3450, end=3550)
    fourth = finals(story.records())[4]
    assert [s.ts_ns for s in fourth.spans] == [ms(3011)]
    assert [(o.id, o.runner) for o in fourth.others] == [(2, 100), (3, 100)]


def test_asleep_is_remembered_as_long_as_the_process_lives() -> None:
    story = sleeper()
    story.request(400_000, 50003, model="alpha", end=400_005, why="client_gone", status=None)
    assert finals(story.records(every=1000))[3].resident_before is False


def test_weights_of_a_runner_are_known_long_after_its_load() -> None:
    story = cold_switch()
    at = 3_000_000
    story.request(at, 50003, tid=103, model="beta", head=at + 9, token=at + 10, end=at + 90)
    story.hop(at + 1, 9002, 60003, 201, tid=103, model="beta", token=at + 9, end=at + 89)
    third = finals(story.records(every=10_000))[3]
    assert (third.resident_before, third.previous_model, third.runner) == (True, "beta", 201)
    assert [f.ino for f in third.files] == [2]
    assert [(o.id, o.end_ns) for o in third.others] == [(2, ms(1500))]


def test_whole_answers_count_as_served() -> None:
    story = Story(role="single", model="alpha")
    for i in range(3):
        at = 100 + 1000 * i
        model = None if i == 1 else "alpha"
        story.request(at, 50001, model=model, stream=False, head=at + 90, end=at + 100)
    seen = finals(story.records())
    assert [e.previous_model for e in seen.values()] == [None, "alpha", "alpha"]
    assert [e.resident_before for e in seen.values()] == [None, True, True]


def test_hop_of_a_whole_answer_after_a_failed_one() -> None:
    story = Story()
    story.runner(0.5, 200, 9001, "alpha")
    story.request(100, 50001, tid=101, stream=False, head=300, end=400)
    xid = story.hop(110, 9001, 60001, 200, tid=101, stream=False, head=299, end=350)
    story.hop(360, 9001, 60002, 200, tid=101, stream=False, status=503, head=361, end=362)
    only = finals(story.records())[1]
    assert only.hop is not None and only.hop.xid == xid


def test_previous_model_under_another_name_is_the_same() -> None:
    story = Story(role="single", model="alpha")
    story.request(100, 50001, model="/models/alpha.gguf", token=190, end=200)
    story.request(300, 50002, model="alpha", token=390, end=400)
    story.request(500, 50003, model="alpine", token=590, end=600)
    seen = finals(story.records())
    assert [e.previous_model for e in seen.values()] == [None, "alpha", "alpha"]


def test_takes_read_after_all_facts_of_a_kept_connection() -> None:
    story = Story(role="single", model="alpha")
    for at in (100, 120):
        story.request(at, 50001, model="alpha", token=at + 5, end=at + 10)
    takes = [r for r in story.told if isinstance(r, Take)]
    rest = [r for r in story.told if not isinstance(r, Take)]
    seen = finals([*rest, *takes, *ticked([], until=500)])
    assert [e.request.read_ns for e in seen.values()] == [ms(100.3), ms(120.3)]
