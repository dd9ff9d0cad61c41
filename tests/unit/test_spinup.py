"""A disk that had been asleep, told by the first read of the weights alone."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.evidence_build import BETA, SIZE, hop, insert, ms, request, span, warm
from tests.unit.scenarios import PAGES, cold_router, router, router_opens, router_spans
from tracer import scene, spinup
from tracer.derive import derive
from tracer.evidence import Evidence
from tracer.records import Insert, Says, Span

#: The dry run's first read, at 99.5, waits this long for the disk to turn.
ASLEEP = 5000


def sleeping(*more: Insert, first: float = ASLEEP, later: tuple[Span, ...] = ()) -> Evidence:
    """The router's cold load, the first read of the dry run having taken `first` ms.

    All that follows is so much later; 253 MB come in 1014 ms.
    """
    at = first
    spans = (
        span(99.5, 99.5 + at, "read", 4096, token=1),
        span(100 + at, 235 + at, "read", 8 << 20, token=1, count=2047),
        span(300.5 + at, 500 + at, "read", 8 << 20, token=3, count=2048),
        span(868 + at, 1882 + at, "mmap", SIZE, token=4, populate=True),
        *later,
    )
    inserts = (
        insert(99.6, 99.7, 32),
        insert(99.6 + at, 230 + at, 2048),
        insert(868.1 + at, 1880 + at, PAGES - 2080),
        *more,
    )
    end = 2114 + at
    return cold_router(
        spans=spans, inserts=inserts,
        opens=tuple(
            msgspec.structs.replace(o, ts_ns=o.ts_ns + (round(at * 1e6) if n else 0))
            for n, o in enumerate(router_opens())
        ),
        hop=hop(arrival=end - 84, read=end - 83.9, body=end - 84, head=end - 79,
                first_token=end - 0.5, end=end + 90,
                says=Says(prompt_ms=70.6, prompt_n=26, cache_n=0)),
        req=request(read=1.3, body=0.1, head=end - 78.5, first_token=end, end=end + 91),
        baseline=warm(),
    )  # fmt: skip


def test_the_wait_for_the_disk_is_load_wherever_it_fell() -> None:
    d = derive(sleeping())
    stages = ms(d.phases.stages_ns)
    assert stages["load.disk"] == pytest.approx(ASLEEP + 1014, rel=0.01)
    assert stages["spawn.fit"] < 500
    assert (d.spike.first_expanded, d.spike.dominant) == ("load", "load")
    assert (d.spike.cause, d.spike.why) == ("load.disk", ("load.spinup",))
    assert d.spike.because == (
        "6.33 s of 7.11 s (89 %) went to load: the first read took 5.00 s, then 253 MB of "
        "beta.gguf came from disk (sda1, ext4) in 1.01 s (250 MB/s), after alpha had been stopped "
        "to make room."
    )
    assert d.spike.advice is not None and d.spike.advice.startswith("Keep the disk from spinning")


def test_waits_no_disk_at_work_needs() -> None:
    assert derive(sleeping(first=990)).spike.why == ()
    assert derive(sleeping(first=1010)).spike.why == ("load.spinup",)


def test_a_slow_disk_waits_again() -> None:
    """A later wait of a quarter of the first one: it did not sleep, it is slow."""
    again = span(1900 + ASLEEP, 3300 + ASLEEP, "fault_major", 4096)
    page = insert(3299 + ASLEEP, 3299.1 + ASLEEP, 1)
    shorter = span(1900 + ASLEEP, 3000 + ASLEEP, "fault_major", 4096)
    assert spinup.of(scene.of(window(sleeping(page, later=(again,))))) is None
    sooner = insert(2999 + ASLEEP, 2999.1 + ASLEEP, 1)
    assert spinup.of(scene.of(window(sleeping(sooner, later=(shorter,))))) is not None


def window(e: Evidence) -> Evidence:
    """The same with its first token late enough for what comes after the load."""
    late = e.request.arrival_ns + 10_000_000_000
    return msgspec.structs.replace(
        e, request=msgspec.structs.replace(e.request, first_token_ns=late, end_ns=late + 1)
    )


def test_a_wait_in_a_file_that_was_in_memory_proves_nothing() -> None:
    """Hardly anything of it came from the disk: a busy disk made that one page wait."""
    e = sleeping()
    few = msgspec.structs.replace(e, inserts=e.inserts[:2])
    assert derive(few).spike.why == ()


def test_a_direct_read_waits_as_well() -> None:
    spans = (
        span(300.5, 4300.5, "read_direct", 1 << 20, token=4),
        span(4301, 5800, "read_direct", SIZE, token=4, count=240),
    )
    d = derive(cold_router(spans=spans, inserts=(), baseline=warm()))
    assert (d.spike.cause, d.spike.why) == ("load.disk", ("load.spinup",))
    assert "the first read took 4.00 s, then 25" in (d.spike.because or "")


def test_a_first_fault_waits_as_well() -> None:
    """No populate: the first page fault waits, the others find read-ahead at work."""
    spans = (
        *router_spans((560, 560.1))[:2],
        span(560, 560.1, "mmap", SIZE, token=4),
        span(600, 3600, "fault_major", 4096),
        span(3601, 5600, "fault_major", 4096 * 1999, count=1999, busy=1900),
    )
    inserts = (insert(600.1, 600.2, 32), insert(3600.2, 5599, PAGES - 32))
    d = derive(cold_router(spans=spans, inserts=inserts, baseline=warm()))
    assert "load.spinup" in d.spike.why


def test_warm_page_cache_and_ordinary_disks_have_none() -> None:
    for e in (router(baseline=warm()), cold_router(baseline=warm())):
        assert spinup.of(scene.of(e)) is None
        assert "load.spinup" not in derive(e).spike.why


def test_a_share_that_wakes_is_the_network() -> None:
    share = msgspec.structs.replace(BETA, fs="nfs4", device="nas:/models")
    d = derive(msgspec.structs.replace(sleeping(), files=(share,)))
    assert (d.spike.cause, d.spike.why) == ("load.network", ("load.spinup",))
