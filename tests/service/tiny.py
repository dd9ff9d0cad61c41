"""A model of two megabytes that a real llama-server loads.

Nearly all of it is a vocabulary that no prompt uses, as an emulated processor takes a second for
what a real one does in a millisecond. It says nothing sensible; requests choose its words by
`logit_bias`.
"""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

#: Sizes of its parts, as GGUF names them.
EMBEDDING, FEED_FORWARD, BLOCKS, HEADS, CONTEXT = 64, 128, 1, 4, 2048
_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_ALIGNMENT = 32
_LETTERS = [chr(code) for code in range(0x21, 0x7F)]
_UNUSED = [chr(0x4E00 + number) for number in range(8000)]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_WORDS = ["\u2581", *_LETTERS, *_UNUSED]
TOKENS = ["<unk>", "<s>", "</s>", *_BYTES, *_WORDS]
_TYPES = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * len(_BYTES), *[_NORMAL] * len(_WORDS)]

Shape = tuple[int, ...]


def token(text: str) -> int:
    """The number of a token of one letter."""
    return TOKENS.index(text)


def write(path: Path) -> None:
    """The model, as a GGUF file; the same bytes each time."""
    tensors = list(_tensors())
    keys = list(_keys())
    data, offset, table = [], 0, b""
    for name, shape in tensors:
        data.append(_values(name, shape))
        table += _text(name) + struct.pack("<I", len(shape))
        table += struct.pack(f"<{len(shape)}QIQ", *shape, 0, offset)
        offset += len(data[-1])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + table
    path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + b"".join(data))


def _keys() -> Iterator[bytes]:
    yield _string("general.architecture", "llama")
    yield _string("general.name", "tiny")
    for name, number in (
        ("context_length", CONTEXT),
        ("embedding_length", EMBEDDING),
        ("block_count", BLOCKS),
        ("feed_forward_length", FEED_FORWARD),
        ("attention.head_count", HEADS),
        ("vocab_size", len(TOKENS)),
    ):
        yield _number(f"llama.{name}", number)
    name = "llama.attention.layer_norm_rms_epsilon"
    yield _text(name) + struct.pack("<If", _F32, 1e-5)
    yield _string("tokenizer.ggml.model", "llama")
    words = b"".join(map(_text, TOKENS))
    yield _list("tokenizer.ggml.tokens", _STRING, words)
    yield _list("tokenizer.ggml.scores", _F32, struct.pack(f"<{len(TOKENS)}f", *_scores()))
    yield _list("tokenizer.ggml.token_type", _I32, struct.pack(f"<{len(TOKENS)}i", *_TYPES))
    for name, number in (("unknown", 0), ("bos", 1), ("eos", 2)):
        yield _number(f"tokenizer.ggml.{name}_token_id", number)


def _scores() -> list[float]:
    return [-float(number) for number in range(len(TOKENS))]


def _tensors() -> Iterator[tuple[str, Shape]]:
    wide, narrow = (EMBEDDING, FEED_FORWARD), (FEED_FORWARD, EMBEDDING)
    yield "token_embd.weight", (EMBEDDING, len(TOKENS))
    for block in range(BLOCKS):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{block}.{name}.weight", (EMBEDDING,)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{block}.{name}.weight", (EMBEDDING, EMBEDDING)
        for name, shape in (("ffn_gate", wide), ("ffn_up", wide), ("ffn_down", narrow)):
            yield f"blk.{block}.{name}.weight", shape
    yield "output_norm.weight", (EMBEDDING,)


def _values(name: str, shape: Shape) -> bytes:
    count = 1
    for side in shape:
        count *= side
    if len(shape) == 1:
        return array("f", [1.0] * count).tobytes()
    chance = random.Random(name)
    some = array("f", [chance.uniform(-0.05, 0.05) for _ in range(EMBEDDING)]).tobytes()
    return some * (count // EMBEDDING)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _string(name: str, value: str) -> bytes:
    return _text(name) + struct.pack("<I", _STRING) + _text(value)


def _number(name: str, value: int) -> bytes:
    return _text(name) + struct.pack("<II", _U32, value)


def _list(name: str, kind: int, items: bytes) -> bytes:
    return _text(name) + struct.pack("<IIQ", _ARRAY, kind, len(TOKENS)) + items
