"""Evidence of whole situations: the worked sequences of the design, and users' cases."""

from __future__ import annotations

from typing import Any

from tests.unit.evidence_build import (
    ALPHA,
    BETA,
    NEW,
    OLD,
    SIZE,
    evidence,
    front,
    hop,
    insert,
    life,
    opened,
    request,
    span,
)
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
