"""What counts as a token, what does not, and what replies say about themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.http.endpoints import ENDPOINTS, find, is_inference, kind_of
from tracer.http.replies import Reply
from tracer.http.tokens import MAX_LINE, EventStream, JsonLines, Lines, parse, token
from tracer.records import HttpToken, Says


def delta(**fields: Any) -> dict[str, Any]:
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": fields}]}


NOT_TOKENS: list[dict[str, Any]] = [
    delta(role="assistant", content=None),
    delta(role="assistant", content=""),
    {**delta(role="assistant", content=None), "prompt_progress": {"total": 9, "processed": 3}},
    {"choices": [{"delta": {"reasoning_content": "llama-swap loading model: beta"}}]},
    {"choices": [], "usage": {"prompt_tokens": 3}},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {"choices": [{"text": ""}]},
    {"type": "message_start", "message": {"role": "assistant", "content": []}},
    {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "x"}},
    {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": ""}},
    {"type": "ping"},
    {"type": "response.created", "response": {"model": "m"}},
    {"type": "response.output_text.delta", "delta": ""},
    {"content": "", "stop": True},
    {"content": "", "prompt_progress": {"total": 9}},
    {"message": {"role": "assistant", "content": ""}, "done": True},
    {"response": "", "done": True},
    {"error": {"message": "x"}},
]
TOKENS: list[tuple[dict[str, Any], str, bool]] = [
    (delta(content="a"), "text", True),
    (delta(reasoning_content="a"), "reasoning", False),
    (delta(reasoning="a"), "reasoning", False),
    (delta(reasoning_content="a", content="b"), "reasoning", True),
    (delta(tool_calls=[{"index": 0, "function": {"name": "f"}}]), "tool", False),
    ({"choices": [{"text": "a"}]}, "text", True),
    ({"choices": [{"delta": {"content": "no id"}}]}, "text", True),
    ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, "text", True),
    (
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "a"}},
        "reasoning",
        False,
    ),
    (
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}},
        "tool",
        False,
    ),
    (
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}},
        "tool",
        False,
    ),
    ({"type": "response.output_text.delta", "delta": "a"}, "text", True),
    ({"type": "response.reasoning_text.delta", "delta": "a"}, "reasoning", False),
    ({"type": "response.function_call_arguments.delta", "delta": "{"}, "tool", False),
    ({"content": "a", "stop": False}, "text", True),
    ({"message": {"content": "a"}}, "text", True),
    ({"message": {"content": "", "thinking": "a"}}, "reasoning", False),
    ({"message": {"content": "", "tool_calls": [{"function": {}}]}}, "tool", False),
    ({"response": "a", "done": False}, "text", True),
    ({"response": "", "thinking": "a"}, "reasoning", False),
]


@pytest.mark.parametrize("event", NOT_TOKENS)
def test_what_does_not_count(event: dict[str, Any]) -> None:
    assert token(event) == (None, False)


@pytest.mark.parametrize(("event", "what", "answer"), TOKENS)
def test_what_counts(event: dict[str, Any], what: str, answer: bool) -> None:
    assert token(event) == (what, answer)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "choices",
                        "delta",
                        "content",
                        "type",
                        "message",
                        "usage",
                        "timings",
                        "error",
                        "response",
                        "tool_calls",
                        "model",
                        "load_duration",
                        "input_tokens",
                        "eval_count",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=15,
    )
)
def test_any_json_is_survived(value: Any) -> None:
    reply = Reply(1, "ndjson")
    reply.feed(1, json.dumps(value).encode() + b"\n")
    reply.finish(2)
    reply.says()


def sse(*events: dict[str, Any] | str) -> bytes:
    return b"".join(
        b"data: " + (e if isinstance(e, str) else json.dumps(e)).encode() + b"\n\n" for e in events
    )


def test_marks_of_a_reasoning_stream() -> None:
    reply = Reply(5, "sse")
    assert reply.feed(1, b": ping\n\n" + sse(delta(role="assistant", content=None))) == []
    assert reply.feed(2, b"event: x\r\nid: 1\r\ndata:" + sse(delta(reasoning="a"))[5:]) == [
        HttpToken(ts_ns=2, xid=5, nth=1, what="reasoning")
    ]
    assert reply.feed(3, sse(delta(reasoning="b"), delta(reasoning="c"))) == [
        HttpToken(ts_ns=3, xid=5, nth=2, what="reasoning")
    ]
    assert reply.feed(4, sse(delta(content="d"))) == [HttpToken(ts_ns=4, xid=5, nth=0, what="text")]
    assert reply.feed(5, sse(delta(content="e"), "[DONE]")) == []
    assert (reply.tokens, reply.model, reply.error) == (5, "m", False)


def test_no_first_answer_without_reasoning() -> None:
    reply = Reply(5, "sse")
    marks = reply.feed(1, sse(delta(content="a"), delta(reasoning="b"), delta(content="c")))
    assert [m.nth for m in marks] == [1, 2]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [{**delta(), "timings": {"prompt_ms": 1.5, "prompt_n": 4, "cache_n": 2}}],
            Says(prompt_ms=1.5, prompt_n=4, cache_n=2),
        ),
        (
            [
                {
                    "choices": [],
                    "usage": {
                        "prompt_tokens": 7,
                        "completion_tokens": 2,
                        "prompt_tokens_details": {"cached_tokens": 3},
                    },
                }
            ],
            Says(prompt_tokens=7, completion_tokens=2, cache_n=3),
        ),
        (
            [
                {
                    "type": "message_start",
                    "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 20}},
                },
                {"type": "message_delta", "usage": {"output_tokens": 9}},
            ],
            Says(prompt_tokens=25, cache_n=20, completion_tokens=9),
        ),
        (
            [
                {
                    "type": "response.completed",
                    "response": {
                        "usage": {
                            "input_tokens": 8,
                            "output_tokens": 2,
                            "input_tokens_details": {"cached_tokens": 1},
                        }
                    },
                }
            ],
            Says(prompt_tokens=8, completion_tokens=2, cache_n=1),
        ),
        (
            [
                {
                    "message": {"content": ""},
                    "done": True,
                    "load_duration": 2_500_000,
                    "prompt_eval_duration": 1_000_000,
                    "prompt_eval_count": 3,
                    "eval_count": 4,
                    "eval_duration": 8_000_000,
                }
            ],
            Says(
                load_ms=2.5,
                prompt_ms=1.0,
                prompt_n=3,
                prompt_tokens=3,
                predicted_n=4,
                completion_tokens=4,
                predicted_ms=8.0,
            ),
        ),
        (
            [{"content": "", "stop": True, "tokens_evaluated": 6, "tokens_predicted": 2}],
            Says(prompt_tokens=6, completion_tokens=2),
        ),
        ([{"usage": {"prompt_tokens": -1, "completion_tokens": "9"}, "timings": [1]}], None),
    ],
)
def test_says(events: list[dict[str, Any]], expected: Says | None) -> None:
    for form in ("sse", "ndjson"):
        reply = Reply(1, "sse" if form == "sse" else "ndjson")
        lines = b"".join(json.dumps(e).encode() + b"\n" for e in events)
        reply.feed(1, sse(*events) if form == "sse" else lines)
        reply.finish(2)
        assert reply.says() == expected


def test_an_error_in_a_stream() -> None:
    for event in (
        {"error": {"message": "x"}},
        {"type": "error", "error": {}},
        {"type": "response.failed", "response": {}},
        {"error": "out of memory"},
    ):
        reply = Reply(1, "sse")
        reply.feed(1, sse(delta(content="a"), event))
        assert reply.error


def test_an_error_field_of_older_servers() -> None:
    reply = Reply(1, "sse")
    assert reply.feed(1, b'error: {"code":500,"message":"x"}\n\n') == []
    assert reply.error


def test_a_stream_under_another_content_type_is_recognised() -> None:
    for cut in range(1, 8):
        reply = Reply(1, None)
        data = sse(delta(content="a"))
        marks = reply.feed(1, data[:cut]) + reply.feed(2, data[cut:])
        assert marks == [HttpToken(ts_ns=2, xid=1, nth=1, what="text")]


@given(
    st.lists(st.text(alphabet="ab\r", max_size=4), max_size=6),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_lines_are_the_same_however_cut(lines: list[str], cuts: list[int]) -> None:
    data = "\n".join([*lines, ""]).encode()
    reader, out, last = Lines(), [], 0
    for cut in sorted(min(c, len(data)) for c in cuts):
        out += reader.feed(data[last:cut])
        last = cut
    out += reader.feed(data[last:])
    assert out == [line.encode() for line in lines]


def test_an_endless_line_is_dropped_and_the_next_read() -> None:
    for stream in (EventStream(), JsonLines()):
        events: list[bytes] = []
        events += stream.feed(b'data: {"a":"')
        for _ in range(40):
            events += stream.feed(b"x" * 65536)
            assert len(stream._lines.rest()) <= MAX_LINE
        events += stream.feed(b'"}\n\ndata: {"b":1}\n\n')
        assert [e for e in events if e][-1].endswith(b'{"b":1}')
        assert not any(b"xxx" in e for e in events)


def test_data_of_several_lines_is_one_event() -> None:
    assert EventStream().feed(b'data: {"a":\ndata: 1}\n\n') == [b' {"a":\n 1}']
    assert parse(b' {"a":\n 1}') == {"a": 1}
    assert parse(b" [DONE]") is None


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/?a=/health", "/v1/chat/completions"),
        ("/chat/completions#x", "/chat/completions"),
        ("http://host:1/api/chat?x", "/api/chat"),
        ("/upstream/qwen/v1/chat/completions", "/v1/chat/completions"),
        ("/upstream/org/qwen-3/completion", "/completion"),
        ("/upstream/health", None),
        ("/", None),
        ("http://host", None),
        ("*", None),
        ("/secret/v1/chat/completions", None),
    ],
)
def test_endpoints(url: str, path: str | None) -> None:
    known = find(url)
    assert (known.path if known else None) == path


def test_kinds() -> None:
    assert kind_of("/v1/messages") == "chat" and is_inference("/api/embed")
    assert kind_of(None) is None and not is_inference(None) and not is_inference("/health")
    assert ENDPOINTS["/api/generate"].streams is True
    assert ENDPOINTS["/v1/completions"].streams is False
    assert ENDPOINTS["/v1/embeddings"].streams is None
