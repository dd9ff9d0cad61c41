"""Requests for tests of the export: one explained by hand, and arbitrary ones."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from hypothesis import strategies as st

from tracer.derived import PHASES, Derived, Facts, Interval, Outcome, Phases, Spike, Timeline
from tracer.evidence import Evidence, Exchange, Life
from tracer.records import (
    Command,
    Conn,
    File,
    Insert,
    Memory,
    Op,
    Open,
    Resident,
    Signal,
    Span,
)

MS = 1_000_000
CONN = Conn(0, "127.0.0.1", 8080, "127.0.0.1", 40000)
GGUF = File(
    ts_ns=0, dev=(8 << 20) | 1, ino=77, size=40960, path="/models/beta.gguf", fmt="gguf", fs="ext4"
)
T = TypeVar("T")


def exchange(arrival_ns: int, **fields: Any) -> Exchange:
    """An exchange on the test connection."""
    plain: dict[str, Any] = {"xid": 1, "conn": CONN, "endpoint": "/v1/chat/completions"}
    return Exchange(arrival_ns=arrival_ns, **(plain | fields))


def derived(
    evidence: Evidence,
    intervals: tuple[Interval, ...] = (),
    claims: tuple[Interval, ...] = (),
    **fields: Any,
) -> Derived:
    """A request with what the export reads set and the rest unknown."""
    arrival = evidence.request.arrival_ns
    first = evidence.request.first_token_ns
    window = fields.pop("window_ns", 0 if first is None else first - arrival)
    plain: dict[str, Any] = {
        "model": "beta",
        "kind": "chat",
        "outcome": "ok",
        "died_in": None,
        "ttft_ns": window,
        "first_decode_ns": None,
        "first_answer_ns": None,
        "prompt_tokens": None,
        "cached_tokens": None,
        "tokens": 8,
        "facts": facts(),
        "spike": Spike(is_spike=False),
        "warm": False,
        "complete": True,
        "incomplete_because": None,
    }
    return Derived(
        evidence=evidence,
        window_ns=window,
        timeline=Timeline(
            start_ns=arrival,
            end_ns=arrival + window,
            claims=claims,
            prompt_start_ns=None,
            triggered_by=None,
            waited_for=(),
            retry_of=(),
            engine_seen=True,
        ),
        phases=Phases(intervals=intervals, phases_ns={}, stages_ns={}, overlaps_ns={}),
        **(plain | fields),
    )


def facts() -> Facts:
    """Evidence of which nothing is known."""
    unknown: dict[str, Any] = dict.fromkeys(Facts.__struct_fields__)
    return Facts(**(unknown | {"weights": ()}))


def switch(at: int = 1_000 * MS) -> Derived:
    """A cold switch in milliseconds from `at`: evict to 10, spawn to 30, load to 80, prefill."""

    def ms(value: float) -> int:
        return at + round(value * MS)

    evidence = Evidence(
        id=17,
        server="llama-server:8080",
        program="llama-server",
        front=100,
        runner=300,
        began_ns=0,
        wall_offset_ns=5,
        request=exchange(ms(0), read_ns=ms(1), first_token_ns=ms(100), end_ns=ms(120), status=200),
        hop=exchange(ms(82), xid=2, server_tgid=300, first_token_ns=ms(99), end_ns=ms(119)),
        lives=(
            Life(tgid=100, ppid=1, comm="llama-server", start_ns=7),
            Life(
                tgid=200,
                ppid=100,
                comm="llama-server",
                fork_ns=ms(-900),
                exit_ns=ms(9),
                exit_code=0,
                command=Command(program="llama-server", role="runner", model="alpha"),
                signals=(Signal(ts_ns=ms(2), target=200, signal=15, sender=100),),
            ),
            Life(tgid=300, ppid=100, comm="llama-server", fork_ns=ms(10), exec_ns=ms(11)),
        ),
        files=(GGUF,),
        opens=(Open(ts_ns=ms(30), tgid=300, tid=301, dev=GGUF.dev, ino=77, token=1),),
        spans=(
            _span(ms(31), ms(40), "read", 8192),
            _span(ms(35), ms(80), "mmap", 40960, populate=True),
        ),
        inserts=(Insert(ts_ns=ms(35), end_ns=ms(75), dev=GGUF.dev, ino=77, pages=10, tgid=300),),
        resident=(Resident(ts_ns=ms(80), dev=GGUF.dev, ino=77, cached_bytes=10240),),
        memory=(Memory(ts_ns=ms(90), tgid=300, rss_bytes=1 << 20),),
    )
    tiling = (
        ("queue.socket", 0, 1),
        ("evict.stop", 1, 10),
        ("spawn.exec", 10, 30),
        ("load.meta", 30, 35),
        ("load.disk", 35, 80),
        ("prefill.tokenize", 80, 85),
        ("prefill.prompt", 85, 100),
    )
    intervals = tuple(
        Interval(stage=stage, start_ns=ms(start), end_ns=ms(end)) for stage, start, end in tiling
    )
    return derived(evidence, intervals, intervals[2:])


def _span(start: int, end: int, op: Op, size: int, populate: bool = False) -> Span:
    return Span(
        ts_ns=start,
        end_ns=end,
        tgid=300,
        tid=301,
        dev=GGUF.dev,
        ino=77,
        token=1,
        op=op,
        count=1,
        bytes=size,
        busy_ns=end - start,
        populate=populate,
    )


# --- arbitrary evidence: few ids and times, so that everything meets everything ----------

times = st.integers(0, 40) | st.integers(0, 1 << 62)
tgids = st.integers(1, 4)
inos = st.integers(1, 2)
names = st.text(max_size=8)


def maybe(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    """Unknown, or a value."""
    return st.none() | strategy


def many(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    """A few of them."""
    return st.lists(strategy, max_size=6).map(tuple)


exchanges = st.builds(
    exchange,
    times,
    read_ns=maybe(times),
    head_ns=maybe(times),
    first_token_ns=maybe(times),
    end_ns=maybe(times),
    endpoint=maybe(names),
    body_ns=maybe(times),
)
signals = st.builds(
    Signal, ts_ns=times, target=tgids, signal=st.integers(1, 64), sender=maybe(tgids)
)
lives = st.builds(
    Life,
    tgid=tgids,
    ppid=tgids,
    comm=names,
    start_ns=maybe(times),
    fork_ns=maybe(times),
    exec_ns=maybe(times),
    listen_ns=maybe(times),
    exit_ns=maybe(times),
    signals=many(signals),
    command=st.none(),
    exe=maybe(names),
)
files = st.builds(
    File,
    ts_ns=times,
    dev=st.just(1),
    ino=inos,
    size=st.integers(0, 1 << 40),
    path=maybe(names),
    fmt=st.sampled_from([None, "gguf"]),
    fs=st.none(),
    device=st.none(),
)
opens = st.builds(
    Open, ts_ns=times, tgid=tgids, tid=tgids, dev=st.just(1), ino=inos, token=st.just(0)
)
spans = st.builds(
    Span,
    ts_ns=times,
    end_ns=times,
    tgid=tgids,
    tid=tgids,
    dev=st.just(1),
    ino=inos,
    token=st.just(0),
    op=st.sampled_from(get_args(Op)),
    count=st.integers(1, 9),
    bytes=st.integers(0, 1 << 40),
    busy_ns=times,
    populate=st.booleans(),
    advice=st.none(),
)
inserts = st.builds(
    Insert,
    ts_ns=times,
    end_ns=times,
    dev=st.just(1),
    ino=inos,
    pages=st.integers(0, 1 << 30),
    tgid=tgids,
)
residents = st.builds(
    Resident, ts_ns=times, dev=st.just(1), ino=inos, cached_bytes=st.integers(0, 1 << 41)
)
memories = st.builds(Memory, ts_ns=times, tgid=tgids, rss_bytes=st.integers(0, 1 << 50))
intervals = st.builds(
    Interval,
    stage=st.sampled_from([*PHASES, *(f"{phase}.x" for phase in PHASES)]),
    start_ns=times,
    end_ns=times,
    estimate=st.booleans(),
    tgid=maybe(tgids),
    tid=st.none(),
)
evidences = st.builds(
    Evidence,
    id=st.integers(1, 3),
    server=st.sampled_from(["a:1", "b:2"]),
    program=st.just("a"),
    front=tgids,
    request=exchanges,
    began_ns=times,
    wall_offset_ns=times,
    hop=maybe(exchanges),
    runner=maybe(tgids),
    lives=many(lives),
    files=many(files),
    opens=many(opens),
    spans=many(spans),
    inserts=many(inserts),
    resident=many(residents),
    memory=many(memories),
    polls=st.just(()),
    others=st.just(()),
    previous_model=st.none(),
    resident_before=st.none(),
    baseline=st.just(()),
)
arbitrary = st.builds(
    derived,
    evidences,
    many(intervals),
    many(intervals),
    window_ns=times,
    ttft_ns=maybe(times),
    outcome=st.sampled_from(get_args(Outcome)),
    model=maybe(names),
)
