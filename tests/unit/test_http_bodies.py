"""Top-level keys of a JSON body that streams by."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.http.bodies import MAX_VALUE, TopLevel

WANTED = frozenset({"model", "stream", "usage"})


def scan(data: bytes, *cuts: int) -> TopLevel:
    found = TopLevel(WANTED)
    last = 0
    for cut in sorted(c % (len(data) + 1) for c in cuts):
        found.feed(data[last:cut])
        last = cut
    found.feed(data[last:])
    return found


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=8)
    | st.sampled_from(["model", '"model":"x"', '\\"', "\\", "}", "é😀"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["model", "stream", "a", 'q"', "\\"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["model", "stream", "usage", "messages", '"', "x\\"]), JSON),
    st.lists(st.integers(0, 10_000), max_size=6),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_same_as_a_whole_parse(
    value: dict[str, Any], cuts: list[int], ascii_only: bool, indent: int | None
) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    found = scan(data, *cuts)
    assert found.done and not found.broken
    for key in WANTED:
        assert found.has(key) == (key in value)
        assert found.get(key) == value.get(key)


@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=4))
def test_any_bytes_are_survived(data: bytes, cuts: list[int]) -> None:
    for text in (data, b"{" + data, b'{"model":' + data):
        found = scan(text, *cuts)
        for key in WANTED:
            found.get(key)


def test_model_last_after_megabytes_with_decoys() -> None:
    messages = [{"model": "decoy", "content": 'say "model":"decoy" \\' * 1000}] * 150
    body = json.dumps({"messages": messages, "stream": True, "model": "real"}).encode()
    assert len(body) > 3_000_000
    found = TopLevel(WANTED)
    for at in range(0, len(body), 65_483):
        found.feed(body[at : at + 65_483])
    assert (found.get("model"), found.get("stream")) == ("real", True)


def test_memory_stays_small_whatever_the_value() -> None:
    found = TopLevel(WANTED)
    found.feed(b'{"usage":{"x":"')
    for _ in range(64):
        found.feed(b"y" * 65536)
    found.feed(b'"},"model":"' + b"\\ud83d\\ude00" * 100_000 + b'","stream":false}')
    assert found.done and found.get("stream") is False
    assert found.get("usage") is None  # cut, so unknown
    model = found.get("model")
    assert set(model) == {"😀"} and MAX_VALUE // 12 - 1 <= len(model) <= MAX_VALUE // 12
    kept = sum(sys.getsizeof(raw) for raw in found._found.values())
    assert kept < 3 * MAX_VALUE


def test_escaped_key_and_repeated_key() -> None:
    found = scan(b'{"mod\\u0065l":"a", "model" : "b" , "stream":null}')
    assert (found.get("model"), found.get("stream")) == ("b", None)
    assert scan(b'{"mod\\u0065l":"a"}').get("model") == "a"


@pytest.mark.parametrize("data", [b"[1]", b'"model"', b"7", b"{]", b'{"a" 1}', b"\x1f\x8b"])
def test_what_is_no_object_is_broken(data: bytes) -> None:
    assert scan(data).broken
