"""Exchanges by hand: what is told of each, and when."""

from __future__ import annotations

import pytest

from tests.unit.http_wire import (
    CONN,
    HEAD,
    LAST,
    Wire,
    chunk,
    event,
    json_reply,
    post,
    read,
)
from tracer.http import HttpReader
from tracer.records import (
    AnyRecord,
    HttpBody,
    HttpEnd,
    HttpHead,
    HttpRequest,
    HttpToken,
    HttpUnreadable,
    Says,
)

CHAT = "/v1/chat/completions"
BODY = b'{"model":"beta","stream":true,"messages":[]}'
ROLE = b'{"id":"c","model":"beta","choices":[{"delta":{"role":"assistant","content":null}}]}'
TEXT = b'{"id":"c","model":"beta","choices":[{"delta":{"content":"word"}}]}'


def request(ts: int, xid: int = 1, endpoint: str | None = CHAT, method: str = "POST") -> AnyRecord:
    return HttpRequest(ts_ns=ts, xid=xid, conn=CONN, method=method, endpoint=endpoint)


def test_stream_is_told_with_the_times_of_its_segments() -> None:
    wire = Wire().open()  # 1 and 2
    wire.send(post(CHAT + "?key=secret", BODY))  # 3, acknowledged at 4
    wire.reply(HEAD, event(ROLE), event(TEXT), event(TEXT), event(TEXT))  # 5 to 9
    wire.reply(event(b"[DONE]") + LAST)  # 10
    sent = len(b"data: " + ROLE) + 3 * len(b"data: " + TEXT) + 8 + len("data: [DONE]\n\n")
    assert read(wire.packets) == [
        request(3),
        HttpBody(ts_ns=3, xid=1, bytes=len(BODY), model="beta", stream=True),
        HttpHead(ts_ns=5, xid=1, status=200, event_stream=True),
        HttpToken(ts_ns=7, xid=1, nth=1, what="text"),
        HttpToken(ts_ns=8, xid=1, nth=2, what="text"),
        HttpEnd(ts_ns=10, xid=1, why="complete", bytes=sent, tokens=3, model="beta"),
    ]


def test_one_byte_at_a_time() -> None:
    def bytewise(data: bytes) -> list[bytes]:
        return [data[i : i + 1] for i in range(len(data))]

    call = post(CHAT, BODY)
    wire = Wire().open().send(*bytewise(call))
    answer = HEAD + event(ROLE) + event(TEXT) + LAST
    start = wire.clock + 1
    wire.reply(*bytewise(answer))
    token = start + len(HEAD + event(ROLE) + event(TEXT)) - 3  # the chunk's own CRLF comes after
    assert read(wire.packets) == [
        request(3),
        HttpBody(ts_ns=3 + 2 * (len(call) - 1), xid=1, bytes=len(BODY), model="beta", stream=True),
        HttpHead(ts_ns=start, xid=1, status=200, event_stream=True),
        HttpToken(ts_ns=token, xid=1, nth=1, what="text"),
        HttpEnd(
            ts_ns=start + len(answer) - 1,
            xid=1,
            why="complete",
            bytes=len(ROLE) + len(TEXT) + 16,
            tokens=1,
            model="beta",
        ),
    ]


def test_keep_alive_and_pipelining_keep_the_order() -> None:
    wire = Wire().open()
    wire.send(post(CHAT, BODY) + b"GET /health HTTP/1.1\r\n\r\n")  # 3
    wire.reply(json_reply(b'{"model":"beta"}'), json_reply(b'{"status":"ok"}'))  # 5, 6
    wire.send(b"GET /favicon.ico HTTP/1.1\r\n\r\n")  # 7
    wire.reply(json_reply(b"{}", b"404 Not Found"))  # 9
    assert read(wire.packets) == [
        request(3),
        HttpBody(ts_ns=3, xid=1, bytes=len(BODY), model="beta", stream=True),
        request(3, 2, "/health", "GET"),
        HttpBody(ts_ns=3, xid=2, bytes=0),
        HttpHead(ts_ns=5, xid=1, status=200),
        HttpEnd(ts_ns=5, xid=1, why="complete", bytes=16, model="beta"),
        HttpHead(ts_ns=6, xid=2, status=200),
        HttpEnd(ts_ns=6, xid=2, why="complete", bytes=15),
        request(7, 3, None, "GET"),
        HttpBody(ts_ns=7, xid=3, bytes=0),
        HttpHead(ts_ns=9, xid=3, status=404),
        HttpEnd(ts_ns=9, xid=3, why="complete", bytes=2, error=True),
    ]


def test_expect_continue_chunked_request_and_trailers() -> None:
    wire = Wire().open()
    wire.send(
        b"POST /completion HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    )  # 3
    wire.reply(b"HTTP/1.1 100 Continue\r\n\r\n")  # 5
    wire.send(chunk(b'{"mo'), chunk(b'del":"x"}'), b"0\r\nTrailer: 1\r\n\r\n")  # 6, 8, 10
    wire.reply(json_reply(b'{"content":"w"}'))  # 12
    assert read(wire.packets) == [
        request(3, endpoint="/completion"),
        HttpBody(ts_ns=10, xid=1, bytes=13, model="x", stream=False),
        HttpHead(ts_ns=12, xid=1, status=200),
        HttpEnd(ts_ns=12, xid=1, why="complete", bytes=15),
    ]


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_replies_without_a_body(status: bytes) -> None:
    wire = Wire().open().send(b"GET /props HTTP/1.1\r\n\r\n", b"GET /slots HTTP/1.1\r\n\r\n")
    wire.reply(b"HTTP/1.1 " + status + b"\r\n\r\n" + json_reply(b"[]"))
    ends = [f for f in read(wire.packets) if isinstance(f, HttpEnd)]
    assert ends == [
        HttpEnd(ts_ns=7, xid=1, why="complete", bytes=0),
        HttpEnd(ts_ns=7, xid=2, why="complete", bytes=2),
    ]


def test_a_reply_to_head_has_no_body() -> None:
    wire = Wire().open()
    wire.send(
        b"GET /props HTTP/1.1\r\n\r\nHEAD /health HTTP/1.1\r\n\r\nGET /slots HTTP/1.1\r\n\r\n"
    )
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"
    wire.reply(json_reply(b"{}") + head + json_reply(b"[1]"))
    ends = [f for f in read(wire.packets) if isinstance(f, HttpEnd)]
    assert ends == [
        HttpEnd(ts_ns=5, xid=1, why="complete", bytes=2),
        HttpEnd(ts_ns=5, xid=2, why="complete", bytes=0),
        HttpEnd(ts_ns=5, xid=3, why="complete", bytes=3),
    ]


def test_a_reply_until_close_ends_with_its_last_byte() -> None:
    wire = Wire().open().send(post(CHAT, BODY))
    wire.reply(b"HTTP/1.0 200 OK\r\n\r\n", b'{"model":"m"}').server_fin()
    assert read(wire.packets)[-1] == HttpEnd(ts_ns=6, xid=1, why="complete", bytes=13, model="m")


def test_says_from_a_whole_reply() -> None:
    reply = (
        b'{"choices":[{"message":{"content":"\\"usage\\":{\\"prompt_tokens\\":9}"}}],'
        b'"usage":{"completion_tokens":8,"prompt_tokens":26,'
        b'"prompt_tokens_details":{"cached_tokens":4}},"model":"beta",'
        b'"timings":{"prompt_ms":70.6,"prompt_n":22,"predicted_ms":90,"predicted_n":8}}'
    )
    wire = Wire().open().send(post(CHAT, BODY)).reply(json_reply(reply))
    assert read(wire.packets)[-1] == HttpEnd(
        ts_ns=5,
        xid=1,
        why="complete",
        bytes=len(reply),
        model="beta",
        says=Says(
            prompt_ms=70.6,
            prompt_n=22,
            cache_n=4,
            predicted_ms=90.0,
            predicted_n=8,
            prompt_tokens=26,
            completion_tokens=8,
        ),
    )


def test_client_gone_by_reset_while_the_model_loads() -> None:
    wire = Wire().open().send(post(CHAT, BODY)).client_reset()
    assert read(wire.packets)[2:] == [HttpEnd(ts_ns=5, xid=1, why="client_gone")]


def test_half_closed_client_still_gets_its_answer() -> None:
    wire = Wire().open().send(post(CHAT, BODY)).client_fin()
    wire.reply(json_reply(b"{}")).server_fin()
    assert read(wire.packets)[-1] == HttpEnd(ts_ns=7, xid=1, why="complete", bytes=2)


def test_closed_client_is_gone_when_the_server_gives_up() -> None:
    wire = Wire().open().send(post(CHAT, BODY)).client_fin().server_fin()
    assert read(wire.packets)[2:] == [HttpEnd(ts_ns=5, xid=1, why="client_gone")]
    wire = Wire().open().send(post(CHAT, BODY)).client_fin()
    wire.reply(HEAD, event(TEXT)).client_reset()
    assert read(wire.packets)[-1] == HttpEnd(
        ts_ns=8, xid=1, why="client_gone", bytes=len(TEXT) + 8, tokens=1, model="beta"
    )


def test_an_error_written_to_a_client_that_gave_up_is_no_answer() -> None:
    """A router whose load failed with its client's patience still writes a 500 to the socket."""
    wire = Wire().open().send(post(CHAT, BODY)).client_fin()
    gave_up = wire.packets[-1].ts_ns
    wire.reply(json_reply(b"{}").replace(b"200 OK", b"500 Internal")).server_fin()
    facts = read(wire.packets)
    (end,) = (f for f in facts if isinstance(f, HttpEnd))
    assert (end.why, end.error) == ("client_gone", True)
    assert end.ts_ns <= gave_up


def test_half_a_request_is_over_with_its_client() -> None:
    wire = Wire().open().send(post(CHAT, BODY)[:-5]).client_fin()
    assert read(wire.packets) == [request(3), HttpEnd(ts_ns=5, xid=1, why="client_gone")]


@pytest.mark.parametrize("how", ["server_fin", "server_reset"])
def test_server_gone_in_the_middle(how: str) -> None:
    wire = Wire().open().send(post(CHAT, BODY)).reply(HEAD, event(TEXT))
    getattr(wire, how)()
    assert read(wire.packets)[-1] == HttpEnd(
        ts_ns=7, xid=1, why="server_gone", bytes=len(TEXT) + 8, tokens=1, model="beta"
    )


def test_port_gone_ends_only_that_port_in_that_namespace() -> None:
    reader = HttpReader()
    read(Wire().open().send(post(CHAT, BODY)).packets, reader)
    assert reader.port_gone(50, 0, 81) == []
    assert reader.port_gone(50, 0, 8080) == [HttpEnd(ts_ns=50, xid=1, why="server_gone")]
    assert reader.connections == 0


def test_compressed_reply_keeps_its_boundaries() -> None:
    wire = Wire().open().send(post(CHAT, BODY))
    wire.reply(json_reply(b"\x1f\x8bxx", extra=b"Content-Encoding: gzip\r\n"))
    assert read(wire.packets)[2:] == [
        HttpHead(ts_ns=5, xid=1, status=200),
        HttpUnreadable(ts_ns=5, conn=CONN, why="compressed", xid=1),
        HttpEnd(ts_ns=5, xid=1, why="complete", bytes=4),
    ]


@pytest.mark.parametrize(
    "last",
    [
        b"[DONE]",
        b'{"model":"beta","done":true,"response":""}',
        b'{"content":"","stop":true}',
        b'{"type":"message_stop"}',
        b'{"type":"response.completed","response":{"model":"beta"}}',
    ],
)
def test_a_client_that_hangs_up_after_the_last_event_had_its_answer(last: bytes) -> None:
    """Many do, before the chunk that ends the reply."""
    for hang_up in (Wire.client_reset, lambda wire: wire.client_fin().server_reset()):
        wire = Wire().open().send(post(CHAT, BODY)).reply(HEAD, event(TEXT), event(last))
        (end,) = (f for f in read(hang_up(wire).packets) if isinstance(f, HttpEnd))
        assert (end.why, end.error) == ("complete", False)
        wire = Wire().open().send(post(CHAT, BODY)).reply(HEAD, event(TEXT))
        (end,) = (f for f in read(hang_up(wire).packets) if isinstance(f, HttpEnd))
        assert end.why == "client_gone"


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ([b"\x16\x03\x01\x02\x00\x01"], "tls"),
        ([b"\x16", b"\x03", b"\x01"], "tls"),
        ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], "http2"),
        ([b"P", b"RI * HTTP", b"/2.0\r\n\r\nSM\r\n\r\n"], "http2"),
        ([b"\x00\x01\x02\x03"], "not_http"),
        ([b"hello there\r\n\r\n"], "not_http"),
        ([b"CONNECT a:1 HTTP/1.1\r\n\r\n"], "not_http"),
        ([b"GET / HTTP/1.1\r\nX: " + b"a" * 300_000], "not_http"),
    ],
)
def test_what_is_not_http_is_named_once(first: list[bytes], why: str) -> None:
    wire = Wire().open().send(*first).reply(b"x", b"y").send(b"more")
    assert [(type(f), getattr(f, "why", None)) for f in read(wire.packets)] == [
        (HttpUnreadable, why)
    ]


def test_an_ignored_offer_to_upgrade_is_read_on() -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    call = post(CHAT, BODY, offer)
    for cut in (1, len(call) - 20, len(call)):
        wire = Wire().open().send(call[:cut], call[cut:]).reply(json_reply(b"{}"))
        wire.send(b"GET /health HTTP/1.1\r\n\r\n").reply(json_reply(b"{}"))
        facts = read(wire.packets)
        assert [type(f) for f in facts] == [HttpRequest, HttpBody, HttpHead, HttpEnd] * 2
        body = facts[1]
        assert isinstance(body, HttpBody)
        assert (body.bytes, body.model) == (len(BODY), "beta")


def test_an_accepted_upgrade_is_unreadable() -> None:
    wire = (
        Wire().open().send(b"GET /ws HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    )
    wire.reply(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81")
    wire.send(b"\x81\x82").reply(b"\x81\x82")
    assert [type(f) for f in read(wire.packets)] == [HttpRequest, HttpBody, HttpUnreadable, HttpEnd]


def test_snapshot_repeats_the_facts_of_open_exchanges() -> None:
    reader = HttpReader(next_xid=7)
    wire = Wire().open().send(b"GET /health HTTP/1.1\r\n\r\n").reply(json_reply(b"{}"))
    wire.send(post(CHAT, BODY)).reply(HEAD, event(TEXT), event(TEXT), event(TEXT))
    facts = read(wire.packets, reader)
    assert reader.snapshot() == facts[4:]
    assert [type(f) for f in facts[4:]] == [HttpRequest, HttpBody, HttpHead, HttpToken, HttpToken]
    assert {getattr(f, "xid", None) for f in facts} == {7, 8}
