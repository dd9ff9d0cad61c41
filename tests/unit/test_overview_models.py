"""Which processes hold a model now, and what memory of devices these have."""

from __future__ import annotations

from msgspec.structs import replace

from tests.unit.evidence_build import ALPHA, BETA, NEW, SIZE, T0, life, opened, span
from tests.unit.test_clocks import GPU, reading, slow, throughout
from tracer.derive import derive
from tracer.derived import Derived
from tracer.overview import Overview
from tracer.records import (
    AnyRecord,
    Exec,
    Exit,
    File,
    Fork,
    Holder,
    Process,
    Telemetry,
)

NEXT = 301
SERVER = "llama-server:8080"


def answered(model: str, runner: int = NEW, weights: File | None = None) -> Derived:
    """A request that got its token from this process, whose weights were seen or not."""
    e = slow(*throughout(210))
    assert e.hop is not None
    named = {
        "request": replace(e.request, model=model), "runner": runner,
        "hop": replace(e.hop, server_tgid=runner, model=model),
        "lives": (*e.lives[:1], life(runner, model)),
    }  # fmt: skip
    if weights is None:
        return derive(replace(e, **named, files=()))
    spans = (span(1, 20, "mmap", SIZE, token=4, populate=True, file=weights, tgid=runner),)
    opens = (opened(1, 4, weights, runner),)
    return derive(replace(e, **named, files=(weights,), opens=opens, spans=spans))


def alive(*tgids: int) -> list[AnyRecord]:
    return [Process(ts_ns=0, tgid=tgid, ppid=1, start_ns=0, comm="x") for tgid in tgids]


class Seen:
    """An overview, and what it tells of each model: who holds it, and their memory."""

    def __init__(self, *records: AnyRecord) -> None:
        self.overview = Overview({})
        self.overview.records([*records])

    def __call__(self, *told: AnyRecord | Derived) -> dict[str, tuple[object, object]]:
        for one in told:
            if isinstance(one, Derived):
                self.overview.derived([one])
            else:
                self.overview.records([one])
        models = self.overview.models(now_ns=T0)
        return {one.model: (one.pids, one.vram_bytes) for one in models}


def test_memory_of_the_process_that_holds_a_model() -> None:
    seen = Seen(*alive(NEW), reading(1, 210), reading(2, 210, device="b", tgid=77))
    assert seen(answered("beta")) == {"beta": ((NEW,), 2 << 30)}
    assert seen(reading(3, 210, device="b")) == {"beta": ((NEW,), 4 << 30)}


def test_a_process_that_is_gone_has_none() -> None:
    """Nor has another one that gets its number."""
    seen = Seen(*alive(NEW))
    assert seen(reading(1, 210), answered("beta")) == {"beta": ((NEW,), 2 << 30)}
    assert seen(Exit(ts_ns=T0, tgid=NEW)) == {"beta": ((), None)}
    assert seen(Fork(ts_ns=T0 + 1, parent=1, child=NEW, comm="x")) == {"beta": ((), None)}
    assert seen(replace(reading(4, 210), ts_ns=T0 + 2)) == {"beta": ((), None)}
    assert seen(answered("alpha")) == {"beta": ((), None), "alpha": ((NEW,), 2 << 30)}


def test_a_request_that_is_told_when_its_process_is_gone() -> None:
    seen = Seen(*alive(NEXT), *alive(NEW), Exit(ts_ns=5, tgid=NEW))
    assert seen(answered("beta"), *alive(NEW), reading(1, 210)) == {"beta": ((), None)}


def test_another_program_in_the_same_process() -> None:
    seen = Seen(*alive(NEW))
    seen(reading(1, 210), answered("beta"))
    assert seen(Exec(ts_ns=T0, tgid=NEW, comm="x")) == {"beta": ((), None)}


def test_a_device_that_was_let_go() -> None:
    seen = Seen(*alive(NEW))
    seen(reading(1, 210), answered("beta"))
    none = Holder(tgid=NEW, memory_bytes=0, gone=True)
    let_go = Telemetry(ts_ns=T0 + 9, device=GPU, source="nvml", holders=(none,))
    assert seen(let_go) == {"beta": ((NEW,), 0)}


def test_a_model_whose_process_took_up_another() -> None:
    """It may hold both, or the new one alone: of the old one nothing is known, until it answers."""
    seen = Seen(*alive(NEW))
    assert seen(reading(1, 210), answered("alpha", weights=ALPHA)) == {"alpha": ((NEW,), 2 << 30)}
    both = seen(answered("beta", weights=BETA))
    assert both == {"alpha": (None, None), "beta": ((NEW,), 2 << 30)}
    both = seen(answered("alpha", weights=ALPHA))
    assert both == {"alpha": ((NEW,), 2 << 30), "beta": (None, None)}


def test_two_names_of_the_same_weights() -> None:
    seen = Seen(*alive(NEW))
    seen(reading(1, 210), answered("beta", weights=BETA))
    assert seen(answered("assistant", weights=BETA), answered("unseen")) == {
        "beta": ((NEW,), 2 << 30), "assistant": ((NEW,), 2 << 30), "unseen": ((NEW,), 2 << 30),
    }  # fmt: skip


def test_another_process_with_the_other_model() -> None:
    seen = Seen(*alive(NEW, NEXT))
    seen(reading(1, 210), answered("alpha", weights=ALPHA))
    both = seen(answered("beta", NEXT, weights=BETA))
    assert both == {"alpha": ((NEW,), 2 << 30), "beta": ((NEXT,), None)}


def test_memory_of_which_a_part_is_unknown() -> None:
    """Of two processes that hold the same model one was never read."""
    seen = Seen(*alive(NEW, NEXT))
    seen(reading(1, 210), answered("beta"))
    assert seen(answered("beta", NEXT)) == {"beta": ((NEW, NEXT), None)}


def test_a_request_without_a_token_shows_nothing_of_who_holds_a_model() -> None:
    item = answered("beta")
    failed = replace(item, ttft_ns=None, outcome="server_error")
    seen = Seen(*alive(NEW))
    assert seen(reading(1, 210), failed) == {"beta": (None, None)}


def test_what_was_known_before_the_daemon_began() -> None:
    """The last request of a model, then who is alive."""
    seen = Seen()
    assert seen(answered("beta")) == {"beta": ((), None)}
    assert seen(*alive(NEW)) == {"beta": ((NEW,), None)}
    assert seen(Exit(ts_ns=T0, tgid=NEW), *alive(NEW)) == {"beta": ((), None)}
    assert {one.server for one in seen.overview.models()} == {SERVER}
