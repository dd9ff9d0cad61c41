"""When running code is sampled."""

from __future__ import annotations

import pytest

from tests.unit.build import NETNS, ms
from tracer.http.endpoints import is_inference
from tracer.records import (
    AnyRecord,
    Conn,
    Exec,
    File,
    HttpBody,
    HttpEnd,
    HttpRequest,
    HttpToken,
    Insert,
    Span,
)
from tracer.stacks.when import AT_MOST_NS, READING_NS, When

CONN = Conn(NETNS, "127.0.0.1", 8080, "127.0.0.1", 40000)
CHAT = "/v1/chat/completions"
WEIGHTS = File(ts_ns=0, dev=1, ino=10, size=1 << 30, fmt="gguf")


def asked(at: float, xid: int, endpoint: str | None = CHAT) -> list[AnyRecord]:
    return [
        HttpRequest(ts_ns=ms(at), xid=xid, conn=CONN, method="POST", endpoint=endpoint),
        HttpBody(ts_ns=ms(at), xid=xid, bytes=100, stream=True),
    ]


def answered(at: float, xid: int) -> list[AnyRecord]:
    return [
        HttpToken(ts_ns=ms(at), xid=xid, nth=1, what="text"),
        HttpEnd(ts_ns=ms(at + 10), xid=xid, why="complete"),
    ]


def read(at: float, ino: int = 10) -> Insert:
    return Insert(ts_ns=ms(at - 5), end_ns=ms(at), dev=1, ino=ino, pages=10, tgid=7)


def after(*records: AnyRecord) -> When:
    when = When()
    for record in (WEIGHTS, *records):
        when.feed(record)
    return when


def warm(times: int = 3, took: float = 50) -> list[AnyRecord]:
    found: list[AnyRecord] = []
    for n in range(times):
        found += [*asked(1000 * n, n), *answered(1000 * n + took, n)]
    return found


def test_nothing_is_sampled_while_nothing_waits() -> None:
    assert not after().wanted(ms(0))
    assert not after(*asked(0, 1), *answered(50, 1)).wanted(ms(60))


def test_a_request_of_an_unknown_kind_is() -> None:
    assert after(*asked(0, 1)).wanted(ms(1))


def test_a_warm_one_is_not_until_it_lasts_longer_than_is_typical() -> None:
    when = after(*warm(), *asked(5000, 9))
    assert not when.wanted(ms(5249))
    assert when.wanted(ms(5251))
    slow = after(*warm(took=1000), *asked(5000, 9))
    assert not slow.wanted(ms(7999))
    assert slow.wanted(ms(8001))


def test_a_warm_one_is_once_something_cold_happens() -> None:
    when = after(*warm(), *asked(5000, 9))
    when.feed(Exec(ts_ns=ms(4999), tgid=7, comm="x"))
    assert not when.wanted(ms(5001))
    when.feed(Exec(ts_ns=ms(5002), tgid=7, comm="x"))
    assert when.wanted(ms(5003))


def test_a_request_whose_body_has_not_come_is_of_no_kind_yet() -> None:
    head, body = asked(5000, 9)
    when = after(*warm(), head)
    assert not when.wanted(ms(5001))
    assert when.wanted(ms(5251))
    when.feed(body)
    assert not when.wanted(ms(5002))
    assert not after(head).wanted(ms(5001))


def test_what_was_cold_is_no_measure_of_warm() -> None:
    cold = [*asked(0, 1), Exec(ts_ns=ms(10), tgid=7, comm="x"), *answered(9000, 1)]
    when = after(*cold, *warm(), *asked(20_000, 9))
    assert when.wanted(ms(20_251))


def test_a_plain_read_is_not() -> None:
    when = after(*asked(0, 1), read(100))
    assert not when.wanted(ms(100))
    assert not when.wanted(ms(100) + READING_NS - 1)
    assert when.wanted(ms(100) + READING_NS)
    assert after(*asked(0, 1), read(100, ino=11)).wanted(ms(100))


@pytest.mark.parametrize(("op", "sampled"), [("read", False), ("fault_minor", True)])
def test_faults_of_what_is_there_are_no_read(op: str, sampled: bool) -> None:
    span = Span(
        ts_ns=ms(50), end_ns=ms(100), tgid=7, tid=7, dev=1, ino=10, token=1,
        op=op,  # type: ignore[arg-type]
        count=1, bytes=4096, busy_ns=10,
    )  # fmt: skip
    assert after(*asked(0, 1), span).wanted(ms(101)) is sampled


def test_what_is_no_request_is_not() -> None:
    assert not is_inference("/health")
    assert not after(*asked(0, 1, "/health"), *asked(0, 2, None)).wanted(ms(5000))


def test_an_error_is_no_measure() -> None:
    failed = [
        record
        for n in range(5)
        for record in (
            *asked(100 * n, n),
            HttpEnd(ts_ns=ms(100 * n + 1), xid=n, why="complete", error=True),
        )
    ]
    assert after(*failed, *asked(5000, 9)).wanted(ms(5001))


def test_no_request_is_for_ever() -> None:
    when = after(*asked(0, 1))
    assert when.wanted(AT_MOST_NS)
    assert not when.wanted(AT_MOST_NS + 1)


def test_requests_without_end_are_bounded() -> None:
    when = When()
    for n in range(10_000):
        for record in asked(n, n):
            when.feed(record)
    for record in answered(10_001, 0):
        when.feed(record)
    assert when.wanted(ms(10_001))
