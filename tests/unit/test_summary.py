"""What slow first tokens add up to, from the answers and from the history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.answer_cases import ARRIVAL, MS, WALL_OFFSET, spike, warm
from tests.unit.trace_cases import arbitrary
from tracer import answers, render_spikes, summary
from tracer.derived import Derived
from tracer.render_units import width
from tracer.store import Store
from tracer.summary import Counts, ModelCount

GOLDEN = Path(__file__).parent / "golden_screens"
WALL = ARRIVAL + WALL_OFFSET


def back(number: int) -> Derived:
    """Switched back to alpha from the page cache, with nothing known of what is typical."""
    item = spike(number)
    return replace(
        item,
        model="alpha",
        facts=replace(item.facts, switched_from="beta"),
        spike=replace(item.spike, cause="spawn.fit", typical_ns=None),
    )


def summed(items: list[Derived], counts: Counts) -> dict[str, Any]:
    sums = summary.Sums()
    for one in summary.slow([[answers.dumps(answers.answer(item))] for item in items]):
        sums.add(one)
    found = summary.answer(
        counts, sums, since_ns=WALL, until_ns=WALL + 60_000 * MS, model=None, whole=True
    )
    decoded: dict[str, Any] = orjson.loads(answers.dumps(found))
    return decoded


COUNTS = Counts(
    requests=40,
    models=[
        ModelCount("alpha", ("llama-server:8080",), 10, 4, 219 * MS),
        ModelCount("beta", ("llama-server:8080",), 29, 26, 31 * MS),
        ModelCount("idle", ("ollama:11434",), 1, 0, None),
    ],
)


def test_the_whole_answer() -> None:
    found = summed([spike(1), back(2), spike(3)], COUNTS)
    lost, kept = 1912.400001 - 31, 1912.400001 - 207.400001
    assert {key: found[key] for key in ("schema", "requests", "spikes", "worst_id", "whole")} == {
        "schema": 1, "requests": 40, "spikes": 3, "worst_id": 1, "whole": True,
    }  # fmt: skip
    assert found["lost_ms"] == round(2 * lost + kept, 6)
    assert found["by_cause"] == [
        {
            "cause": "load.disk",
            "means": "weights came from the disk",
            "advice": found["by_cause"][0]["advice"],
            "models": ["beta"],
            "spikes": 2,
            "lost_ms": round(2 * lost, 6),
            "worst_ms": 1912.400001,
            "worst_id": 1,
        },
        {
            "cause": "spawn.fit",
            "means": "the runner looked at the weights to see what fits",
            "advice": found["by_cause"][1]["advice"],
            "models": ["alpha"],
            "spikes": 1,
            "lost_ms": round(kept, 6),
            "worst_ms": 1912.400001,
            "worst_id": 2,
        },
    ]
    assert [(row["model"], row["spikes"], row["warm"]) for row in found["by_model"]] == [
        ("beta", 2, 26), ("alpha", 1, 4), ("idle", 0, 0),
    ]  # fmt: skip
    pairs = [(row["from"], row["to"], row["spikes"]) for row in found["by_switch"]]
    assert pairs == [("alpha", "beta", 2), ("beta", "alpha", 1)]


def test_decoding_of_a_reply_that_is_not_streamed_is_not_lost() -> None:
    item = warm(1, ttft_ns=5000 * MS)
    stages = {**item.phases.stages_ns, "prefill.decode": 4900 * MS}
    item = replace(item, phases=replace(item.phases, stages_ns=stages))
    (one,) = summary.slow([[answers.dumps(answers.answer(item))]])
    assert one.waited_ms == 5000.0
    assert one.lost_ms == 5000 - 4900 - 31


@settings(max_examples=60, deadline=None)
@given(st.lists(arbitrary, max_size=6))
def test_the_parts_add_up_to_the_whole(items: list[Derived]) -> None:
    found = summed(items, Counts(len(items), []))
    for part in ("by_cause", "by_model"):
        rows = found[part]
        named = [item for item in items if part == "by_cause" or item.model is not None]
        assert sum(row["spikes"] for row in rows) == len(named)
    assert abs(sum(row["lost_ms"] for row in found["by_cause"]) - found["lost_ms"]) < 1e-3
    lines = render_spikes.summary(found, "24h", block="\u2588")
    assert max(map(width, lines)) <= 80
    assert all(line.isprintable() for line in lines)


def test_the_screen() -> None:
    lines = render_spikes.summary(summed([spike(1), back(2), spike(3)], COUNTS), "24h")
    assert "".join(f"{line}\n" for line in lines) == (GOLDEN / "summary.txt").read_text()


def test_the_screen_of_a_quiet_day() -> None:
    quiet = summed([], COUNTS)
    assert render_spikes.summary(quiet, "24h") == [
        "No slow first token in the last 24h, of 40 requests."
    ]
    assert render_spikes.summary({**quiet, "requests": 0}, "7d") == [
        "No requests in the last 7d. ttft status says what is watched."
    ]


def test_more_than_a_screen_holds_is_counted() -> None:
    items = [replace(spike(n), model=f"m{n}") for n in range(9)]
    text = "\n".join(render_spikes.summary(summed(items, Counts(9, [])), "24h"))
    assert "and 3 more models" in text


def test_counts_of_a_history(tmp_path: Path) -> None:
    store = Store(tmp_path / "h.db")
    later = ARRIVAL + 10_000 * MS
    store.put([warm(1), warm(2, later), warm(3, later, ttft_ns=51 * MS), spike(4, later)])
    store.put([warm(5, later, model="alpha")])
    server = ("llama-server:8080",)
    found = store.counts(WALL + 1000 * MS)
    assert found.requests == 4
    assert sorted(found.models) == [
        ModelCount("alpha", server, 1, 1, 31 * MS),
        ModelCount("beta", server, 3, 2, 31 * MS),
    ]
    assert store.counts(WALL, "beta").requests == 4
    assert store.counts(WALL, "nobody") == Counts(0, [])
    assert store.counts(WALL + 10**15) == Counts(0, [])
    store.close()


def test_what_is_typical_is_of_the_kind_asked_most(tmp_path: Path) -> None:
    store = Store(tmp_path / "h.db")
    store.put([warm(n, ARRIVAL + n * 1000 * MS, ttft_ns=140 * MS) for n in (1, 2)])
    one = warm(3, ARRIVAL + 9000 * MS, ttft_ns=1760 * MS, kind="chat")
    store.put([one])
    assert [model.typical_ns for model in store.counts(WALL).models] == [140 * MS]
    again = warm(4, ARRIVAL + 10_000 * MS, ttft_ns=1760 * MS, kind="chat")
    store.put([again])
    told = [model.typical_ns for model in store.counts(WALL).models]
    assert told == [1760 * MS], "of as many it is the latest"
    store.close()
