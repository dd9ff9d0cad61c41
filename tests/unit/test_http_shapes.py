"""JSON of any shape, wherever text or a number is expected, cut off anywhere: facts, no error."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.http_wire import HEAD, Wire, chunk, json_reply, post, read
from tracer.http import HttpReader
from tracer.http.replies import Reply
from tracer.http.says import REPLY_KEYS, gather, says
from tracer.records import AnyRecord, HttpEnd, HttpRequest, HttpUnreadable

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
LINES = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
BARE = b"HTTP/1.1 200 OK\r\n\r\n"


def deep(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


# Raw JSON: a nest just under what the parser takes is deeper than Python's own stack.
ODD = st.sampled_from(
    [
        deep(900),
        deep(1010),
        deep(1017),
        deep(2000),
        b'{"a":' * 1010 + b"1" + b"}" * 1010,
        b"9" * 400,
        b"-1",
        b"1e308",
        b"18446744073709551615",
        b"1e999",
        b"NaN",
        b'"\\ud800"',
        b'"\xff"',
        b'"text_delta"',
        b"true",
        b"null",
        b'"' + b"x" * 5000 + b'"',
    ]
)
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
VALUES = ODD | NESTED

# `@` stands for the odd value.
REPLIES = (
    b"@",
    b'{"type":@}',
    b'{"type":"content_block_delta","delta":@}',
    b'{"type":"content_block_delta","delta":{"type":@,"text":"x"}}',
    b'{"type":"content_block_delta","delta":{"type":"text_delta","text":@}}',
    b'{"type":"content_block_start","content_block":@}',
    b'{"type":"content_block_start","content_block":{"type":@}}',
    b'{"type":"response.output_item.added","item":{"type":@}}',
    b'{"type":"response.output_text.delta","delta":@}',
    b'{"type":"response.completed","response":@}',
    b'{"type":"message_start","message":{"model":@,"usage":@}}',
    b'{"choices":@}',
    b'{"choices":[@]}',
    b'{"choices":[{"delta":@,"text":@}]}',
    b'{"choices":[{"delta":{"content":@}}],"id":@,"model":@}',
    b'{"choices":[{"delta":{"reasoning":@,"tool_calls":@,"audio":@,"refusal":@}}]}',
    b'{"message":@,"done":@}',
    b'{"message":{"content":@,"thinking":@}}',
    b'{"content":@,"stop":@,"response":@,"token":{"text":@},"thinking":@}',
    b'{"model":@,"usage":@,"timings":@,"error":@}',
    b'{"usage":{"prompt_tokens":@,"completion_tokens":@,"output_tokens":@,"input_tokens":@,'
    b'"cache_read_input_tokens":@,"cache_creation_input_tokens":@,"prompt_tokens_details":@}}',
    b'{"usage":{"input_tokens_details":{"cached_tokens":@}}}',
    b'{"timings":{"prompt_ms":@,"prompt_n":@,"cache_n":@,"predicted_ms":@,"predicted_n":@}}',
    b'{"tokens_evaluated":@,"tokens_predicted":@,"prompt_eval_count":@,"eval_count":@}',
    b'{"load_duration":@,"prompt_eval_duration":@,"eval_duration":@}',
)
REQUESTS = (b"@", b'{"model":@,"stream":@}', b'{@:@,"model":[@]}')
PATHS = ("/v1/messages", "/v1/chat/completions", "/v1/responses", "/api/chat", "/completion")


def framed(form: bytes, body: bytes) -> bytes:
    """As this kind of reply ends it: not at all."""
    if form == SSE:
        return SSE + b"data: " + body
    if form == HEAD:
        return HEAD + chunk(b"data: " + body + b"\n\n")
    return form + body


def facts_of(path: str, ask: bytes, reply: bytes, how: str) -> list[AnyRecord]:
    wire = Wire().open().send(post(path, ask)).reply(reply)
    getattr(wire, how)()
    wire.open().send(post("/v1/messages", b"{}")).reply(json_reply(b"{}"))
    reader = HttpReader()
    return read(wire.packets, reader) + reader.expire(10**18)


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(PATHS),
    st.sampled_from(REQUESTS),
    st.sampled_from(REPLIES),
    VALUES,
    st.sampled_from((SSE, HEAD, LINES, PLAIN, BARE)),
    st.floats(0, 1),
    st.sampled_from(("server_fin", "server_reset", "client_reset", "client_fin")),
)
def test_any_json_anywhere_cut_off_anywhere_is_told_and_what_follows_is_read(
    path: str, ask: bytes, reply: bytes, value: bytes, form: bytes, cut: float, how: str
) -> None:
    ask = ask.replace(b"@", value)
    whole = framed(form, reply.replace(b"@", value))
    for kept in (len(whole), round(cut * len(whole))):
        facts = facts_of(path, ask, whole[:kept], how)
        begun = [f.xid for f in facts if isinstance(f, HttpRequest)]
        ends = [f for f in facts if isinstance(f, HttpEnd)]
        assert len(begun) == 2 and sorted(begun) == sorted(f.xid for f in ends)
        assert not any(isinstance(f, HttpUnreadable) for f in facts)
        orjson.dumps([[f.says and f.says.prompt_ms, f.tokens, f.model] for f in ends])


@pytest.mark.parametrize("form", [SSE, HEAD, LINES])
@pytest.mark.parametrize("depth", range(1000, 1030, 3))
def test_a_deep_nest_as_the_name_of_a_block_ends_nothing(form: bytes, depth: int) -> None:
    """`str()` of it raised in the last breath of the reply."""
    body = b'{"type":"content_block_delta","delta":{"type":' + deep(depth) + b"}}"
    facts = facts_of("/v1/messages", b'{"stream":true}', framed(form, body), "server_fin")
    assert [f.xid for f in facts if isinstance(f, HttpEnd)] == [1, 2]


@pytest.mark.parametrize("form", [SSE, HEAD])
@pytest.mark.parametrize("method", ["feed", "finish", "says"])
@pytest.mark.parametrize("error", [RecursionError, TypeError, KeyError, OverflowError, ValueError])
def test_what_raises_over_a_reply_costs_that_exchange_alone(
    monkeypatch: pytest.MonkeyPatch, form: bytes, method: str, error: type[Exception]
) -> None:
    original = getattr(Reply, method)
    raised: list[bool] = []

    def stumble(self: Reply, *arguments: Any) -> Any:
        if not raised:
            raised.append(True)
            raise error
        return original(self, *arguments)

    monkeypatch.setattr(Reply, method, stumble)
    facts = facts_of("/v1/messages", b"{}", framed(form, b'{"content":"x"}'), "server_fin")
    (told,) = (f for f in facts if isinstance(f, HttpUnreadable))
    ends = [f for f in facts if isinstance(f, HttpEnd)]
    assert raised and told.why == "not_http"
    first, _ = ends
    assert first.xid == told.xid and first.tokens is None


@given(st.sampled_from(sorted(REPLY_KEYS)), st.integers() | st.floats())
def test_a_duration_fits_64_bits_of_nanoseconds(key: str, value: float) -> None:
    for reply in ({key: value}, {"timings": {"prompt_ms": value, "predicted_ms": value}}):
        figures: dict[str, float | int] = {}
        gather(reply, figures)
        told = says(figures)
        for took in (told.prompt_ms, told.predicted_ms, told.load_ms) if told else ():
            assert took is None or took * 1e6 < 2**63
