"""`derive`: whole values of simple requests, and that no evidence, however odd, breaks it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.evidence_build import (
    ALPHA,
    BETA,
    FRONT,
    HOP,
    MS,
    NEW,
    OLD,
    T0,
    command,
    evidence,
    front,
    hop,
    life,
    ns,
    opened,
    request,
    span,
    warm,
)
from tests.unit.scenarios import cold_router, router, warm_router
from tracer.derive import derive, uncached_tokens, warm_record
from tracer.derived import PHASES, Derived, Facts, Spike
from tracer.evidence import Evidence, Exchange, Life, Other
from tracer.records import (
    Armed,
    Command,
    File,
    Insert,
    Lost,
    Open,
    Says,
    Signal,
    Span,
    Warm,
)


def test_a_warm_request_whole() -> None:
    e = warm_router()
    d = derive(e)
    assert d == Derived(
        evidence=e,
        model="beta",
        kind="chat/stream",
        outcome="ok",
        died_in=None,
        ttft_ns=30 * MS,
        window_ns=30 * MS,
        first_decode_ns=14 * MS,
        first_answer_ns=None,
        prompt_tokens=26,
        cached_tokens=0,
        tokens=None,
        timeline=d.timeline,
        phases=d.phases,
        facts=Facts(
            weights=("beta.gguf",), weights_bytes=0, weights_bytes_from_disk=0, major_faults=0,
            minor_faults=0, gpu_calls=None, processes_started=0, processes_exited=0,
            reclaim_ns=None, resident_before=True, switched_from=None,
        ),
        spike=Spike(is_spike=False),
        warm=True,
        complete=True,
        incomplete_because=None,
    )  # fmt: skip


def test_what_the_history_keeps_of_it() -> None:
    assert warm_record(derive(warm_router())) == Warm(
        ts_ns=T0, server="llama-server:8080", model="beta", kind="chat/stream", ttft_ns=30 * MS,
        prompt_tokens=26, phases_ns={**dict.fromkeys(PHASES, 0), "queue": MS, "prefill": 29 * MS},
    )  # fmt: skip
    assert warm_record(derive(router())) is None


def test_decoding_is_no_part_of_what_a_whole_reply_is_judged_by() -> None:
    e = warm_router(
        hop=hop(arrival=1, stream=False, event_stream=False, head=5000, end=5000,
                says=Says(predicted_ms=4950.0, prompt_n=26)),
        req=request(stream=False, event_stream=False, read=0.2, head=5001, end=5001),
        baseline=warm(kind="chat/whole"),
    )  # fmt: skip
    d = derive(e)
    assert (d.kind, d.ttft_ns) == ("chat/whole", 5001 * MS)
    assert d.spike == Spike(is_spike=False, typical_ns=30 * MS)
    kept = warm_record(d)
    assert kept is not None
    assert kept.ttft_ns == 51 * MS


@pytest.mark.parametrize("said", [float("nan"), float("inf"), -5.0, 1e300])
def test_durations_that_can_be_none_are_not_believed(said: float) -> None:
    e = warm_router(
        hop=hop(arrival=1, stream=False, event_stream=False, head=500, end=500,
                says=Says(prompt_ms=said, predicted_ms=said)),
        req=request(stream=False, event_stream=False, read=0.2, head=501, end=501),
    )  # fmt: skip
    d = derive(e)
    assert d.ttft_ns == d.window_ns == 501 * MS
    assert d.phases.phases_ns["prefill"] == 500 * MS


def test_the_fold_may_ask_at_the_first_token() -> None:
    """Still being answered: all of TTFT is known, so the verdict is too."""
    d = derive(cold_router(req=request(read=1.3, head=6035.5, first_token=6114, why=None)))
    assert (d.outcome, d.complete, d.ttft_ns) == ("open", True, 6114 * MS)
    assert d.spike.cause == "load.disk"


def test_a_request_without_a_token_and_still_open() -> None:
    d = derive(cold_router(hop=None, req=request(read=1.3, why=None, status=None)))
    assert (d.outcome, d.ttft_ns, d.complete) == ("open", None, False)
    assert d.incomplete_because == "open: the request was still under way"
    assert d.window_ns == 5882 * MS
    assert not d.spike.is_spike


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lost": (Lost(ts_ns=T0, kind="span", count=3),)}, "records.lost"),
        ({"lost": (Lost(ts_ns=T0, kind="span.lookup", count=17),)}, "records.lost"),
        ({"began_ns": T0 + 1}, "began.late"),
        (
            {
                "armed": (Armed(ts_ns=ns(52), group="files", on=True),),
                "hop": hop(arrival=1, read=1.1, body=1, head=99, first_token=99, end=100),
                "req": request(read=0.2, head=100, first_token=100, end=101),
            },
            "armed.late",
        ),
        ({"req": request(first_token=30, end=40, read=None)}, "read.unseen"),
        ({"req": request(first_token=30, end=40, why="gap")}, "end.unseen"),
        ({"req": request(first_token=30, end=40, unreadable="compressed")}, "unreadable"),
        ({"hop": None}, "hop.unseen"),
        ({"hop": None, "runner": None, "lives": ()}, "engine.unseen"),
    ],
)
def test_what_makes_a_request_incomplete(changes: dict[str, object], reason: str) -> None:
    d = derive(warm_router(**changes))
    assert not d.complete
    assert d.incomplete_because is not None
    assert d.incomplete_because.partition(":")[0] == reason


def test_a_few_events_of_unknown_files_are_no_loss() -> None:
    d = derive(warm_router(lost=(Lost(ts_ns=T0, kind="span.lookup", count=16),)))
    assert (d.complete, d.warm) == (True, True)


def test_probes_armed_before_the_request_are_as_good_as_ever() -> None:
    d = derive(warm_router(armed=(Armed(ts_ns=T0 - 1, group="files", on=True),)))
    assert d.complete
    assert d.facts.weights_bytes == 0


def test_what_no_probe_watched_is_unknown() -> None:
    off = (Armed(ts_ns=T0 - 1, group="faults", on=False),)
    d = derive(warm_router(armed=off))
    assert (d.facts.major_faults, d.facts.minor_faults) == (None, None)
    assert d.facts.weights_bytes == 0
    late = derive(router(armed=(Armed(ts_ns=ns(870), group="files", on=True),)))
    assert (late.facts.weights_bytes, late.facts.weights_bytes_from_disk) == (None, None)
    never = derive(router(armed=(Armed(ts_ns=T0 - 1, group="files", on=False),)))
    assert (never.facts.weights_bytes, never.facts.weights_bytes_from_disk) == (None, None)


def test_a_start_whose_weights_were_not_seen() -> None:
    d = derive(router(files=(), opens=(), spans=()))
    assert d.incomplete_because == (
        "weights.unseen: a runner started and its weight files were not seen"
    )
    assert d.facts.weights == ()


def test_weights_told_by_size_alone() -> None:
    big = msgspec.structs.replace(BETA, fmt=None)
    library = msgspec.structs.replace(ALPHA, fmt=None, path="/usr/lib/libcuda.so.1")
    d = derive(router(files=(big, library)))
    assert d.phases.phases_ns == derive(router()).phases.phases_ns
    assert d.incomplete_because == "weights.guessed: weight files were told by size alone"


@pytest.mark.parametrize(
    ("req", "runner", "model"),
    [
        (request(model="asked", reply_model="said", first_token=1, end=2), NEW, "asked"),
        (request(model=None, reply_model="said", first_token=1, end=2), NEW, "said"),
        (request(model=None, first_token=1, end=2), NEW, "beta"),
        (request(model=None, first_token=1, end=2), OLD, "alpha"),
    ],
)
def test_the_models_name(req: Exchange, runner: int, model: str) -> None:
    nameless = life(OLD, None, command=Command(program="x", role="runner"))
    e = evidence(
        req, hop=hop(arrival=0, first_token=1, end=2), runner=runner,
        lives=(front(), life(NEW, "beta"), nameless),
        spans=(span(0, 1, "fault_minor", 4096, tgid=OLD, file=ALPHA),),
    )  # fmt: skip
    assert derive(e).model == model


def test_weights_without_a_known_path_are_named_by_the_command_line() -> None:
    hidden = msgspec.structs.replace(BETA, path=None)
    assert derive(router(files=(hidden,))).facts.weights == ("beta.gguf",)
    two = (hidden, msgspec.structs.replace(ALPHA, path=None))
    spans = (span(70, 71, "read", 4096, file=ALPHA), *router().spans)
    assert derive(router(files=two, spans=spans)).facts.weights == ("inode-10", "inode-11")


def test_names_of_one_model_in_two_spellings_are_no_switch() -> None:
    assert derive(warm_router(previous_model="beta.gguf")).facts.switched_from is None


@pytest.mark.parametrize(
    ("says", "tokens"),
    [
        (Says(prompt_n=5, cache_n=20), 5),
        (Says(prompt_tokens=25, cache_n=20), 5),
        (Says(prompt_tokens=25), 25),
        (Says(), None),
    ],
)
def test_tokens_that_were_worked_on(says: Says, tokens: int | None) -> None:
    assert uncached_tokens(says) == tokens


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"why": "client_gone"}, "client_gone"),
        ({"why": "server_gone"}, "server_died"),
        ({"status": 503, "event_stream": False}, "server_error"),
        ({"status": 400, "event_stream": False}, "server_error"),
        ({"error": True}, "server_error"),
        ({}, "ok"),
        ({"why": "gap", "first_token": 3}, "ok"),
        ({"why": "gap"}, "open"),
        ({"why": None, "end": None}, "open"),
    ],
)
def test_outcomes(changes: dict[str, object], outcome: str) -> None:
    assert derive(warm_router(req=request(**{"end": 10, **changes}))).outcome == outcome


def test_stopped_helpers_and_decoys_do_not_count_as_started() -> None:
    e = router(
        lives=(
            front(),
            life(NEW, "beta", fork=67),
            life(401, None, fork=20, exit=40, command=command(None, "decoy")),
        )
    )
    d = derive(e)
    assert (d.facts.processes_started, d.facts.processes_exited) == (1, 0)
    assert d.phases.stages_ns["spawn.device"] == 20 * MS


def test_reads_across_the_windows_edge_count_by_their_share() -> None:
    e = warm_router(
        spans=(span(-10, 10, "read_direct", 4 << 20, token=1),), opens=(opened(-11, 1),)
    )
    assert derive(e).facts.weights_bytes_from_disk == 2 << 20


# --- whatever the evidence -----------------------------------------------------

times = st.integers(T0 - 100, T0 + 1000) | st.just(0)
maybe = st.none() | times
tgids = st.sampled_from([FRONT, OLD, NEW, 7])
counts = st.integers(0, 1 << 22)
models = st.none() | st.sampled_from(["alpha", "beta", ""])
ids = st.integers(0, 5)
inos = st.sampled_from([10, 11, 12])

milliseconds = st.none() | st.floats(-1, 1e9) | st.just(float("inf"))
says = st.none() | st.builds(
    Says, prompt_ms=milliseconds, predicted_ms=milliseconds,
    prompt_n=st.none() | counts, cache_n=st.none() | counts, prompt_tokens=st.none() | counts,
)  # fmt: skip
exchanges = st.builds(
    Exchange, xid=ids, conn=st.just(HOP),
    endpoint=st.sampled_from([None, "/v1/chat/completions", "/api/chat", "/v1/embeddings", "/x"]),
    arrival_ns=times, server_tgid=tgids, body_ns=maybe, read_ns=maybe, head_ns=maybe,
    first_token_ns=maybe, second_token_ns=maybe, first_answer_ns=maybe, end_ns=maybe,
    why=st.sampled_from([None, "complete", "client_gone", "server_gone", "gap"]),
    status=st.sampled_from([None, 200, 400, 503]), stream=st.none() | st.booleans(),
    event_stream=st.booleans(), error=st.booleans(), model=models, says=says,
)  # fmt: skip
commands = st.none() | st.builds(
    Command, program=st.sampled_from(["llama-server", "ollama", "vllm"]),
    role=st.sampled_from(["front", "runner", "single", "decoy", "other"]),
    model=models, model_path=models, options=st.sampled_from([(), ("parallel=1",)]),
)  # fmt: skip
signals = st.builds(Signal, ts_ns=times, target=tgids, signal=st.sampled_from([9, 11, 15]),
                    sender=st.none() | tgids)  # fmt: skip
lives = st.builds(
    Life, tgid=tgids, ppid=tgids, comm=st.just("x"), command=commands, start_ns=maybe,
    fork_ns=maybe, exec_ns=maybe, listen_ns=maybe, exit_ns=maybe,
    exit_signal=st.sampled_from([None, 9, 11, 15]),
    signals=st.lists(signals, max_size=2).map(tuple),
)  # fmt: skip
files = st.builds(
    File, ts_ns=st.just(0), dev=st.just(1), ino=inos, size=counts,
    path=st.sampled_from([None, "/m/a.gguf", "b"]), fmt=st.sampled_from([None, "gguf"]),
    fs=st.sampled_from([None, "ext4", "nfs"]),
)  # fmt: skip
opens = st.builds(Open, ts_ns=times, tgid=tgids, tid=tgids, dev=st.just(1), ino=inos, token=ids)
spans = st.builds(
    Span, ts_ns=times, end_ns=times, tgid=tgids, tid=tgids, dev=st.just(1), ino=inos, token=ids,
    op=st.sampled_from(["read", "read_direct", "mmap", "madvise", "munmap", "fault_minor",
                        "fault_major"]),
    count=counts, bytes=counts, busy_ns=st.integers(-5, 2000), populate=st.booleans(),
)  # fmt: skip
inserts = st.builds(Insert, ts_ns=times, end_ns=times, dev=st.just(1), ino=inos, pages=counts,
                    tgid=tgids)  # fmt: skip
others = st.builds(
    Other, xid=ids, arrival_ns=times, id=st.none() | ids, model=models, runner=st.none() | tgids,
    runner_arrival_ns=maybe, runner_head_ns=maybe, first_token_ns=maybe, end_ns=maybe,
    status=st.sampled_from([None, 200, 503]), failed=st.booleans(), same_body=st.booleans(),
)  # fmt: skip


def _some(strategy: st.SearchStrategy[object], size: int) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(strategy, max_size=size).map(tuple)


anything = st.builds(
    Evidence, id=ids, server=st.just("s"), program=st.sampled_from(["llama-server", "ollama"]),
    front=tgids, request=exchanges, began_ns=times, wall_offset_ns=st.just(0),
    hop=st.none() | exchanges, runner=st.none() | tgids, lives=_some(lives, 5),
    files=_some(files, 3), opens=_some(opens, 6), spans=_some(spans, 10),
    inserts=_some(inserts, 6), polls=_some(exchanges, 2), others=_some(others, 4),
    previous_model=models, resident_before=st.none() | st.booleans(),
    baseline=st.sampled_from([(), warm(0.0001, server="s")]),
)  # fmt: skip


@given(anything)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_evidence_is_explained_and_adds_up(e: Evidence) -> None:
    d = derive(e)
    assert (
        sum(d.phases.phases_ns.values()) == d.window_ns == d.timeline.end_ns - d.timeline.start_ns
    )
    assert d.ttft_ns is None or d.ttft_ns == d.window_ns
    assert sum(d.phases.stages_ns.values()) == d.window_ns
    assert all(c.end_ns > c.start_ns for c in d.timeline.claims)
    assert (d.ttft_ns is None) or d.died_in is None
    assert d.complete == (d.incomplete_because is None)
    s = d.spike
    told = (s.first_expanded, s.dominant, s.cause, s.because, s.advice, s.confidence)
    assert (None not in told) if s.is_spike else set(told) == {None}
    assert derive(e) == d
    packed = msgspec.msgpack.encode(d)
    assert msgspec.msgpack.decode(packed, type=Derived) == d


def test_a_runner_that_dies_within_an_answer_is_not_hidden_by_its_front() -> None:
    """The front ends its reply in good order; the runner's own was broken off."""
    whole = cold_router()
    assert whole.hop is not None
    assert whole.request.end_ns is not None
    end_ns = whole.request.end_ns - MS
    broken = msgspec.structs.replace(whole.hop, why="server_gone", end_ns=end_ns)
    lives = tuple(
        msgspec.structs.replace(x, exit_ns=end_ns, exit_signal=9) if x.tgid == whole.runner else x
        for x in whole.lives
    )
    assert derive(msgspec.structs.replace(whole, hop=broken, lives=lives)).outcome == "server_died"
    assert derive(msgspec.structs.replace(whole, hop=broken)).outcome == "ok", "it only closed"
    assert derive(msgspec.structs.replace(whole, lives=lives)).outcome == "ok", (
        "it had answered whole"
    )
