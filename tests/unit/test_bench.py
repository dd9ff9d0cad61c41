"""The benchmark's own arithmetic: what it says must follow from what it measured."""

from __future__ import annotations

import json
from pathlib import Path

from bench.__main__ import table, write
from bench.common import Row, limit_row, ratio, ratio_row


def test_same_costs_are_a_ratio_of_one() -> None:
    found = ratio([3.0] * 100, [3.0] * 100)
    assert (found.value, found.low, found.high, found.pairs) == (1.0, 1.0, 1.0, 100)


def test_ratio_is_of_medians_with_an_interval_around_it() -> None:
    control = [float(n) for n in range(90, 111)]
    found = ratio([2 * one for one in reversed(control)], control)
    assert found.value == 2.0
    assert 1.8 < found.low < 2.0 < found.high < 2.2


def test_a_ratio_misses_only_when_its_lower_bound_does() -> None:
    control = [float(n) for n in range(50, 151)]
    noisy = ratio_row("noisy", [1.02 * one for one in reversed(control)], control, 1.01)
    clear = ratio_row("clear", [1.5 * one for one in control], control, 1.01)
    assert noisy.data["ratio"] > 1.01
    assert (noisy.ok, clear.ok) == (True, False)
    assert ratio_row("reported", control, control).ok is None


def test_a_limit_is_met_up_to_its_value() -> None:
    assert limit_row("memory", 40.0, 40, "MB") == Row(
        "memory", "40.0 MB", "40 MB", True, {"value": 40.0, "budget": 40, "unit": "MB"}
    )
    assert limit_row("memory", 40.01, 40, "MB").ok is False


def test_table_and_file(tmp_path: Path) -> None:
    rows = [Row("a", "2", "1", False, {"value": 2}), Row("long name", "3")]
    assert table(rows) == (
        "| what      | measured | budget |        |\n"
        "| --------- | -------- | ------ | ------ |\n"
        "| a         | 2        | 1      | MISSED |\n"
        "| long name | 3        | -      |        |"
    )
    write(tmp_path / "b.json", False, rows)
    assert json.loads((tmp_path / "b.json").read_text())["rows"] == [
        {"what": "a", "measured": "2", "budget": "1", "ok": False, "data": {"value": 2}},
        {"what": "long name", "measured": "3", "budget": "-", "ok": None, "data": {}},
    ]
