"""Verdicts where it is not plain which runner served a request, or no hop was seen."""

from __future__ import annotations

from tests.unit.build import MIB, Story, ms
from tests.unit.evidence_build import NEW, evidence, front, life, other, request, warm
from tests.unit.evidence_build import ms as in_ms
from tests.unit.verdicts import told
from tracer.derive import derive
from tracer.records import Command, Exec, Fork, Insert, Listen, Span


def test_a_hop_goes_to_the_request_whose_model_its_runner_has() -> None:
    """The bodies of hops name no model. While beta is loaded for one request another one is
    served by alpha's runner: each must be told as served by its own model's runner."""
    story = Story(program="ollama")
    story.runner(0.5, 200, 9001, "sha256-aa")
    story.request(
        1000, 50001, tid=101, endpoint="/api/chat", model="alpha", size=300,
        head=1040, token=1040, end=1100,
    )  # fmt: skip
    story.hop(
        1002, 9001, 60001, 200, tid=111, endpoint="/completion", size=120,
        head=1039, token=1039, end=1099,
    )  # fmt: skip
    story.request(
        5000, 50002, tid=102, endpoint="/api/chat", model="beta", size=310,
        head=12_101, token=12_101, end=12_300,
    )  # fmt: skip
    story.runner(5100, 300, 9002, "sha256-bb")
    story.file(2)
    story.load(5200, 11_900, 300, 2)
    story.request(
        6000, 50003, tid=103, endpoint="/api/chat", model="alpha", size=320,
        head=6031, token=6031, end=6100,
    )  # fmt: skip
    story.hop(
        6002, 9001, 60003, 200, tid=113, endpoint="/completion", size=130,
        head=6030, token=6030, end=6099,
    )  # fmt: skip
    story.hop(
        12_010, 9002, 60002, 300, tid=112, endpoint="/completion", size=140,
        head=12_100, token=12_100, end=12_299,
    )  # fmt: skip
    found = told(story)
    assert {i: d.evidence.runner for i, d in found.items()} == {1: 200, 2: 300, 3: 200}


def test_a_request_whose_hop_was_not_seen_did_not_wait_for_another_model() -> None:
    """Both models are resident and the other one generates; a token came though no hop was seen.
    Nothing is told of a wait for the other model, and whether a switch mattered is not known."""
    e = evidence(
        request(read=0.2, head=999, first_token=1000, end=1101),
        program="llama-swap",
        lives=(front("llama-swap"), life(500, "alpha"), life(NEW, "beta")),
        others=(
            other(16, arrival=-500, model="alpha", runner=500, runner_arrival=-499,
                  runner_head=-495, first_token=-400, end=3000),
        ),
        previous_model="alpha",
        baseline=warm(),
    )  # fmt: skip
    d = derive(e)
    assert (d.spike.cause, d.spike.switch_is_cause) == ("prefill.prompt", None)
    assert (d.incomplete_because or "").startswith("hop.unseen")


def local_ai() -> Story:
    """A backend is started for request 1; two warm ones follow, the second misses its pages."""
    story = Story(program="local-ai")
    story.file(2)
    story.request(1000, 50001, tid=101, model="beta", head=9000, token=9000, end=9500)
    backend = Command(program="local-ai-backend", role="runner", port=9002)
    story.add(
        Fork(ts_ns=ms(1100), parent=100, child=300, comm="llama-cpp"),
        Exec(ts_ns=ms(1101), tgid=300, comm="llama-cpp", command=backend),
        Listen(ts_ns=ms(1120), tgid=300, netns=story.netns, port=9002),
    )
    story.load(1200, 7000, 300, 2)
    story.request(20_000, 50002, tid=101, model="beta", head=20_030, token=20_030, end=20_500)
    story.request(30_000, 50003, tid=101, model="beta", head=33_000, token=33_000, end=33_500)
    faults = Span(
        ts_ns=ms(30_010), end_ns=ms(32_900), tgid=300, tid=300, dev=1, ino=2, token=1,
        op="fault_major", count=800, bytes=100 * MIB, busy_ns=ms(2800),
    )  # fmt: skip
    brought = Insert(ts_ns=ms(30_010), end_ns=ms(32_900), dev=1, ino=2, pages=25_600, tgid=300)
    story.add(faults, brought)
    return story


def test_a_start_long_over_is_in_nobodys_way_though_no_hop_was_seen() -> None:
    """The model was loaded for an earlier request, and hops are never seen. The next one is warm:
    all of it is work on the prompt."""
    d = told(local_ai(), *warm(model="beta", server="local-ai:8080"))[2]
    assert not d.spike.is_spike
    assert in_ms(d.phases.stages_ns) == {"queue.socket": 0.3, "prefill.prompt": 29.7}


def test_the_only_runner_there_is_served_it() -> None:
    """Hops are never seen, but there is a single runner, whose pages have to come from disk again:
    that is the cause, and no switch."""
    d = told(local_ai(), *warm(model="beta", server="local-ai:8080"))[3]
    assert (d.spike.cause, d.spike.switch_is_cause) == ("load.disk", False)
