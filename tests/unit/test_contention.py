"""A prompt that took longer than its size explains: who had the processor meanwhile?"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.build import Story, finals, ms
from tests.unit.evidence_build import FRONT, MS, NEW, hop, life, ns, other, request, warm
from tests.unit.scenarios import warm_router
from tracer import contention, scene, timeline
from tracer.contention import Processor
from tracer.derive import derive
from tracer.derived import Derived
from tracer.evidence import Evidence
from tracer.records import Ran, Says

#: The counts of the runner before the request, far from zero as after days.
BEFORE = {"ran": 5_000, "waited": 900, "host": 9_000_000}
#: The prompt's, in milliseconds from the arrival.
START, TOKEN = 3, 2000


def ran(
    at: float, ran: float, waited: float | None, host: float, tgid: int = NEW,
    quota: float | None = None,
) -> Ran:  # fmt: skip
    """Of a process; times in milliseconds, counts of them since before the request."""
    return Ran(
        ts_ns=ns(at), tgid=tgid, ran_ns=round((BEFORE["ran"] + ran) * MS),
        waited_ns=None if waited is None else round((BEFORE["waited"] + waited) * MS),
        host_ns=round((BEFORE["host"] + host) * MS),
        throttled_ns=None if quota is None else round(quota * MS),
    )  # fmt: skip


def look(
    at: float, ran_: float, waited: float | None, host: float, quota: float | None = None
) -> tuple[Ran, Ran]:
    """At the runner, and at a front that does nothing."""
    return ran(at, ran_, waited, host, quota=quota), ran(at, 0, 0, host, FRONT)


def steady(
    runs: float, waits: float, others: float, held: float | None = None,
    at: tuple[float, ...] = (-5000, 4, 250, 500, 1000, 1500, 2002),
) -> tuple[Ran, ...]:  # fmt: skip
    """Looks at a server that is idle until its request comes; how much of each in a millisecond.

    Others use what they use at all times.
    """
    return tuple(
        r
        for t in at
        for r in look(
            t, runs * max(0, t), waits * max(0, t), others * t + runs * max(0, t),
            None if held is None else held * max(0, t),
        )
    )  # fmt: skip


def slow(*samples: Ran, tokens: int | None = 26, **kw: object) -> Evidence:
    """A warm request whose prompt took 1996 ms in place of 25, begun 3 ms after its arrival."""
    says = None if tokens is None else Says(prompt_ms=1990.0, prompt_n=tokens, cache_n=0)
    base = {
        "req": request(read=0.2, head=3.2, first_token=2000, second_token=2044, end=2101),
        "hop": hop(arrival=1, read=1.1, body=1, head=3, first_token=1999.8, end=2100, says=says),
        "baseline": warm(), "ran": samples,
    }  # fmt: skip
    return warm_router(**{**base, **kw})


def verdict(d: Derived) -> tuple[str | None, str | None, tuple[str, ...]]:
    return d.spike.dominant, d.spike.cause, d.spike.why


#: The runner waited most of the time, and others used both processors.
CROWDED = steady(0.25, 0.75, 1.75)
#: The same wait, but only the server's own threads ran.
ALONE = steady(2, 0.75, 0)


def test_other_programs_had_the_processor() -> None:
    d = derive(slow(*CROWDED))
    assert verdict(d) == ("prefill", "prefill.contention", ())
    assert d.spike.because == (
        "2.00 s of 2.00 s (99 %) went to prefill: a prompt of 26 tokens to work on, while other "
        "programs used 1.8 processors and its threads waited 1.50 s for one."
    )
    assert d.spike.advice is not None and d.spike.advice.startswith("Keep other heavy work off")


def test_its_own_threads_wait_for_each_other() -> None:
    assert verdict(derive(slow(*ALONE))) == ("prefill", "prefill.unexplained", ())


def test_a_quota_held_it_back() -> None:
    d = derive(slow(*steady(0.15, 0.8, 1.5, held=0.8)))
    assert verdict(d) == ("prefill", "prefill.throttled", ())
    assert "which the CPU quota of its control group held back for 1.60 s" in (
        d.spike.because or ""
    )


def test_busy_others_that_took_nothing_from_it() -> None:
    """Enough processors for all: the device or the model was slow, not the processor."""
    assert verdict(derive(slow(*steady(1, 0.005, 1.75)))) == (
        "prefill", "prefill.unexplained", (),
    )  # fmt: skip


def test_a_server_that_says_nothing_of_its_prompt() -> None:
    """Its size may explain it, whatever others did."""
    assert verdict(derive(slow(*CROWDED, tokens=None))) == ("prefill", "prefill.prompt", ())
    assert verdict(derive(slow(*ALONE, tokens=None))) == ("prefill", "prefill.prompt", ())


def test_a_long_prompt_stays_a_long_prompt() -> None:
    """Its size explains it, though others were busy too."""
    assert verdict(derive(slow(*CROWDED, tokens=26 * 60))) == ("prefill", "prefill.prompt", ())


def processor(e: Evidence) -> Processor | None:
    return contention.of(scene.of(e), timeline.build(e))


def told(*, runs: float | None, waits: float | None, others: float | None,
         held: float | None = None) -> Processor:  # fmt: skip
    """Each as much in a millisecond of the prompt."""
    took = TOKEN - START

    def whole(rate: float | None) -> int | None:
        return None if rate is None else round(rate * took * MS)

    return Processor(took_ns=took * MS, ran_ns=whole(runs), waited_ns=whole(waits),
                     others_ns=whole(others), throttled_ns=whole(held))  # fmt: skip


# --- whose it was -----------------------------------------------------------------


def test_counts_of_the_prompt_alone() -> None:
    """Not what was before the request came, and of the last look only what is before the token."""
    assert processor(slow(*steady(0.25, 0.75, 1.75, 0.5))) == told(
        runs=0.25, waits=0.75, others=1.75, held=0.5
    )


#: Another request, whose work ended 50 ms before this one came.
LAST = other(16, arrival=-4000, runner=NEW, runner_arrival=-3999, runner_head=-3998,
             first_token=-3000, end=-50, model="beta")  # fmt: skip


def after_another(*at: float) -> Processor | None:
    """Looks at a server that worked hard until 50 ms before, and the last two while it did."""
    mine = tuple(
        r
        for t in at
        for on in (max(0, t),)
        for r in look(t, 990 + 0.25 * on, 2970 + 0.75 * on, 990 + 1.75 * t + 0.25 * on)
    )
    theirs = (*look(-3000, 0, 0, -5250), *look(-300, 900, 2700, -525 + 900))
    return processor(slow(*theirs, *mine, others=(LAST,)))


def test_work_of_the_request_before_is_not_this_ones() -> None:
    """It ends between two looks: what was whose between them, nobody can tell."""
    found = after_another(450, 1000, 2002)
    assert found is not None
    assert (found.ran_ns, found.waited_ns, found.throttled_ns) == (None, None, None)
    assert verdict(derive(slow(*after_looks(450), others=(LAST,)))) == (
        "prefill", "prefill.unexplained", (),
    )  # fmt: skip


def after_looks(first: float) -> tuple[Ran, ...]:
    """Of a server that waits no more since this request came, as its threads did before."""
    return (*look(-3000, 0, 0, 0), *look(first, 900, 5000, 9000), *look(2002, 1000, 5000, 12000))


def test_a_look_between_two_requests_tells_them_apart() -> None:
    for first in (-40, 4, 100):
        found = after_another(first, 500, 1000, 2002)
        assert found is not None, first
        assert found.waited_ns == pytest.approx(0.75 * 1997 * MS, rel=1e-6), first


def test_what_a_request_beside_it_waits_for_is_in_it() -> None:
    """The runner works on both at once; before the first look it may have been the other's."""
    beside = other(16, arrival=-4000, runner=NEW, runner_arrival=-3999, runner_head=-3998,
                   first_token=-3000, end=None, model="beta")  # fmt: skip
    at = (-700, 100, 600, 1100, 2002)
    busy = tuple(r for t in at for r in look(t, 0.25 * t, 0.75 * t, 2 * t))
    found = processor(slow(*busy, others=(beside,)))
    assert found is not None
    assert found.waited_ns == pytest.approx(0.75 * 1997 * MS, rel=1e-6)
    assert processor(slow(*(r for r in busy if r.ts_ns != ns(100)), others=(beside,))) is None


def test_time_of_the_servers_own_processes_is_not_others() -> None:
    """The front and its runner are one server, and so is what the front starts meanwhile."""
    fronts = tuple(
        r if r.tgid == NEW else ran(at, 0.9 * max(0.0, at), 0, (r.host_ns / MS) - 9e6, FRONT)
        for r in steady(0.25, 0.75, 1.75)
        for at in ((r.ts_ns - ns(0)) / MS,)
    )
    found = processor(slow(*fronts))
    assert found is not None and found.others_ns == pytest.approx(0.85 * 1997 * MS, rel=1e-6)
    assert found.ran_ns == pytest.approx(0.25 * 1997 * MS, rel=1e-6), "the runner's alone"
    helper = life(7, None, fork=600, exit=1400)
    seen = (ran(1000, 300 - 5000, None, 2000, 7),)
    assert (unseen := processor(slow(*CROWDED, lives=(*LIVES, helper)))) is not None
    assert unseen.others_ns is None, "what it had is not known"
    with_it = processor(slow(*CROWDED, *seen, lives=(*LIVES, life(7, None, fork=600, exit=1020))))
    assert with_it is not None
    assert with_it.others_ns == pytest.approx((1.75 * 1997 - 300) * MS, rel=1e-3)


LIVES = warm_router().lives


# --- what passed meanwhile -----------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "waits", "others", "held", "passed"),
    [
        (0.25, 0.75, 1.75, None, 0.75),  # one thread
        (0.1, 0.3, 1.9, None, 0.3),  # that also sleeps
        (0.5, 7.5, 1.5, None, 0.75),  # eight on two processors, which others had for three quarters
        (3.0, 5.0, 1.0, None, 0.25),  # eight on four, others with one: the rest is each other's
        (8.0, 8.0, 0.0, None, 0.0),  # sixteen on eight, and nobody else
        (0.5, 7.5, 0.0, 1.5, 0.75),  # eight on two, of which a quota leaves half of one
        (1.0, 7.0, 0.0, 7.0, 0.875),  # eight on eight, of which a quota leaves one
    ],
)
def test_many_threads_wait_at_once(
    runs: float, waits: float, others: float, held: float | None, passed: float
) -> None:
    """A sum over threads or processors is not time that passed."""
    found = processor(slow(*steady(runs, waits, others, held)))
    assert found == told(runs=runs, waits=waits, others=others, held=held)
    amount = found.taken_ns if held is None else found.throttled_ns
    assert found.passed_ns(amount) == pytest.approx(passed * 1997 * MS, abs=2)


@pytest.mark.parametrize(
    ("looks", "cause"),
    [
        # Eight threads, each a tenth of the time: sums say four fifths of it.
        (steady(7.2, 0.8, 0.8), "prefill.unexplained"),
        (steady(7.2, 0.8, 0, held=0.8), "prefill.unexplained"),
        # Two of sixty-four processors are others', which its own threads hardly miss.
        (steady(62, 66, 2), "prefill.unexplained"),
        (steady(0.5, 7.5, 1.5), "prefill.contention"),
        (steady(1, 7, 0, held=7), "prefill.throttled"),
    ],
)
def test_the_verdict_goes_by_time_that_passed(looks: tuple[Ran, ...], cause: str) -> None:
    assert verdict(derive(slow(*looks))) == ("prefill", cause, ())


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.integers(0, 1 << 50))
def test_it_never_waited_longer_than_it_took(ran_ns: int, amount: int, more: int) -> None:
    found = Processor(took_ns=1_000_000, ran_ns=ran_ns)
    passed = [found.passed_ns(n) for n in (amount, amount + more)]
    assert passed[0] is not None and passed[1] is not None
    assert 0 <= passed[0] <= passed[1] <= 1_000_000
    assert passed[0] <= amount


# --- what is not known -----------------------------------------------------------------


def test_without_looks_nothing_is_said_of_it() -> None:
    for looks in ((), look(-5000, 0, 0, 0), steady(0.25, 0.75, 1.75, at=(-5000, -10))):
        assert processor(slow(*looks)) is None
        assert verdict(derive(slow(*looks))) == ("prefill", "prefill.unexplained", ())


@pytest.mark.parametrize(
    "at",
    [
        (4, 250, 500, 1000),  # no more after that
        (1000, 1500, 2002),  # nor before
        (4, 250, 1700, 1950),  # the last 50 are too few to miss, and 1450 between two are even
    ],
)
def test_looks_that_are_missing(at: tuple[float, ...]) -> None:
    whole = at[0] < 100 and at[-1] > 1900
    expected = told(runs=0.25, waits=0.75, others=1.75) if whole else None
    assert processor(slow(*steady(0.25, 0.75, 1.75, at=at))) == expected


def test_what_a_look_does_not_tell_is_unknown_and_no_nothing() -> None:
    """Of a process with very many threads, without a quota, and of none of the two."""
    mute = tuple(replace(r, waited_ns=None) for r in CROWDED)
    assert processor(slow(*mute)) == told(runs=0.25, waits=None, others=1.75)
    assert verdict(derive(slow(*mute))) == ("prefill", "prefill.unexplained", ())
    front = tuple(r for r in CROWDED if r.tgid == FRONT)
    assert processor(slow(*front)) is None
    runner = tuple(r for r in CROWDED if r.tgid == NEW)
    assert processor(slow(*runner)) == told(runs=0.25, waits=0.75, others=None)
    once = tuple(replace(r, waited_ns=None) if r.ts_ns == ns(1000) else r for r in CROWDED)
    assert processor(slow(*once)) == told(runs=0.25, waits=None, others=1.75)


def test_a_whole_reply_counts_until_it_is_generated() -> None:
    """How long that took is the server's word."""
    req = request(read=0.2, head=3.2, end=2000, stream=False, event_stream=False)
    says = Says(prompt_ms=990.0, prompt_n=26, cache_n=0, predicted_ms=1000.0)
    e = slow(
        *steady(0.25, 0.75, 1.75, at=(-5000, 4, 250, 500, 998)), *look(1990, 4000, 9000, 9000),
        req=req, hop=hop(arrival=1, read=1.1, body=1, head=3, end=2000, says=says),
    )  # fmt: skip
    found = processor(e)
    assert found is not None and found.waited_ns is not None
    assert found.waited_ns == 0.75 * found.took_ns
    assert found.took_ns < 1000 * MS


# --- any work, looked at at any time ------------------------------------------------------

rates = st.integers(0, 8).map(float)


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(rates, rates, rates),
    st.tuples(rates, rates),
    st.integers(-3000, -1),
    st.lists(st.integers(-400, 2600) | st.integers(-4000, 6000), max_size=24, unique=True),
)
def test_right_or_unknown(
    mine: tuple[float, float, float],
    before: tuple[float, float],
    ended: int,
    at: list[int],
) -> None:
    """A server worked on another request, was idle, worked on this one until its end, and others
    ran beside: whenever it was looked at, what is told is what was in the prompt."""
    runs, waits, others = mine

    def done(t: float, this: float, that: float) -> float:
        return this * min(2101.0, max(0, t)) + that * (min(t, ended) + 4000)

    looks = [
        r
        for t in sorted(at)
        for own in (done(t, runs, before[0]),)
        for r in look(t, own, done(t, waits, before[1]), others * (t + 4000) + own)
    ]
    last = replace(LAST, end_ns=ns(ended))
    found = processor(slow(*looks, others=(last,)))
    if found is None:
        return
    for got, rate in ((found.ran_ns, runs), (found.waited_ns, waits), (found.others_ns, others)):
        assert got is None or got == pytest.approx(rate * 1997 * MS, rel=1e-6, abs=50)


counts = st.integers(0, 1 << 62)


@given(
    st.lists(
        st.builds(
            Ran, ts_ns=st.integers(-(10**12), 10**13), tgid=st.sampled_from([FRONT, NEW, 7]),
            ran_ns=counts, waited_ns=st.none() | counts, host_ns=counts,
            throttled_ns=st.none() | counts,
        ),
        max_size=12,
    )
)  # fmt: skip
def test_odd_samples_change_no_sum(samples: list[Ran]) -> None:
    """Counts that run backwards and clocks that jump: no negative figure, no other phase."""
    e = slow(*samples)
    found = processor(e)
    if found is not None:
        amounts = (found.ran_ns, found.waited_ns, found.others_ns, found.throttled_ns)
        assert all(n is None or n >= 0 for n in amounts)
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
