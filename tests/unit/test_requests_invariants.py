"""What holds of the fold for any records."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.build import CHAT, Story, fold, ms, ticked
from tracer.evidence import Evidence
from tracer.records import (
    AnyRecord,
    Armed,
    Conn,
    HttpBody,
    HttpEnd,
    HttpHead,
    HttpRequest,
    HttpToken,
    HttpUnreadable,
    Lost,
    Process,
    Server,
    Tick,
)
from tracer.requests import Fold

SMALL: dict[str, st.SearchStrategy[Any]] = {
    "tgid": st.sampled_from([0, 1, 100, 200, 201]),
    "port": st.sampled_from([8080, 9001, 9002]),
    "netns": st.sampled_from([0, 1, 2]),
    "xid": st.integers(1, 5),
    "ino": st.sampled_from([1, 2]),
    "dev": st.just(1),
    "endpoint": st.sampled_from([None, CHAT, "/health", "/v1/embeddings", "/x"]),
    "status": st.sampled_from([200, 404, 503]),
    "model": st.sampled_from([None, "alpha", "beta"]),
    "role": st.sampled_from(["front", "runner", "single", "decoy", "other"]),
    "fmt": st.sampled_from([None, "gguf"]),
}
ALIKE = {"parent": "tgid", "child": "tgid", "ppid": "tgid", "target": "tgid", "sender": "tgid"}
TIMES = st.integers(-5, 40).map(lambda n: n * 97_000_000)
CONNS = st.builds(
    Conn,
    netns=SMALL["netns"],
    server_ip=st.sampled_from(["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.5"]),
    server_port=SMALL["port"],
    client_ip=st.sampled_from(["127.0.0.1", "::1", "10.0.0.9"]),
    client_port=st.sampled_from([50001, 50002]),
)


def of_hint(name: str, hint: Any) -> st.SearchStrategy[Any]:
    """Values of a record's field: few and small, so that records hit each other."""
    if name.endswith("_ns") and hint is int:
        return TIMES
    if ALIKE.get(name, name) in SMALL:
        return SMALL[ALIKE.get(name, name)]
    if hint is Conn:
        return CONNS
    if hint is int:
        return st.sampled_from([0, 1, 15, 4096, 3 << 20])
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return of_struct(hint)
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return st.lists(of_hint("", inner[0]), max_size=2).map(tuple)
    if typing.get_origin(hint) is dict:
        return st.dictionaries(of_hint("tgid", inner[0]), of_hint("", inner[1]), max_size=2)
    if inner and type(None) in inner:
        rest = [of_hint(name, one) for one in inner if one is not type(None)]
        return st.one_of(st.none(), *rest)
    return st.from_type(hint)


def of_struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    fields = {f.name: of_hint(f.name, hints[f.name]) for f in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


RECORDS: st.SearchStrategy[AnyRecord] = st.one_of(
    *[of_struct(kind) for kind in typing.get_args(AnyRecord)],
    of_struct(Tick),
    of_struct(Tick),
    of_struct(HttpRequest),
)


def told(found: list[Evidence]) -> list[tuple[int, int, int | None]]:
    return [(e.id, e.request.xid, e.request.end_ns) for e in found]


LATE = [
    Tick(ts_ns=0),
    Process(ts_ns=0, tgid=0, ppid=0, start_ns=0, comm=""),
    Server(ts_ns=0, name="", program="", tgid=0, netns=0, port=8080),
    HttpRequest(
        ts_ns=0,
        xid=1,
        conn=Conn(0, "127.0.0.1", 8080, "127.0.0.1", 50001),
        method="",
        endpoint=CHAT,
    ),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(RECORDS, max_size=60))
@example(LATE)
@example([*LATE, HttpEnd(ts_ns=0, xid=1, why="complete")])
def test_any_records_are_survived(records: list[AnyRecord]) -> None:
    """Also those that came after the tick that said they were in: the next one decides."""
    one = Fold()
    for record in records:
        one.feed(record)
    again = Fold()
    before = told([e for record in one.snapshot() for e in again.feed(record)])
    ticks = [r.ts_ns for r in records if isinstance(r, Tick)]
    tick = Tick(ts_ns=max([0, *ticks]))
    assert before + told(again.feed(tick)) == told(one.feed(tick))
    assert again.open_ids() == one.open_ids()
    one.open_requests(0)
    one.finish()


@settings(max_examples=300, deadline=None)
@given(st.lists(RECORDS, max_size=60))
def test_one_final_evidence_for_each_id_and_at_most_one_before(records: list[AnyRecord]) -> None:
    seen: dict[int, list[Evidence]] = {}
    for evidence in fold(records):
        seen.setdefault(evidence.id, []).append(evidence)
    for told in seen.values():
        ends = [e.request.end_ns is not None for e in told]
        assert ends in ([False], [True], [False, True])
        assert len({e.request.xid for e in told}) == 1


# --- plausible stories ---------------------------------------------------------------


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """A router that switches between models, with requests that may overlap or fail."""
    story = Story()
    for ino in (1, 2):
        story.file(ino)
    at = 0.0
    tgid, port, loaded, connected = 199, 9000, "", False
    for i in range(draw(st.integers(1, 6))):
        at += draw(st.sampled_from([5.0, 60.0, 400.0, 3000.0, 100_000.0]))
        model = draw(st.sampled_from(["alpha", "beta"]))
        start, ready = at, at + 10
        if model != loaded:
            if loaded:
                story.exit(at + 5, tgid, signal=15)
            tgid, port, loaded = tgid + 1, port + 1, model
            story.runner(at + 10, tgid, port, model)
            ready = at + draw(st.sampled_from([300.0, 100_000.0]))
            story.load(at + 30, ready - 150, tgid, 1 if model == "alpha" else 2)
            connected = False
        took = draw(st.sampled_from([20.0, 200.0, 5000.0]))
        gone = draw(st.integers(0, 5)) == 0
        ends = {"end": ready - 2, "why": "client_gone"} if gone else {
            "head": ready + 4, "token": ready + 5, "end": ready + took,
        }  # fmt: skip
        stream = draw(st.booleans())
        story.request(start, 50001 + i, tid=300 + i, model=model, stream=stream, **ends)
        if not gone:
            kept = draw(st.booleans())
            new = not (kept and connected)
            connected = connected or kept
            story.hop(
                ready, port, 61000 if kept else 60001 + i, tgid, connect=new, tid=300 + i,
                model=model, stream=stream, head=ready + 4, token=ready + 5, end=ready + took - 1,
            )  # fmt: skip
        at = ready if draw(st.booleans()) else ready + took
    story.add(Armed(ts_ns=ms(at / 2), group="faults", on=True))
    story.add(Lost(ts_ns=ms(at / 3), kind="span", count=2))
    return story


EVERY = 600


def by_id(found: list[Evidence], since_ns: int) -> dict[tuple[int, bool], Evidence]:
    return {(e.id, e.request.end_ns is None): e for e in found if e.request.arrival_ns > since_ns}


@settings(max_examples=100, deadline=None)
@given(stories(), st.floats(0, 1))
def test_a_fold_begun_from_a_snapshot_goes_on_the_same(story: Story, part: float) -> None:
    records = story.records(every=EVERY, until=2000)
    ticks = [i for i, r in enumerate(records) if isinstance(r, Tick)]
    cut = ticks[int(part * (len(ticks) - 1))] + 1
    whole = Fold()
    for record in records[:cut]:
        whole.feed(record)
    begun = Fold()
    before = [e for record in whole.snapshot() for e in begun.feed(record)]
    assert [e for e in before if e.request.end_ns is not None] == [], "nothing is told twice"
    since_ns = records[cut - 1].ts_ns
    rest, again = (
        [e for record in records[cut:] for e in one.feed(record)] for one in (whole, begun)
    )
    assert by_id(again, since_ns) == by_id(rest, since_ns)
    assert [e.id for e in again if e.request.end_ns] == [e.id for e in rest if e.request.end_ns]


HTTP = (HttpRequest, HttpBody, HttpHead, HttpToken, HttpEnd, HttpUnreadable)


@settings(max_examples=60, deadline=None)
@given(stories(), st.randoms(use_true_random=False))
def test_how_the_sources_interleave_between_ticks_changes_nothing(
    story: Story, random: Any
) -> None:
    records = story.records(every=EVERY, until=2000)
    mixed: list[AnyRecord] = []
    batch: list[AnyRecord] = []
    for record in records:
        if not isinstance(record, Tick):
            batch.append(record)
            continue
        sources = [[r for r in batch if isinstance(r, HTTP) is http] for http in (True, False)]
        while any(sources):
            mixed.append(random.choice([s for s in sources if s]).pop(0))
        mixed.append(record)
        batch = []
    assert fold(mixed) == fold(records)


@settings(max_examples=60, deadline=None)
@given(stories())
def test_evidence_bears_on_its_window(story: Story) -> None:
    for e in fold(story.records(every=100, until=2000)):
        end_ns = e.request.end_ns
        lives = {life.tgid for life in e.lives}
        assert e.front in lives
        assert e.runner is None or e.runner in lives
        touched = {(o.dev, o.ino) for o in e.opens} | {(s.dev, s.ino) for s in e.spans}
        assert {(f.dev, f.ino) for f in e.files} == touched
        assert {s.tgid for s in e.spans} <= lives
        if end_ns is not None:
            assert all(s.ts_ns <= end_ns for s in e.spans)
            assert all(o.arrival_ns <= end_ns for o in e.others)
        assert e.id not in {o.id for o in e.others}


def test_state_stays_small_over_a_long_time() -> None:
    story = Story(role="single", model="alpha")
    story.file(1)
    story.load(-90, -80, 100, 1)
    one = Fold()
    for record in ticked(story.told, until=100):
        one.feed(record)
    sizes = []
    for hour in range(3):
        for i in range(1000):
            at = 1000 + 3600 * 1000 * hour + 3000 * i
            step = Story(role="single", model="alpha")
            step.told.clear()
            step.request(at, 40000 + i % 20000, model="alpha", token=at + 20, end=at + 100)
            step.span(at + 5, at + 6, 100, 1, "fault_minor", size=4096)
            for record in ticked(step.told, every=1e12):
                if not isinstance(record, Tick):
                    one.feed(record)
            one.feed(Tick(ts_ns=ms(at + 200)))
        sizes.append(len(one.snapshot()))
    assert sizes[1] == sizes[2] < 4000
