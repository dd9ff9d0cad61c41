"""Uploads, compile caches and the processor, as a request's detail and `ttft show` tell them."""

from __future__ import annotations

import orjson
from msgspec.structs import replace

from tests.unit.evidence_build import NEW, warm
from tests.unit.scenarios import router, warm_router
from tests.unit.test_contention import CROWDED, slow, steady
from tests.unit.test_device import CACHE, STARTED, call, look
from tracer import answers, render_show
from tracer.derive import derive
from tracer.evidence import Evidence
from tracer.fileevents import MIB


def detail(e: Evidence) -> dict[str, object]:
    found: dict[str, object] = answers.detail(derive(e))["evidence_detail"]
    return {name: found[name] for name in ("transfer", "compiled", "processor")}


def shown(e: Evidence) -> str:
    d = derive(e)
    return "\n".join(render_show.show({**answers.answer(d), **answers.detail(d)}))


def test_nothing_of_the_kind_is_null() -> None:
    e = warm_router(baseline=warm())
    assert detail(e) == {"transfer": None, "compiled": None, "processor": None}
    assert "to the device" not in shown(e)


def test_uploads_have_bytes_and_a_rate() -> None:
    """68 MiB in 51 ms; all of it is the phase `transfer`, so nothing is hidden."""
    e = router(calls=STARTED)
    assert detail(e)["transfer"] == {
        "bytes": 68 * MIB,
        "took_ms": 51.0,
        "bytes_per_s": round(68 * MIB / 0.051),
        "hidden_ms": 0.0,
    }
    assert "to the device 71.3 MB in 51.0 ms (1.40 GB/s)" in shown(e)


def test_what_loading_hides_of_an_upload() -> None:
    """The last 10 ms of it only, as the weights are still being mapped before."""
    early = (
        call(860, "alloc", "vulkan", bytes=8 * MIB),
        call(861, "upload", "ggml", end=891, n=31, follow=31, last=1, bytes=8 * MIB),
    )
    transfer = detail(router(calls=early))["transfer"]
    assert isinstance(transfer, dict)
    assert (transfer["took_ms"], transfer["hidden_ms"]) == (31.0, 21.0)


def test_compile_caches_are_named_with_what_was_found() -> None:
    opens = (look(5, 1), look(6, 2), look(20, 2, write=True), look(40, 3), look(900, 4))
    e = warm_router(cached=opens, baseline=warm())
    assert detail(e)["compiled"] == {"caches": [CACHE], "missed": 1, "found": 1}, "1 came later"
    assert f"compile cache 1 of 2 found in {CACHE}" in " ".join(shown(e).split())


def test_who_had_the_processor() -> None:
    """Times that passed; of sums over processors how many those are."""
    e = slow(*CROWDED)
    assert detail(e)["processor"] == {
        "waited_ms": 1497.75, "throttled_ms": None, "processors": 0.25, "others_processors": 1.75,
    }  # fmt: skip
    assert "processor     waited 1.50 s, others used 1.8 processors" in shown(e)
    held = slow(*steady(0.5, 7.5, 0.0, held=1.5))
    assert "waited 1.87 s, others used 0.0 processors, held back 1.50 s by a quota" in " ".join(
        shown(held).split()
    )


def test_what_is_not_known_of_the_processor_is_null() -> None:
    mute = slow(*(replace(r, waited_ns=None) for r in CROWDED if r.tgid == NEW))
    assert detail(mute)["processor"] == {
        "waited_ms": None, "throttled_ms": None, "processors": 0.25, "others_processors": None,
    }  # fmt: skip
    assert "  processor" not in shown(mute)


def test_a_processor_of_an_older_daemon() -> None:
    d = derive(slow(*CROWDED))
    told = {**answers.answer(d), **answers.detail(d)}
    told["evidence_detail"]["processor"] = {
        "waited_ms": 1500.0, "others_ms": 3400.0, "throttled_ms": 0.0,
    }  # fmt: skip
    assert "  processor     waited 1.50 s" in render_show.show(told)


def test_all_of_it_is_json() -> None:
    for e in (router(calls=STARTED), slow(*CROWDED)):
        whole = answers.dumps(answers.detail(derive(e)))
        assert orjson.loads(whole)["evidence_detail"].keys() >= {"transfer", "compiled"}
