"""Decode rate with the daemon over without it: the figures follow from the replies."""

from __future__ import annotations

from bench import decode
from tests.workloads.llama import Reply

MS = 1_000_000


def reply(ttft_ms: float, token_ms: float, tokens: int = 5) -> Reply:
    """A first token after `ttft_ms`, then one each `token_ms`."""
    first = round(ttft_ms * MS)
    end = first + round(token_ms * MS) * (tokens - 1)
    return Reply(
        port=1, sent_ns=0, body_sent_ns=0, head_ns=0, status=200, first_token_ns=first,
        second_token_ns=None, end_ns=end, tokens=tokens, text="", timings={}, closed=True,
    )  # fmt: skip


def test_a_slower_server_misses_the_budget() -> None:
    absent = [reply(100, 20) for _ in range(8)]
    ratio, watched, alone, ttft = decode.rows([reply(110, 25) for _ in range(8)], absent)
    assert (ratio.measured, ratio.ok) == ("1.250 [1.250, 1.250] n=8", False)
    assert watched.measured == "40.0 tokens/s, spread 0.0 %"
    assert alone.data == {"tokens_per_s": 50.0, "spread": 0.0, "requests": 8}
    assert (ttft.data["ratio"], ttft.ok) == (1.1, None)


def test_an_equal_one_does_not() -> None:
    rows = list(decode.rows([reply(100, 20)] * 4, [reply(100, 20)] * 4))
    assert rows[0].ok is True
