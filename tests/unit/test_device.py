"""What calls into libraries tell of a request: times in milliseconds from its arrival."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.evidence_build import (
    MS,
    NEW,
    evidence,
    front,
    hop,
    intervals,
    life,
    ms,
    ns,
    other,
    request,
    warm,
)
from tests.unit.scenarios import cold_router, router, warm_router
from tracer import device, phases, scene, timeline
from tracer.derive import derive
from tracer.evidence import Evidence
from tracer.fileevents import MIB
from tracer.records import Cached, Call, CallWhat, Library, Says

CACHE = "/root/.cache/mesa_shader_cache"
LAYERS = {"llama": "engine", "ggml": "engine", "vulkan": "driver", "cuda": "driver"}


def call(
    at: float, what: CallWhat, library: str = "llama", *, end: float | None = None, n: int = 1,
    follow: float = 0, last: float | None = None, tgid: int = NEW, tid: int = NEW, **kw: Any,
) -> Call:  # fmt: skip
    """A run of `n` calls from `at` to `end`; `follow` and `last` in milliseconds."""
    return Call(
        ts_ns=ns(at), end_ns=ns(at if end is None else end), tgid=tgid, tid=tid, library=library,
        layer=LAYERS[library], symbol=f"{library}_{what}", what=what, count=n,
        follow_ns=round(follow * MS), last_ns=None if last is None else round(last * MS), **kw,
    )  # fmt: skip


def decode(at: float, tokens: int, n: int = 1, end: float | None = None, **kw: Any) -> Call:
    return call(at, "decode", n=n, end=end, tokens=tokens, **kw)


def look(at: float, stem: int, *, write: bool = False, tid: int = NEW) -> Cached:
    return Cached(ts_ns=ns(at), tgid=NEW, tid=tid, folder=CACHE, stem=stem, write=write)


def tiling(e: Evidence) -> list[tuple[str, float, float]]:
    t = timeline.build(e)
    return intervals(phases.split(t), t)


STARTED = (
    call(80, "context", "vulkan", last=10),  # vkCreateInstance
    call(100, "model"),
    call(240, "context"),  # the dry run
    call(300, "model"),
    call(882, "alloc", "ggml", bytes=68 * MIB),
    call(883, "alloc", "vulkan", bytes=68 * MIB),
    call(884, "upload", "ggml", end=934, n=51, follow=54, last=4, bytes=68 * MIB),
    call(940, "context"),
    call(945, "alloc", "ggml", n=3, end=950, bytes=9 * MIB),
    call(955, "context", "ggml"),
    decode(960, 2, last=30),
)


def test_a_start_told_apart() -> None:
    """Device, upload, context, key-value cache and warm-up of the router's new runner."""
    assert tiling(router(calls=STARTED)) == [
        ("queue.socket", 0, 1.3),
        ("evict.stop", 1.3, 59),
        ("evict.wait", 59, 67),
        ("spawn.exec", 67, 80),
        ("spawn.device", 80, 90),
        ("spawn.exec", 90, 99),
        ("spawn.fit", 99, 547),
        ("load.meta", 547, 868),
        ("load.cache", 868, 882),
        ("init.rest", 882, 884),
        ("transfer.h2d", 884, 935),
        ("init.rest", 935, 940),
        ("init.context", 940, 945),
        ("init.kv", 945, 955),
        ("init.context", 955, 960),
        ("init.warmup", 960, 990),
        ("init.rest", 990, 1030),
        ("prefill.tokenize", 1030, 1035),
        ("prefill.prompt", 1035, 1113.5),
        ("prefill.relay", 1113.5, 1114),
    ]


def test_weights_that_stay_on_the_host_are_no_transfer() -> None:
    """The driver made no room for them: the engine copied them for its own use."""
    calls = tuple(c for c in STARTED if c.library != "vulkan")
    stages = ms(phases.split(timeline.build(router(calls=calls))).stages_ns)
    assert "transfer.h2d" not in stages
    assert stages["load.rest"] == 51


def test_a_transfer_under_a_load_is_hidden_by_it() -> None:
    e = cold_router(
        calls=(
            call(860, "alloc", "cuda", bytes=300 * MIB),
            call(1868, "upload", "cuda", n=100, end=6900, follow=5032, bytes=240 * MIB),
        )
    )
    tiled = phases.split(timeline.build(e))
    assert ms(tiled.overlaps_ns)["transfer+load"] == 5882 - 1868
    assert device.uploaded(scene.of(e)) == (240 * MIB, 5032 * MS)


def test_prompt_start_is_the_first_decode_of_its_tokens() -> None:
    """26 tokens in three batches; the headers' thread was late, and a warm-up came before."""
    runs = (decode(-500, 2), decode(1.5, 1), decode(5, 21), decode(20, 4), decode(29, 1))
    t = timeline.build(warm_router(calls=runs))
    assert t.prompt_start_ns == ns(1.5)
    assert intervals(phases.split(t), t) == [
        ("queue.socket", 0, 0.2),
        ("queue.front", 0.2, 1),
        ("prefill.tokenize", 1, 1.5),
        ("prefill.prompt", 1.5, 29.8),
        ("prefill.relay", 29.8, 30),
    ]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([decode(2, 26)], 2),
        ([decode(2, 13), decode(10, 13)], 2),
        ([decode(2, 512), decode(9, 26)], 9),  # of another slot, before
        ([decode(2, 52, n=2, end=40)], 2),  # the second of them after the first token
        ([decode(2, 25)], None),  # it does not add up
        ([decode(31, 26)], None),  # after the first token
        ([decode(0.5, 26)], None),  # before it came
    ],
)
def test_which_decode_is_the_prompts(runs: list[Call], expected: float | None) -> None:
    t = timeline.build(warm_router(calls=tuple(runs)))
    headers = 3
    assert t.prompt_start_ns == ns(headers if expected is None else expected)


def single(**kw: Any) -> Evidence:
    """A server of unknown make that holds the model itself and sends headers at once."""
    return evidence(
        request(read=1, body=0.5, head=2, first_token=400, end=500),
        program="custom", server="custom:8000", runner=100, lives=(front("custom", "single"),),
        resident_before=True, **kw,
    )  # fmt: skip


def test_a_decode_shows_the_engine_of_a_single_process() -> None:
    e = single(calls=(decode(150, 26, tgid=100), decode(390, 1, tgid=100)))
    t = timeline.build(e)
    assert (t.engine_seen, t.prompt_start_ns) == (True, ns(150))
    assert intervals(phases.split(t), t) == [
        ("queue.socket", 0, 1),
        ("prefill.tokenize", 1, 150),
        ("prefill.prompt", 150, 400),
    ]
    assert not timeline.build(single()).engine_seen


def test_whose_decode_it_is_cannot_be_told_beside_others() -> None:
    others = (other(16, arrival=-500, model="beta", runner=100, end=450),)
    e = single(calls=(decode(150, 26, tgid=100),), others=others)
    assert timeline.build(e).prompt_start_ns != ns(150)


def compiled(*opens: Cached, **kw: Any) -> Evidence:
    """A prompt of 2 s, in which shaders may be compiled by a thread of the driver."""
    return warm_router(
        hop=hop(arrival=1, read=1.1, body=1, head=3, first_token=1999, end=2100,
                says=Says(prompt_ms=1996.0, prompt_n=26, cache_n=0)),
        req=request(read=0.2, head=3.2, first_token=2000, second_token=2044, end=2101),
        calls=(decode(4, 26),), cached=opens, **kw,
    )  # fmt: skip


EMPTY = (
    look(100, 1, tid=7), look(600, 1, write=True, tid=8), look(605, 2, tid=7),
    look(1800, 2, write=True, tid=8),
)  # fmt: skip


def test_a_miss_and_the_write_after_it_are_compilation() -> None:
    e = compiled(*EMPTY, baseline=warm())
    d = derive(e)
    assert ms(d.phases.stages_ns) == {
        "queue.socket": 0.2, "queue.front": 0.8, "init.compile": 1695, "prefill.tokenize": 3,
        "prefill.prompt": 300, "prefill.relay": 1,
    }  # fmt: skip
    assert (d.spike.first_expanded, d.spike.dominant) == ("init", "init")
    assert (d.spike.cause, d.spike.why) == ("init.compile", ("cache.missing",))
    assert d.spike.because == (
        "1.70 s of 2.00 s (84 %) went to init: compiling kernels or shaders took 1.70 s, 2 of them "
        f"not in the cache {CACHE}, in which nothing that was looked up was there."
    )
    assert d.spike.advice == (
        "Keep the compile cache directory on a volume that survives restarts."
    )
    assert d.spike.switch_is_cause is False


def test_some_were_in_the_cache() -> None:
    d = derive(compiled(look(-900, 9), *EMPTY, baseline=warm()))
    assert (d.spike.cause, d.spike.why) == ("init.compile", ())
    assert str(d.spike.because).endswith(f"2 of them not in the cache {CACHE}.")
    assert d.spike.advice == "Keep the compile cache on storage that survives a restart."


def test_a_full_cache_is_no_compilation() -> None:
    """Look-ups that nothing was written after; the driver's calls then compile nothing."""
    pipelines = call(50, "compile", "vulkan", follow=400, last=400)
    e = _with(compiled(*(look(100 + i, i) for i in range(5))), pipelines)
    assert len(device.hits(scene.of(e))) == 5
    assert "init.compile" not in ms(phases.split(timeline.build(e)).stages_ns)


def _with(e: Evidence, *more: Call) -> Evidence:
    return msgspec.structs.replace(e, calls=(*e.calls, *more))


def test_calls_into_a_compiler_where_no_cache_is_seen() -> None:
    """Bounded by what the thread did next; short ones have compiled nothing to speak of."""
    long = call(50, "compile", "vulkan", follow=400, last=400, tid=7)
    short = call(500, "compile", "vulkan", n=30, end=700, follow=300, last=5, tid=8)
    open_end = call(900, "compile", "vulkan", tid=9)
    e = _with(compiled(), long, short, open_end)
    assert ms(phases.split(timeline.build(e)).stages_ns)["init.compile"] == 400


def test_a_compiler_process_is_compilation() -> None:
    nvcc = life(700, None, ppid=NEW, command=None, comm="ptxas", fork=200, exec=201, exit=900)
    lives = (*compiled().lives, nvcc)
    stages = ms(phases.split(timeline.build(compiled(lives=lives))).stages_ns)
    assert stages["init.compile"] == 700


def test_small_uploads_leave_a_request_warm() -> None:
    """Tokens and positions go to the device at each step."""
    e = warm_router(
        calls=(
            call(-900, "alloc", "vulkan", bytes=68 * MIB),
            call(4, "upload", "ggml", n=10, end=5, follow=1, bytes=12348),
        ),
        libraries=(
            Library(ts_ns=0, tgid=NEW, name="ggml", path="/l/libggml-base.so", functions=5),
        ),
    )
    assert derive(e).warm


@pytest.mark.parametrize(
    ("prompt_ms", "begun", "estimate"),
    [(20.3, 9.5, False), (25.2, 9.5, False), (25.8, 4, True), (60.0, 1, True), (None, 9.5, False)],
)
def test_work_on_the_prompt_well_before_its_first_decode(
    prompt_ms: float | None, begun: float, estimate: bool
) -> None:
    """Restoring what was kept of an earlier prompt is work, too, by the server's own word."""
    says = Says(prompt_ms=prompt_ms, prompt_n=26)
    served = hop(arrival=1, read=1.1, body=1, head=3, first_token=29.8, end=100, says=says)
    t = timeline.build(warm_router(calls=(decode(9.5, 26),), hop=served))
    assert t.prompt_start_ns == ns(begun)
    assert any(c.estimate for c in t.claims if c.stage == "prefill.prompt") == estimate
