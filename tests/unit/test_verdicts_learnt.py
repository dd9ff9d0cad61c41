"""What is learnt of a request, and the words and advice it gets."""

from __future__ import annotations

from tests.unit.build import Story
from tests.unit.evidence_build import (
    FRONT,
    NEW,
    OLD,
    SIZE,
    evidence,
    front,
    hop,
    insert,
    life,
    ns,
    opened,
    other,
    request,
    signal,
    span,
    warm,
)
from tests.unit.scenarios import PAGES, cold_router, metadata, warm_router
from tests.unit.verdicts import told
from tracer.derive import derive
from tracer.evidence import Life
from tracer.records import Armed, Command, Says


def armed_at(at: float) -> tuple[Armed, Armed]:
    """The file probes were off for long and came on then."""
    return (
        Armed(ts_ns=ns(-9000), group="files", on=False, why="quiet"),
        Armed(ts_ns=ns(at), group="files", on=True, why="slow"),
    )


def test_a_wait_for_another_models_start_is_not_learnt() -> None:
    """The model is resident, but another one was being started in its way for two seconds. Such a
    wait must not become what is typical."""
    e = warm_router(
        program="ollama",
        lives=(front("ollama"), life(NEW, "beta"), life(500, "gamma", fork=-300, exec=-299)),
        hop=hop(arrival=2001, head=2003, first_token=2030, end=2100, says=Says(prompt_n=26)),
        req=request(read=0.2, head=2031, first_token=2031, end=2101),
        others=(
            other(16, arrival=-400, model="gamma", runner=500, runner_arrival=1990,
                  first_token=2200, end=3000),
        ),
        previous_model="gamma",
        baseline=warm(),
    )  # fmt: skip
    d = derive(e)
    assert d.spike.cause == "queue.switch"
    assert not d.warm


def test_what_may_have_loaded_unseen_is_not_learnt() -> None:
    """The file probes came on while it was under way, so that a load may be in it: it is marked and
    not learnt."""
    e = warm_router(
        hop=hop(arrival=1, read=1.1, body=1, head=3001, first_token=3029.8, end=3100,
                says=Says(prompt_n=26)),
        req=request(read=0.2, head=3001.2, first_token=3030, end=3101),
        resident_before=None,
        armed=armed_at(300),
        baseline=warm(),
    )  # fmt: skip
    d = derive(e)
    assert (d.incomplete_because or "").startswith("armed.late")
    assert not d.warm


def test_a_stream_with_a_hole_in_it_is_not_learnt() -> None:
    """Part of the stream was not seen, and its first token may be in there: it is marked and not
    learnt."""
    d = derive(warm_router(req=request(read=0.2, head=3.2, first_token=900, end=901, why="gap")))
    assert (d.incomplete_because or "").startswith("end.unseen")
    assert not d.warm


def test_a_long_answer_is_no_long_prompt() -> None:
    """A reply that is not streamed is twenty times as long as is typical, for a prompt as usual,
    from a server that says no durations: it was generation."""
    vllm = Command(program="vllm", role="single", model="beta")
    e = evidence(
        request(read=0.2, head=19_999, end=20_000, stream=False, event_stream=False,
                says=Says(prompt_tokens=26, completion_tokens=2000)),
        program="vllm",
        runner=FRONT,
        lives=(Life(tgid=FRONT, ppid=1, comm="vllm", command=vllm),),
        resident_before=True,
        previous_model="beta",
        baseline=warm(1000, kind="chat/whole"),
    )  # fmt: skip
    assert derive(e).spike.cause == "prefill.decode"


def test_bytes_of_unknown_origin_are_not_said_to_be_from_memory() -> None:
    """The weights came by direct reads, and as the probes came late how many bytes is not known.
    They came from disk, and that is what must be said."""
    e = cold_router(
        spans=(
            metadata(300.5, 500, 3),
            span(900, 5882, "read_direct", SIZE, token=4, count=60),
        ),
        inserts=(),
        armed=armed_at(890),
        baseline=warm(),
    )
    d = derive(e)
    assert d.facts.weights_bytes_from_disk is None
    assert d.spike.cause == "load.disk"
    assert d.spike.because == (
        "5.33 s of 6.11 s (87 %) went to load: beta.gguf came from disk (sda1, ext4); "
        "how many bytes is not known, after alpha had been stopped to make room."
    )


def test_after_a_success_the_same_body_is_no_retry() -> None:
    """A request fails, the same body is asked again and succeeds, and once more a minute later.
    Only the second one is a retry."""
    story = Story(role="single", model="alpha")
    story.request(100, 50001, model="alpha", status=503, head=101, end=102)
    story.request(200, 50002, model="alpha", head=210, token=230, end=300)
    story.request(60_000, 50003, model="alpha", head=60_010, token=60_030, end=60_100)
    found = told(story)
    assert {i: d.timeline.retry_of for i, d in found.items()} == {1: (), 2: (1,), 3: ()}


def test_a_crash_in_the_prompt_is_no_eviction() -> None:
    """The runner crashes twenty seconds into the prompt, the front starts it again and asks again.
    Nobody stopped it to make room: it crashed."""
    e = cold_router(
        program="local-ai",
        lives=(
            front("local-ai"),
            life(OLD, "beta", exit=20_000, exit_signal=11),
            life(NEW, "beta", fork=20_050, exec=20_051),
        ),
        opens=(opened(20_100, 1),),
        spans=(span(20_110, 21_000, "mmap", SIZE, token=1, populate=True),),
        inserts=(insert(20_110, 21_000, PAGES),),
        hop=hop(arrival=21_100, head=21_105, first_token=21_200, end=21_300),
        req=request(read=1.3, body=0.1, head=21_106, first_token=21_201, end=21_301),
        previous_model="beta",
        baseline=warm(),
    )
    d = derive(e)
    assert d.phases.phases_ns["evict"] == 0
    assert d.spike.why == ("died.signal",)


def test_advice_for_a_request_that_its_runner_died_under() -> None:
    """The kernel kills the runner for lack of memory during a prompt: the advice is about memory,
    not about the prompt."""
    killed = life(
        NEW, "beta", exit=3050, exit_signal=9, signals=(signal(3049, 9, NEW, sender=None),)
    )
    e = warm_router(
        lives=(front(), killed),
        hop=hop(arrival=1, head=3, end=3050, why="server_gone"),
        req=request(read=0.2, head=3.2, end=3060, error=True, status=200),
        baseline=warm(),
    )
    d = derive(e)
    assert d.spike.why == ("died.oom",)
    assert d.spike.advice == "Raise the memory limit, or use a smaller model or context."
