"""What is typical, and how prefill grows with the prompt."""

from __future__ import annotations

from tests.unit.evidence_build import MS, warm
from tracer import baseline
from tracer.records import Warm

SERVER = "llama-server:8080"


def sized(points: list[tuple[int | None, float]]) -> list[Warm]:
    return [
        Warm(ts_ns=i, server=SERVER, model="beta", kind="chat/stream", ttft_ns=round(ms * MS),
             prompt_tokens=tokens, phases_ns={"prefill": round(ms * MS)})
        for i, (tokens, ms) in enumerate(points)
    ]  # fmt: skip


def of(history: list[Warm]) -> baseline.Baseline:
    return baseline.of(history, SERVER, "beta", "chat/stream")


def test_fewer_than_five_are_too_little() -> None:
    assert of(list(warm(count=4))) == baseline.Baseline(count=4)
    assert of([]).typical_ns is None


def test_only_the_same_server_model_and_kind_count() -> None:
    history = [*warm(count=4), *warm(model="alpha"), *warm(kind="chat/whole"), *warm(server="x:1")]
    assert of(history).count == 4


def test_typical_is_the_median_also_of_each_phase() -> None:
    points: list[tuple[int | None, float]] = [(10, 20), (10, 30), (10, 40), (10, 50), (10, 5000)]
    got = of(sized(points))
    assert (got.count, got.typical_ns, got.phases_ns["prefill"]) == (5, 40 * MS, 40 * MS)
    assert got.phases_ns["load"] == 0


def test_only_the_recent_past_counts() -> None:
    old: list[tuple[int | None, float]] = [(10, 9000)] * 200
    new: list[tuple[int | None, float]] = [(10, 30)] * baseline.RECENT
    assert of(sized(old + new)).typical_ns == 30 * MS


def test_growth_of_prefill_survives_an_outlier() -> None:
    """20 ms and half a millisecond a token, one request out of line."""
    points: list[tuple[int | None, float]] = [
        (n, 20 + 0.5 * n) for n in (10, 100, 200, 400, 800, 1600)
    ]
    got = of(sized([*points, (300, 3000)]))
    assert got.per_token_ns == 0.5 * MS
    assert got.prefill_ns(4000) == 2020 * MS


def test_sizes_all_alike_give_a_line_through_zero() -> None:
    got = of(sized([(20, 40), (21, 40), (22, 44), (20, 40), (20, 40)]))
    assert got.prefill_ns(2000) == 4000 * MS


def test_unknown_sizes_give_no_growth() -> None:
    points: list[tuple[int | None, float]] = [(None, 40)] * 5
    got = of(sized(points))
    assert (got.typical_ns, got.prefill_ns(100)) == (40 * MS, None)
