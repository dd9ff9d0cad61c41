"""The pipeline: every request explained against what was warm before it."""

from __future__ import annotations

import msgspec

from tests.unit.build import Story, ticked
from tracer.derived import Derived
from tracer.pipeline import WARM_KEPT, Pipeline
from tracer.records import AnyRecord, Tick, Warm

SERVER = "llama-server:8080"


def warm_up(count: int, story: Story | None = None, at: float = 100) -> Story:
    """A single server, and requests a second apart that take 30 ms each."""
    story = story or Story(role="single", model="alpha")
    for i in range(count):
        begun = at + 1000 * i
        story.request(
            begun, 50001 + i, model="alpha", head=begun + 20, token=begun + 30, end=begun + 90
        )
    return story


def run(pipeline: Pipeline, records: list[AnyRecord]) -> list[Derived]:
    return [derived for record in records for derived in pipeline.feed(record)]


def ends(found: list[Derived]) -> list[Derived]:
    return [d for d in found if d.evidence.request.end_ns is not None]


def test_history_grows_by_warm_requests_after_they_were_explained() -> None:
    found = run(Pipeline(), warm_up(4).records())
    assert [len(d.evidence.baseline) for d in ends(found)] == [0, 1, 2, 3]
    assert [d.ttft_ns for d in ends(found)] == [30_000_000] * 4
    told = [(d.evidence.id, d.evidence.request.end_ns is None) for d in found]
    assert told == [(i, first) for i in range(1, 5) for first in (True, False)]


def test_history_keeps_the_last_ones() -> None:
    pipeline = Pipeline()
    run(pipeline, warm_up(WARM_KEPT + 5).records(every=100))
    kept = [r for r in pipeline.snapshot() if isinstance(r, Warm)]
    assert len(kept) == WARM_KEPT
    assert kept[-1].ts_ns == 100_000_000 + 1_000_000_000 * (WARM_KEPT + 4)
    assert {(w.server, w.model, w.kind) for w in kept} == {(SERVER, "alpha", "chat/stream")}


def test_history_is_seeded_by_context_and_split_by_kind() -> None:
    seeds = [
        Warm(
            ts_ns=i,
            server=server,
            model=model,
            kind=kind,
            ttft_ns=25_000_000,
            prompt_tokens=10,
            phases_ns={"prefill": 25_000_000},
        )
        for i in range(6)
        for server, model, kind in (
            (SERVER, "alpha", "chat/stream"),
            (SERVER, "alpha", "chat/whole"),
            (SERVER, "beta", "chat/stream"),
            ("other:1", "alpha", "chat/stream"),
        )
    ]
    (last,) = ends(run(Pipeline(), [*seeds, *warm_up(1).records()]))
    assert list(last.evidence.baseline) == [
        w for w in seeds if (w.server, w.model, w.kind) == (SERVER, "alpha", "chat/stream")
    ]
    assert last.spike.typical_ns == 25_000_000


def test_a_slow_request_is_held_against_the_warm_ones_and_not_learnt() -> None:
    story = warm_up(6)
    story.file(1)
    story.load(-900, -800, 100, 1)
    at = 10_000
    story.span(at + 10, at + 1900, 100, 1, "fault_major")
    story.request(at, 60001, model="alpha", head=at + 5, token=at + 2000, end=at + 2100)
    pipeline = Pipeline()
    slow = ends(run(pipeline, story.records()))[-1]
    assert slow.spike.is_spike
    assert slow.spike.typical_ns == 30_000_000
    assert slow.spike.dominant == "load"
    assert len([r for r in pipeline.snapshot() if isinstance(r, Warm)]) == 6


def test_a_pipeline_begun_from_a_snapshot_goes_on_the_same() -> None:
    records = warm_up(8).records()
    cut = next(i for i, r in enumerate(records) if r == Tick(ts_ns=4_150_000_000)) + 1
    whole = Pipeline()
    run(whole, records[:cut])
    begun = Pipeline()
    assert ends(run(begun, whole.snapshot())) == []
    assert whole.open_requests() == begun.open_requests() == (5,)
    assert run(begun, records[cut:]) == run(whole, records[cut:])


def test_what_is_open() -> None:
    story = Story(role="single", model="alpha")
    story.request(100, 50001, model="alpha")
    pipeline = Pipeline()
    assert run(pipeline, story.records()) == []
    assert pipeline.open_requests() == (1,)
    (so_far,) = pipeline.explain_open(500_000_000)
    assert (so_far.outcome, so_far.ttft_ns) == ("open", None)
    (at_last,) = pipeline.finish()
    assert at_last.outcome == "open"


def test_baseline_follows_what_deriving_says_of_model_and_kind() -> None:
    """The guess is only a guess: an answer that names another model has its own history."""

    def renamed(evidence: object) -> Derived:
        derived = Pipeline()._derive(evidence)  # type: ignore[arg-type]
        return msgspec.structs.replace(derived, model=f"m{derived.evidence.id % 2}")

    found = ends(run(Pipeline(renamed), warm_up(6).records()))
    assert [len(d.evidence.baseline) for d in found] == [0, 0, 1, 1, 2, 2]
    assert [{w.model for w in d.evidence.baseline} for d in found[2:]] == [
        {"m1"},
        {"m0"},
        {"m1"},
        {"m0"},
    ]


def test_two_servers_have_their_own_history() -> None:
    one = warm_up(3, Story(front=100, netns=1, role="single", model="alpha", name="a:8080"))
    two = warm_up(3, Story(front=900, netns=2, role="single", model="alpha", name="b:8080"), 600)
    found = ends(run(Pipeline(), list(ticked([*one.told, *two.told]))))
    assert [(d.evidence.server, len(d.evidence.baseline)) for d in found] == [
        (server, count) for count in range(3) for server in ("a:8080", "b:8080")
    ]
