"""Verdicts on requests that waited: for a slot, in a queue, for a batch."""

from __future__ import annotations

from typing import Any

from tests.unit.build import Story
from tests.unit.evidence_build import (
    MS,
    NEW,
    command,
    front,
    hop,
    life,
    other,
    request,
    warm,
)
from tests.unit.scenarios import warm_router
from tests.unit.verdicts import told
from tracer.derive import derive
from tracer.evidence import Other
from tracer.records import Says


def ahead(**kw: Any) -> Other:
    """Request 16, which generates on the same runner."""
    base: dict[str, Any] = {
        "arrival": -500, "model": "beta", "runner": NEW, "runner_arrival": -499,
        "runner_head": -495, "first_token": -400,
    }  # fmt: skip
    return other(16, **{**base, **kw})


def test_the_runner_is_busy_with_what_its_client_gave_up() -> None:
    """A client leaves and the front lets the runner go on for nobody. The next request waits for
    that slot: the runner was busy with the first one."""
    story = Story()
    story.runner(0.5, 200, 9001, "alpha")
    story.request(
        1000, 50001, tid=101, model="alpha", head=1004, token=1100, end=3000, why="client_gone"
    )
    story.hop(1001, 9001, 60001, 200, tid=101, model="alpha", head=1003, token=1099, end=60_000)
    story.request(5000, 50002, tid=102, model="alpha", head=60_004, token=60_050, end=60_200)
    story.hop(5001, 9001, 60002, 200, tid=102, model="alpha", head=60_003, token=60_049, end=60_199)
    d = told(story, *warm(model="alpha"))[2]
    assert d.spike.cause == "queue.busy"
    assert d.timeline.waited_for == (1,)


def test_gave_up_behind_a_long_generation_on_the_only_slot() -> None:
    """The only slot was never free and no headers came before the client left: it died in the
    queue, waiting for the request ahead of it."""
    e = warm_router(
        lives=(front(), life(NEW, "beta", command=command("beta", options=("parallel=1",)))),
        hop=hop(arrival=1, read=1.1, body=1, end=5000, why="client_gone", status=None,
                event_stream=False),
        req=request(read=0.2, end=5001, why="client_gone", status=None, event_stream=False),
        others=(ahead(),),
        baseline=warm(),
    )  # fmt: skip
    d = derive(e)
    assert (d.spike.cause, d.died_in) == ("queue.busy", "queue")
    assert d.timeline.waited_for == (16,)


def test_waiting_for_anothers_batch_is_no_tokenising() -> None:
    """The long prompt of another slot fills the batch, and ours is begun three seconds later: the
    time was shared with it."""
    e = warm_router(
        hop=hop(arrival=1, read=1.1, body=1, head=3001, first_token=3099.8, end=3200,
                says=Says(prompt_ms=95.0, prompt_n=26, cache_n=0)),
        req=request(read=0.2, head=3001.2, first_token=3100, end=3201),
        others=(
            ahead(arrival=-100, runner_arrival=-99, runner_head=-95, first_token=3600, end=6000),
        ),
        baseline=warm(),
    )  # fmt: skip
    d = derive(e)
    assert d.spike.cause == "prefill.shared"
    assert d.phases.stages_ns["prefill.shared"] > 3000 * MS


def test_a_hundred_bytes_are_not_tokenised_for_twenty_seconds() -> None:
    """Nobody was seen ahead, and no prompt of this size takes so long to tokenise: it waited for
    something not told apart."""
    e = warm_router(
        hop=hop(arrival=1, read=1.1, body=1, head=20_001, first_token=20_029.8, end=20_100,
                says=Says(prompt_ms=25.0, prompt_n=26, cache_n=0), prompt_bytes=103),
        req=request(read=0.2, head=20_001.2, first_token=20_030, end=20_101, prompt_bytes=103),
        baseline=warm(),
    )  # fmt: skip
    d = derive(e)
    assert d.spike.cause == "queue.rest"
    assert "prefill.tokenize" not in d.phases.stages_ns


def test_who_failed_after_its_first_token_had_held_the_slot() -> None:
    """The request ahead failed late in its generation. Until then it held the slot, so the runner
    was busy with it."""
    e = warm_router(
        hop=hop(arrival=1, head=2012, first_token=2036, end=2100,
                says=Says(prompt_ms=25, prompt_n=26)),
        req=request(read=0.2, head=2012.2, first_token=2037, end=2101),
        others=(ahead(end=2009, failed=True, status=200),),
        baseline=warm(),
    )  # fmt: skip
    d = derive(e)
    assert d.spike.cause == "queue.busy"
    assert d.timeline.waited_for == (16,)


def test_a_front_that_keeps_requests_back_until_the_slot_is_free() -> None:
    """The front passes a request on when the slot is free, a little before the last bytes of the
    one ahead are out: the runner was busy, the front was not slow."""
    e = warm_router(
        hop=hop(arrival=5001, head=5004, first_token=5029.8, end=5100,
                says=Says(prompt_ms=25.0, prompt_n=26, cache_n=0)),
        req=request(read=0.2, head=5004.2, first_token=5030, end=5101),
        others=(ahead(end=5006),),
        baseline=warm(),
    )  # fmt: skip
    d = derive(e)
    assert d.spike.cause == "queue.busy"
    assert d.timeline.waited_for == (16,)
