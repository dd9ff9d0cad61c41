"""When it matters that the file probes were off for a while, and when it does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.evidence_build import FRONT, NEW, OLD, T0, hop, insert, ns, other, request, warm
from tests.unit.scenarios import cold_router, ollama_like, router, sleeper, warm_router
from tracer.derive import derive
from tracer.evidence import Evidence
from tracer.records import Armed, Io

MIB = 1 << 20
LATE_HOP = hop(arrival=1, read=1.1, body=1, head=700, first_token=700, end=800)


def turned(on: bool, at: float, why: str | None = "arrival") -> Armed:
    return Armed(ts_ns=ns(at), group="files", on=on, why=why)


def off_until(at: float, why: str = "arrival") -> tuple[Armed, ...]:
    return (turned(False, -5000, "quiet"), turned(True, at, why))


def io(at: float, chars: int, storage: int = 0, tgid: int = NEW) -> Io:
    return Io(ts_ns=ns(at), tgid=tgid, read_chars=chars, read_bytes=storage)


def verdict(e: Evidence) -> tuple[Any, ...]:
    d = derive(e)
    return (d.phases, d.facts, d.spike, d.complete, d.warm)


@pytest.mark.parametrize(
    ("e", "at"),
    [
        (router(), 0.4),  # at the arrival
        (router(), 67.3),  # at the fork
        (router(), 73.9),  # while its libraries are linked
        (router(), 540),  # before the open that brings the bulk
        (cold_router(), 67.3),
        (sleeper(), 1.5),
        (sleeper(), 250),
        (ollama_like(), 901),
    ],
)
def test_on_in_time_is_as_good_as_ever(e: Evidence, at: float) -> None:
    late = {"armed": off_until(at)}
    assert verdict(_with(e, **late)) == verdict(e)
    assert derive(_with(e, **late)).complete


@pytest.mark.parametrize("at", [560.0, 870.0])
def test_on_after_the_bulk_was_opened(at: float) -> None:
    d = derive(router(armed=off_until(at)))
    assert d.incomplete_because == "armed.late: probes were attached while it was under way"
    assert d.timeline.unseen == ((T0, ns(at)),)
    assert (d.facts.weights_bytes, d.facts.weights_bytes_from_disk) == (None, None)
    assert d.facts.minor_faults == 0, "faults are always seen"
    assert all(x.estimate for x in d.phases.intervals if x.end_ns <= ns(at))
    assert not any(x.estimate for x in d.phases.intervals if x.start_ns >= ns(1035))
    assert sum(d.phases.phases_ns.values()) == d.ttft_ns


def test_minor_faults_are_unknown_where_what_counts_them_was_off() -> None:
    e = warm_router()
    off = msgspec.structs.replace(turned(False, -5000, "quiet"), group="paging")
    whole, thin = derive(e), derive(_with(e, armed=(off,)))
    assert thin.facts == msgspec.structs.replace(whole.facts, minor_faults=None)
    assert thin.facts.major_faults is not None
    assert thin.complete


def test_what_storage_gave_meanwhile_is_counted_all_the_same() -> None:
    counts = (io(68, 0), io(900, 9 * MIB, 5 * MIB))
    d = derive(router(armed=off_until(870), io=counts))
    assert (d.facts.weights_bytes, d.facts.weights_bytes_from_disk) == (None, 5 * MIB)
    d = derive(router(armed=off_until(870), io=counts, inserts=(insert(868, 880, 4096),)))
    assert d.facts.weights_bytes_from_disk == 16 * MIB, "pages that came in are always counted"


def test_off_all_through_a_warm_request() -> None:
    off = (turned(False, -5000, "quiet"),)
    assert verdict(warm_router(armed=off)) == verdict(warm_router())
    d = derive(warm_router(armed=off))
    assert (d.complete, d.warm, d.facts.weights_bytes) == (True, True, 0)


def test_off_for_good_is_unknown_and_not_late() -> None:
    d = derive(warm_router(armed=(turned(False, -5000, None),)))
    assert (d.facts.weights_bytes, d.facts.weights_bytes_from_disk) == (None, None)
    assert d.complete


def gone(group: str) -> Armed:
    return Armed(ts_ns=ns(-5000), group=group, on=False)


def test_a_load_without_what_would_tell_its_files() -> None:
    d = derive(router(armed=(gone("files"),)))
    told = "probes.missing: what would tell what was loaded is missing on this host, or off"
    assert d.incomplete_because == told
    assert (d.facts.weights_bytes, d.facts.weights_bytes_from_disk) == (None, None)
    first = derive(warm_router(armed=(gone("files"),), resident_before=False))
    assert first.incomplete_because == told, "nothing tells that it held its model"


def test_a_load_without_what_would_tell_its_pages() -> None:
    """Whether they came from the disk is not known, so not that they did not."""
    d = derive(router(armed=(gone("cache"),), inserts=()))
    assert d.facts.weights_bytes is not None
    assert d.facts.weights_bytes_from_disk is None
    assert d.incomplete_because and d.incomplete_because.startswith("probes.missing: ")
    assert "load.cache" not in d.phases.stages_ns
    assert d.phases.phases_ns == derive(router(inserts=())).phases.phases_ns
    assert derive(warm_router(armed=(gone("cache"),))).complete


def test_off_all_through_though_a_runner_started() -> None:
    d = derive(router(armed=(turned(False, -5000, "quiet"),)))
    assert d.facts.weights_bytes is None
    assert not d.complete


def slow(**kw: Any) -> Evidence:
    """A prompt of 0.7 s on a runner that was there, in whole: no headers tell its begin."""
    req = request(read=0.2, head=701, first_token=701, end=801)
    return warm_router(req=req, **{"hop": LATE_HOP, "baseline": warm(), **kw})


def test_a_slow_request_to_a_runner_that_surely_held_its_model() -> None:
    counts = (io(-5000, 0), io(250, 1000))
    assert derive(slow(armed=off_until(250, "slow"), io=counts)).complete
    assert not derive(slow(armed=off_until(250, "arrival"), io=counts)).complete
    assert not derive(slow(armed=off_until(250, "slow"))).complete, "not counted"
    much = (io(-5000, 0), io(250, 200 * MIB))
    assert not derive(slow(armed=off_until(250, "slow"), io=much)).complete


def test_a_while_too_short_for_a_load() -> None:
    assert derive(slow(armed=off_until(49))).complete
    assert not derive(slow(armed=off_until(52))).complete
    assert not derive(slow(armed=off_until(49), resident_before=False)).complete


def test_headers_at_once_tell_that_a_prompt_was_begun() -> None:
    begun = hop(arrival=1, read=1.1, body=1, head=3, first_token=700, end=800)
    assert derive(slow(hop=begun, armed=off_until(250, "slow"))).complete


def test_a_runner_at_work_for_another_held_its_model() -> None:
    ahead = other(
        16, arrival=-900, model="beta", runner=NEW, runner_arrival=-899, runner_head=-800,
        first_token=-700, end=500,
    )  # fmt: skip
    assert derive(slow(others=(ahead,), armed=off_until(250, "slow"))).complete
    elsewhere = other(16, arrival=-900, model="alpha", runner=OLD, first_token=-700, end=500)
    assert not derive(slow(others=(elsewhere,), armed=off_until(250, "slow"))).complete


def test_off_within_a_request() -> None:
    """Bytes that came as the probes went off."""
    armed = (turned(True, -100), turned(False, 0.1, "quiet"), turned(True, 0.6))
    assert derive(router(armed=armed)).complete
    armed = (turned(True, -100), turned(False, 600, "quiet"), turned(True, 900))
    assert derive(router(armed=armed)).timeline.unseen == ((ns(600), ns(900)),)


def test_a_front_that_serves_itself() -> None:
    counts = (io(-5000, 0, tgid=FRONT), io(250, 1000, tgid=FRONT))
    e = sleeper(opens=(), spans=(), armed=off_until(250, "slow"), io=counts, resident_before=True)
    assert derive(e).complete
    assert derive(_with(e, io=())).incomplete_because is not None


def _with(e: Evidence, **changes: Any) -> Evidence:

    return msgspec.structs.replace(e, **changes)
