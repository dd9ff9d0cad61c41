"""Evidence of whole situations: the worked sequences of the design, and users' cases."""

from __future__ import annotations

from typing import Any

from tests.unit.evidence_build import (
    ALPHA,
    BETA,
    NEW,
    OLD,
    SIZE,
    decoy,
    evidence,
    front,
    hop,
    insert,
    intervals,
    life,
    opened,
    other,
    poll,
    request,
    signal,
    span,
)
from tracer import phases, timeline
from tracer.evidence import Evidence, Life
from tracer.records import File, Insert, Open, Says, Span

PAGES = -(-SIZE // 4096)


def metadata(start: float, end: float, token: int, file: File = BETA, tgid: int = NEW) -> Span:
    """Thousands of 4 KiB reads: megabytes, but not the bulk."""
    return span(start, end, "read", 8 << 20, token=token, count=2048, file=file, tgid=tgid)


def router_opens(file: File = BETA, tgid: int = NEW) -> tuple[Open, ...]:
    """llama-server's four opens: two of the dry run, header, and the one that is mapped."""
    times = ((99, 1), (240, 2), (300, 3), (547, 4))
    return tuple(opened(at, token, file, tgid) for at, token in times)


def router_spans(mapped: tuple[float, float] = (868, 882), file: File = BETA) -> tuple[Span, ...]:
    return (
        metadata(99.5, 235, 1, file),
        metadata(300.5, 500, 3, file),
        span(*mapped, "mmap", SIZE, token=4, populate=True, file=file),
        span(mapped[1], mapped[1], "madvise", SIZE, token=4, file=file),
    )


def old_runner(**kw: Any) -> Life:
    return life(OLD, "alpha", **{"exit": 59, "exit_code": 0, **kw})


def router(**kw: Any) -> Evidence:
    """Router, warm page cache, TTFT 1114: the measured sequence."""
    base: dict[str, Any] = {
        "hop": hop(arrival=1030, read=1030.1, body=1030, head=1035, first_token=1113.5, end=1200,
                   says=Says(prompt_ms=70.6, prompt_n=26, cache_n=0)),
        "runner": NEW,
        "lives": (front(), old_runner(), life(NEW, "beta", fork=67, exec=69)),
        "opens": router_opens(),
        "spans": router_spans(),
        "previous_model": "alpha",
        "resident_before": False,
    }  # fmt: skip
    req = request(read=1.3, body=0.1, head=1035.5, first_token=1114, second_token=1128.1, end=1201)
    return evidence(kw.pop("req", req), **{**base, **kw})


def cold_router(**kw: Any) -> Evidence:
    """The same, the weights coming from a disk: 5000 ms later all round."""
    inserts: tuple[Insert, ...] = (insert(868, 5882, PAGES),)
    base: dict[str, Any] = {
        "hop": hop(arrival=6030, read=6030.1, body=6030, head=6035, first_token=6113.5, end=6200,
                   says=Says(prompt_ms=70.6, prompt_n=26, cache_n=0)),
        "spans": router_spans((868, 5882)),
        "inserts": inserts,
        "req": request(read=1.3, body=0.1, head=6035.5, first_token=6114, end=6201),
    }  # fmt: skip
    return router(**{**base, **kw})


def warm_router(**kw: Any) -> Evidence:
    """The model is resident: the front passes the request on, the runner answers."""
    base: dict[str, Any] = {
        "hop": hop(arrival=1, read=1.1, body=1, head=3, first_token=29.8, end=100,
                   says=Says(prompt_ms=25.0, prompt_n=26, cache_n=0)),
        "runner": NEW,
        "lives": (front(), life(NEW, "beta")),
        "previous_model": "beta",
        "resident_before": True,
        "files": (ALPHA, BETA),
    }  # fmt: skip
    req = request(read=0.2, head=3.2, first_token=30, second_token=44, end=101)
    return evidence(kw.pop("req", req), **{**base, **kw})


def sleeper(**kw: Any) -> Evidence:
    """A single llama-server whose model was put away: same process, weights mapped again."""
    base: dict[str, Any] = {
        "runner": 100,
        "lives": (front(role="single"),),
        "opens": tuple(opened(at, n, tgid=100) for at, n in ((2, 1), (100, 2), (140, 3), (300, 4))),
        "spans": (
            metadata(3, 90, 1, tgid=100),
            span(500, 520, "mmap", SIZE, token=4, populate=True, tgid=100),
        ),
        "previous_model": "beta",
        "resident_before": False,
    }
    req = request(read=1.2, body=0.2, head=640, first_token=720, end=900)
    return evidence(req, **{**base, **kw})


def ollama_like(**kw: Any) -> Evidence:
    """Kill, silence with a decoy in it, new runner, health checks until one is good."""
    base: dict[str, Any] = {
        "program": "ollama",
        "hop": hop(arrival=2260, head=2265, first_token=2399, end=2500),
        "runner": NEW,
        "lives": (
            front("ollama"),
            life(OLD, "alpha", exit=40, exit_signal=9, signals=(signal(10, 9, OLD),)),
            decoy(300, 420),
            life(NEW, "beta", fork=900, exec=901),
        ),
        "opens": (opened(950, 1), opened(1000, 2)),
        "spans": (span(1010, 1900, "mmap", SIZE, token=2, populate=True),),
        "polls": (
            poll(arrival=1500, head=1501, status=503),
            poll(arrival=2250, head=2251, status=200),
        ),
        "previous_model": "alpha",
        "resident_before": False,
    }
    req = request(read=1, body=1, head=2400, first_token=2400, end=2501)
    return evidence(req, **{**base, **kw})


def draining(**kw: Any) -> Evidence:
    """A request for beta while alpha generates for request 16."""
    base: dict[str, Any] = {
        "hop": hop(arrival=3030, head=3035, first_token=3113, end=3200),
        "runner": NEW,
        "lives": (
            front(),
            life(OLD, "alpha", exit=2059, exit_code=0),
            life(NEW, "beta", fork=2067, exec=2069),
        ),
        "opens": (opened(2100, 1), opened(2547, 2)),
        "spans": (span(2868, 2882, "mmap", SIZE, token=2, populate=True),),
        "others": (
            other(16, arrival=-500, model="alpha", runner=OLD, runner_arrival=-499,
                  runner_head=-495, first_token=-400, end=2000),
        ),
        "previous_model": "alpha",
        "resident_before": False,
    }  # fmt: skip
    req = request(read=1.3, body=0.1, first_token=3114, head=3036, end=3201)
    return evidence(req, **{**base, **kw})


def third(**kw: Any) -> Evidence:
    """Arrives 500 ms into the load that request 18 asked for, on a single slot."""
    shift = -500.0
    base: dict[str, Any] = {
        "id": 19,
        "hop": hop(arrival=531, head=700, first_token=780, end=900),
        "runner": NEW,
        "lives": (
            front(),
            life(OLD, "alpha", exit=59 + shift, exit_code=0),
            life(NEW, "beta", fork=67 + shift, exec=69 + shift),
        ),
        "opens": (opened(99 + shift, 1), opened(547 + shift, 2)),
        "spans": (span(868 + shift, 882 + shift, "mmap", SIZE, token=2, populate=True),),
        "others": (
            other(18, arrival=shift, model="beta", runner=NEW, runner_arrival=530,
                  runner_head=535, first_token=614, end=690),
        ),
        "previous_model": "beta",
        "resident_before": False,
    }  # fmt: skip
    req = request(read=0.5, body=0.1, head=701, first_token=781, end=901)
    return evidence(req, **{**base, **kw})


def tiling(e: Evidence) -> list[tuple[str, float, float]]:
    """What an evidence comes to, in milliseconds from arrival."""
    t = timeline.build(e)
    return intervals(phases.split(t), t)
