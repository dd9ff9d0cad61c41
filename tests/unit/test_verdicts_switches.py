"""Verdicts on loads, on how a runner ended before them, and on whether a switch is the cause."""

from __future__ import annotations

import pytest

from tests.unit.build import Story, ms
from tests.unit.evidence_build import (
    FRONT,
    MS,
    NEW,
    OLD,
    SIZE,
    command,
    decoy,
    evidence,
    front,
    hop,
    life,
    ns,
    opened,
    other,
    request,
    signal,
    span,
    warm,
)
from tests.unit.scenarios import cold_router, sleeper, warm_router
from tests.unit.verdicts import told
from tracer.derive import derive
from tracer.derived import Derived
from tracer.evidence import Evidence, Life
from tracer.records import Command, DeviceCall, Exit, Insert, Listen, Process, Says, Server


def started_again(old: Life, new: Life | None = None) -> Evidence:
    """Beta is started and read from disk; its former runner is gone."""
    new = new or life(NEW, "beta", fork=67, exec=69)
    return cold_router(lives=(front(), old, new), previous_model="beta", baseline=warm())


@pytest.mark.parametrize("before", ["alpha", None])
def test_a_load_within_the_process_is_not_always_a_waking(before: str | None) -> None:
    """A server swaps models within its own process, or loads at the first request: no model was
    put away for being idle, and only the former is a switch."""
    d = derive(sleeper(previous_model=before, baseline=warm()))
    assert (d.spike.cause, d.spike.why) == ("spawn.fit", ())
    assert d.spike.switch_is_cause is (before is not None)


def test_a_runner_that_ended_with_an_error_was_not_idle() -> None:
    """The former runner ended by itself with an exit code of 1: it is told as crashed, not as
    unloaded after idle time."""
    d = derive(started_again(life(OLD, "beta", exit=-200, exit_code=1)))
    assert (d.spike.cause, d.spike.why) == ("load.disk", ("died.signal",))


def test_options_are_not_why_a_model_that_was_long_gone_loads() -> None:
    """The model was unloaded five minutes before, then asked for with another context size. It had
    to be loaded for having been idle, whatever the options."""
    small, large = (command("beta", options=(f"ctx-size={n}",)) for n in (2048, 8192))
    old = life(OLD, "beta", exit=-300_000, exit_code=0, command=small)
    d = derive(started_again(old, life(NEW, "beta", fork=67, exec=69, command=large)))
    assert d.spike.why == ("idle.timeout",)


def test_a_busy_runner_killed_at_a_switch_had_been_ready() -> None:
    """The front kills a runner at work to make room for another model. It must not be said that it
    was killed before it was ready."""
    killed = life(NEW, "beta", exit=3050, exit_signal=9, signals=(signal(3049, 9, NEW),))
    e = warm_router(
        lives=(front(), killed, life(500, "alpha", fork=3060)),
        hop=hop(arrival=1, head=3, end=3050, why="server_gone"),
        req=request(read=0.2, head=3.2, end=3060, error=True, status=200),
        others=(other(18, arrival=3000, model="alpha", runner=500),),
        baseline=warm(),
    )
    d = derive(e)
    assert d.outcome == "server_died"
    assert "died.killed_by_front" not in d.spike.why


def test_a_hangup_by_the_kernel_is_no_lack_of_memory() -> None:
    """The kernel sent the terminal's SIGINT and the front SIGKILL: only a SIGKILL of the kernel is
    for lack of memory."""
    sent = (signal(-900, 2, OLD, sender=None), signal(-201, 9, OLD, sender=FRONT))
    d = derive(started_again(life(OLD, "beta", exit=-200, exit_signal=9, signals=sent)))
    assert "died.oom" not in d.spike.why


def test_a_load_begun_before_the_daemon_is_not_the_fronts_slowness() -> None:
    """The daemon starts while a runner loads, and a request waits for that. The pages that the
    runner brings in are load, and the answer is marked as begun too late."""
    story = Story()
    story.add(
        Process(
            ts_ns=0, tgid=200, ppid=100, start_ns=-ms(5000), comm="llama-server",
            command=Command(program="llama-server", role="runner", model="alpha", port=9001),
        ),
        Listen(ts_ns=0, tgid=200, netns=story.netns, port=9001),
    )  # fmt: skip
    story.file(1)
    for i in range(60):
        at = ms(1000 * i)
        story.add(Insert(ts_ns=at, end_ns=at + ms(990), dev=1, ino=1, pages=1000, tgid=200))
    story.request(1000, 50001, tid=101, model="alpha", head=61_004, token=61_050, end=61_200)
    story.hop(
        61_000, 9001, 60001, 200, tid=101, model="alpha", head=61_003, token=61_049, end=61_199
    )
    d = told(story, *warm(model="alpha"))[1]
    assert d.spike.cause == "load.disk"
    assert not d.complete
    assert (d.incomplete_because or "").startswith("began.late")


def switched(*, restart: bool) -> Derived:
    """Alpha was gone 40 s before beta was asked for: by idle time, or with its whole server."""
    story = Story()
    story.file(1)
    story.file(2)
    story.runner(0.5, 200, 9001, "alpha")
    story.request(1000, 50001, tid=101, model="alpha", head=1004, token=1030, end=1100)
    story.hop(1001, 9001, 60001, 200, tid=101, model="alpha", head=1003, token=1029, end=1099)
    story.exit(20_000, 200, 15)
    if restart:
        story.add(Exit(ts_ns=ms(20_100), tgid=100, signal=15))
        story.front = 110
        story.add(
            Process(
                ts_ns=ms(25_000), tgid=110, ppid=1, start_ns=ms(24_000), comm="llama-server",
                command=Command(program="llama-server", role="front", port=8080),
            ),
            Server(
                ts_ns=ms(25_000), name=story.name, program="llama-server", tgid=110,
                netns=story.netns, port=8080,
            ),
            Listen(ts_ns=ms(25_000), tgid=110, netns=story.netns, port=8080),
        )  # fmt: skip
    story.request(60_000, 50002, tid=102, model="beta", head=66_004, token=66_100, end=66_300)
    story.runner(60_010, 300, 9002, "beta")
    story.load(60_100, 65_900, 300, 2)
    story.hop(
        66_000, 9002, 60002, 300, tid=102, model="beta", head=66_003, token=66_099, end=66_299
    )
    return told(story, *warm(model="beta"))[2]


@pytest.mark.parametrize("restart", [False, True])
def test_a_model_that_was_gone_long_before_is_not_switched_from(restart: bool) -> None:
    """Nothing was resident when the request came, so one for the previous model had been as slow:
    the load is the cause, the switch is not."""
    d = switched(restart=restart)
    assert d.spike.cause == "load.disk"
    assert d.spike.switch_is_cause is False


def test_a_device_brought_up_under_a_resident_model_is_no_switch() -> None:
    """The runner was there with its model and opened a device slowly. The device is the cause; that
    another model was asked for before is not."""
    slow = DeviceCall(
        ts_ns=ns(5), end_ns=ns(3005), tgid=NEW, tid=NEW, device="nvidia0", driver="nvidia",
        what="open", count=1, busy_ns=3000 * MS,
    )  # fmt: skip
    e = warm_router(
        previous_model="alpha", devices=(slow,), baseline=warm(),
        hop=hop(arrival=1, head=3, first_token=3029, end=3100,
                says=Says(prompt_ms=25, prompt_n=26)),
        req=request(read=0.2, head=3.2, first_token=3030, end=3101),
    )  # fmt: skip
    d = derive(e)
    assert (d.spike.cause, d.spike.switch_is_cause) == ("spawn.device", False)


def test_an_idle_runner_nobody_asked_yet_is_in_nobodys_way() -> None:
    """Another model was loaded a minute before and nobody asked it yet. The front is slow by itself
    for two seconds: that is the cause, no switch."""
    idle = life(500, "embed", fork=-60_000, exec=-59_999, listen=-59_000)
    e = warm_router(
        lives=(front(), life(NEW, "beta"), idle),
        hop=hop(arrival=2001, head=2003, first_token=2030, end=2100,
                says=Says(prompt_ms=25, prompt_n=26)),
        req=request(read=0.2, head=2003.2, first_token=2031, end=2101),
        baseline=warm(),
    )  # fmt: skip
    d = derive(e)
    assert (d.spike.cause, d.spike.switch_is_cause) == ("queue.front", False)


def test_decoys_of_anothers_start_are_its_start() -> None:
    """A decoy and a runner are started for another model, then the request's own runner. The decoy
    belongs to the wait for the other model, not to its own start."""
    gamma = life(500, "gamma", fork=900, exec=901, exit=5000, exit_signal=9,
                 signals=(signal(4990, 9, 500),))  # fmt: skip
    e = evidence(
        request(read=1, body=1, head=6600, first_token=6600, end=6700),
        program="ollama",
        runner=NEW,
        resident_before=False,
        previous_model="gamma",
        hop=hop(arrival=6500, head=6599, first_token=6599, end=6699),
        lives=(front("ollama"), decoy(50, 400), gamma, life(NEW, "beta", fork=5100, exec=5101)),
        opens=(opened(5200, 1),),
        spans=(span(5210, 6400, "mmap", SIZE, token=1, populate=True),),
        others=(
            other(16, arrival=-100, model="gamma", runner=500, runner_arrival=3000,
                  runner_head=3001, first_token=3100, end=4000),
        ),
    )  # fmt: skip
    d = derive(e)
    assert "spawn.device" not in d.phases.stages_ns
    assert d.phases.stages_ns["queue.switch"] == 2999 * MS
