"""A prompt that took longer than its size explains: who had the processor meanwhile?"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.build import Story, finals, ms
from tests.unit.evidence_build import FRONT, MS, NEW, hop, ns, other, request, warm
from tests.unit.scenarios import warm_router
from tracer import contention, scene, timeline
from tracer.contention import Processor
from tracer.derive import derive
from tracer.derived import Derived
from tracer.evidence import Evidence
from tracer.host import processors
from tracer.host.processors import Processors
from tracer.records import Ran, Says

#: The counts of the runner before the request, far from zero as after days.
BEFORE = {"ran": 5_000, "waited": 900, "host": 9_000_000}


def ran(
    at: float, ran: float, waited: float, host: float, tgid: int = NEW, quota: float | None = None
) -> Ran:
    """A sample; times in milliseconds, counts of them since before the request."""
    return Ran(
        ts_ns=ns(at), tgid=tgid, ran_ns=round((BEFORE["ran"] + ran) * MS),
        waited_ns=round((BEFORE["waited"] + waited) * MS),
        host_ns=round((BEFORE["host"] + host) * MS),
        throttled_ns=None if quota is None else round(quota * MS),
    )  # fmt: skip


def slow(*samples: Ran, tokens: int | None = 26, **kw: object) -> Evidence:
    """A warm request whose prompt took 1996 ms in place of 25, begun 3 ms after its arrival."""
    says = None if tokens is None else Says(prompt_ms=1990.0, prompt_n=tokens, cache_n=0)
    return warm_router(
        req=request(read=0.2, head=3.2, first_token=2000, second_token=2044, end=2101),
        hop=hop(arrival=1, read=1.1, body=1, head=3, first_token=1999.8, end=2100, says=says),
        baseline=warm(), ran=samples, **kw,
    )  # fmt: skip


def verdict(d: Derived) -> tuple[str | None, str | None, tuple[str, ...]]:
    return d.spike.dominant, d.spike.cause, d.spike.why


#: The runner waited most of the time, and others used both processors.
CROWDED = (ran(-5000, 0, 0, 0), ran(200, 60, 140, 5600), ran(2100, 500, 1600, 9400))
#: The same wait, but only the server's own threads ran.
ALONE = (ran(-5000, 0, 0, 0), ran(200, 380, 140, 400), ran(2100, 4000, 1600, 4200))


def test_other_programs_had_the_processor() -> None:
    d = derive(slow(*CROWDED))
    assert verdict(d) == ("prefill", "prefill.contention", ())
    assert d.spike.because == (
        "2.00 s of 2.00 s (99 %) went to prefill: a prompt of 26 tokens to work on, while other "
        "programs used 3.34 s of processor time and its threads waited 1.52 s."
    )
    assert d.spike.advice is not None and d.spike.advice.startswith("Keep other heavy work off")


def test_its_own_threads_wait_for_each_other() -> None:
    assert verdict(derive(slow(*ALONE))) == ("prefill", "prefill.unexplained", ())


def test_a_quota_held_it_back() -> None:
    samples = [
        ran(at, 300 * part, 1600 * part, 9400 * part, quota=7 + 1700 * part)
        for at, part in ((-5000, 0), (200, 0.1), (2100, 1))
    ]
    d = derive(slow(*samples))
    assert verdict(d) == ("prefill", "prefill.throttled", ())
    assert "which the CPU quota of its control group held back for 1.6" in (d.spike.because or "")


def test_busy_others_that_took_nothing_from_it() -> None:
    """Enough processors for all: the device or the model was slow, not the processor."""
    samples = (ran(-5000, 0, 0, 0), ran(200, 200, 1, 5600), ran(2100, 2000, 10, 9400))
    assert verdict(derive(slow(*samples))) == ("prefill", "prefill.unexplained", ())


def test_a_server_that_says_nothing_of_its_prompt() -> None:
    """Its size may explain it, whatever others did."""
    assert verdict(derive(slow(*CROWDED, tokens=None))) == ("prefill", "prefill.prompt", ())
    assert verdict(derive(slow(*ALONE, tokens=None))) == ("prefill", "prefill.prompt", ())


def test_a_long_prompt_stays_a_long_prompt() -> None:
    """Its size explains it, though others were busy too."""
    assert verdict(derive(slow(*CROWDED, tokens=26 * 60))) == ("prefill", "prefill.prompt", ())


def test_without_samples_nothing_is_said_of_it() -> None:
    assert verdict(derive(slow())) == ("prefill", "prefill.unexplained", ())
    assert verdict(derive(slow(ran(-5000, 0, 0, 0)))) == ("prefill", "prefill.unexplained", ())


def processor(e: Evidence) -> Processor | None:
    return contention.of(scene.of(e), timeline.build(e))


def test_counts_of_the_prompt_alone() -> None:
    """Idle until it came, so what the first look after it finds is of this request; what the last
    one finds is shared out by time; what the host did is even between two looks."""
    samples = (ran(-797, 0, 0, 0), ran(203, 40, 100, 1000), ran(2200, 240, 1098.5, 5994))
    found = processor(slow(*samples))
    assert found is not None
    share_of_last = (2000 - 203) / (2200 - 203)
    waited = 100 * 200 / 203 + 998.5 * share_of_last
    host = 200 + 4994 * share_of_last
    own = 40 * 200 / 203 + 200 * share_of_last
    assert found.waited_ns == pytest.approx(waited * MS, abs=3)
    assert found.others_ns == pytest.approx((host - own) * MS, abs=3)
    assert found.throttled_ns == 0


def test_what_another_request_waited_before_is_not_counted() -> None:
    busy = other(16, arrival=-4000, runner=NEW, runner_arrival=-3999, runner_head=-3998,
                 first_token=-3000, end=1500, model="beta")  # fmt: skip
    samples = (ran(-797, 0, 0, 0), ran(203, 40, 1000, 1000), ran(2200, 240, 1000, 1000))
    idle, shared = processor(slow(*samples)), processor(slow(*samples, others=(busy,)))
    assert idle is not None and shared is not None
    assert idle.waited_ns == pytest.approx(1000 * 200 / 203 * MS, abs=3)
    assert shared.waited_ns == 200 * MS


def test_time_of_the_servers_own_processes_is_not_others() -> None:
    """The front and its runner are one server."""
    theirs = (ran(-797, 0, 0, 0), ran(203, 0, 0, 2000), ran(2200, 0, 0, 5994))
    front = (
        ran(-797, 0, 0, 0, FRONT),
        ran(203, 0, 0, 2000, FRONT),
        ran(2200, 1997, 0, 5994, FRONT),
    )
    without, with_front = processor(slow(*theirs)), processor(slow(*theirs, *front))
    assert without is not None and with_front is not None
    assert without.others_ns - with_front.others_ns == pytest.approx(1797 * MS, abs=3)


counts = st.integers(0, 1 << 62)


@given(
    st.lists(
        st.builds(
            Ran, ts_ns=st.integers(-(10**12), 10**13), tgid=st.sampled_from([FRONT, NEW, 7]),
            ran_ns=counts, waited_ns=counts, host_ns=counts, throttled_ns=st.none() | counts,
        ),
        max_size=12,
    )
)  # fmt: skip
def test_odd_samples_change_no_sum(samples: list[Ran]) -> None:
    """Counts that run backwards and clocks that jump: no negative figure, no other phase."""
    e = slow(*samples)
    found = processor(e)
    assert found is None or min(found.waited_ns, found.others_ns, found.throttled_ns) >= 0
    assert derive(e).phases == derive(slow()).phases


def test_the_fold_gives_what_is_around_the_window() -> None:
    """The last look before the arrival, those until the first token, and one more."""
    story = Story(role="single", model="m")
    story.request(1000, 50000, model="m", head=1010, token=2000, end=4000)
    looks = [
        Ran(ts_ns=ms(at), tgid=story.front, ran_ns=at, waited_ns=0, host_ns=at)
        for at in (100, 900, 1250, 1500, 2050, 2300, 5000)
    ]
    story.add(*looks)
    (evidence,) = finals(story.records(every=50)).values()
    assert [r.ts_ns for r in evidence.ran] == [ms(at) for at in (900, 1250, 1500, 2050)]


# --- reading them ---------------------------------------------------------------


def look(reader: Processors) -> Ran:
    (found,) = reader.look([os.getpid()], time.monotonic_ns())
    return found


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_thread_that_ended_is_still_counted() -> None:
    """Its time is in the sum from then on, though the kernel has forgotten it."""
    reader = Processors()
    first = look(reader)
    go = threading.Event()

    def work() -> None:
        spin(0.05)
        go.wait()

    thread = threading.Thread(target=work)
    thread.start()
    spin(0.05)
    while (during := look(reader)).ran_ns - first.ran_ns < 100 * MS:
        time.sleep(0.001)
    go.set()
    thread.join()
    after = look(reader)
    assert during.ran_ns <= after.ran_ns
    assert during.waited_ns <= after.waited_ns
    assert after.host_ns > 0


def test_a_process_that_is_gone_has_no_counts() -> None:
    assert Processors().look([1 << 22], 1) == []


def test_a_quota_is_found_in_the_group_or_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2, with the limit one above; and version 1, which counts nanoseconds."""
    monkeypatch.setattr(processors, "_TREES", {"": tmp_path / "v2", "cpu": tmp_path / "v1"})
    table = "1:cpu,cpuacct:/docker/a\n0::/docker/a\n"
    monkeypatch.setattr(processors, "_groups", lambda _: table)
    for root in ("v1", "v2"):
        (tmp_path / root / "docker/a").mkdir(parents=True)
    (tmp_path / "v2/docker/a/cpu.max").write_text("max 100000\n")
    (tmp_path / "v2/docker/cpu.max").write_text("50000 100000\n")
    (tmp_path / "v2/docker/cpu.stat").write_text("usage_usec 9\nthrottled_usec 2500\n")
    assert look(Processors()).throttled_ns == 2_500_000
    (tmp_path / "v2/docker/cpu.max").write_text("max 100000\n")
    (tmp_path / "v1/docker/a/cpu.cfs_quota_us").write_text("-1\n")
    assert look(Processors()).throttled_ns is None
    (tmp_path / "v1/docker/a/cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "v1/docker/a/cpu.stat").write_text("nr_periods 3\nthrottled_time 77\n")
    assert look(Processors()).throttled_ns == 77
