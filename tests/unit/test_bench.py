"""The benchmark's own arithmetic: what it says must follow from what it measured."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bench import memory, probes, unrelated
from bench.__main__ import table, write
from bench.common import Plan, Row, Size, limit_row, paired, ratio, ratio_row, spread
from bench.probes import Use
from bench.unrelated import Block, Round
from bench.workload import WORKS, Slice, Unrelated, processors


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
    write(tmp_path / "b.json", "normal", rows)
    assert json.loads((tmp_path / "b.json").read_text())["rows"] == [
        {"what": "a", "measured": "2", "budget": "1", "ok": False, "data": {"value": 2}},
        {"what": "long name", "measured": "3", "budget": "-", "ok": None, "data": {}},
    ]


def test_sizes_of_a_plan(tmp_path: Path) -> None:
    def times(size: Size) -> list[int]:
        plan = Plan(size, tmp_path, tmp_path)
        return [plan.times(30, 100), plan.times(30, 100, 2), plan.times(1, 100, 2)]

    assert [times("quick"), times("normal"), times("full")] == [
        [1, 2, 1],
        [30, 30, 1],
        [100, 100, 100],
    ]


def test_what_drifts_from_pair_to_pair_cancels_out() -> None:
    control = [float(2**n) for n in range(20)]
    found = paired([1.5 * one for one in control], control)
    assert (found.value, found.low, found.high, found.pairs) == (1.5, 1.5, 1.5, 20)


def test_one_disturbed_pair_in_many_moves_nothing() -> None:
    found = paired([1.0] * 40 + [9.0], [1.0] * 41)
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_spread_is_the_middle_half() -> None:
    assert spread([1.0]) == 0.0
    assert spread([float(n) for n in range(1, 100)]) == 1.0


# --- the unrelated process --------------------------------------------------------------


def test_each_work_is_done_and_timed_within_its_slice(tmp_path: Path) -> None:
    cpu, _ = processors()
    process = Unrelated(tmp_path, cpu)
    try:
        done = [process.count(work, 40) for work in WORKS]
    finally:
        process.close()
    assert all(0 < 40 * one.ns_per_op <= one.ended_ns - one.began_ns for one in done)
    assert all(one.cpu_ns_per_op > 0 for one in done)
    order = [ns for one in done for ns in (one.began_ns, one.ended_ns)]
    assert order == sorted(order)


def test_a_work_it_does_not_know_is_no_slice(tmp_path: Path) -> None:
    process = Unrelated(tmp_path, processors()[0])
    try:
        with pytest.raises(ValueError, match="unpack"):
            process.count("nothing", 1)
    finally:
        process.close()


def block(**costs: list[float]) -> Block:
    """Slices with these costs; processor time is half of each."""
    made = Block(list)
    for work, values in costs.items():
        made[work] = [Slice(one, one / 2, 0, 1) for one in values]
    return made


def test_a_round_is_one_pair_of_medians() -> None:
    rounds: list[Round] = [
        {
            ("quiet", True): block(read_4k=[103.0 * n, 101.0 * n, 999.0 * n]),
            ("quiet", False): block(read_4k=[100.0 * n] * 3),
        }
        for n in (1, 2, 3)
    ]
    row = unrelated._row("quiet", "read_4k", rounds)
    assert (row.what, row.budget, row.ok) == (
        "4 KiB cached read, warm, quiet server", "1.02", False
    )  # fmt: skip
    assert row.measured == (
        "200 -> 303 ns: 1.030 [1.030, 1.030] n=3, processor time 1.030, spread 100 %"
    )
    assert (row.data["ratio"], row.data["slices"], row.data["cpu_ns"]) == (1.03, 9, 151.5)


def test_rounds_without_slices_are_left_out_and_none_at_all_is_a_miss() -> None:
    empty: Round = {("cold", True): block(), ("cold", False): block(read_128k=[5.0])}
    full: Round = {
        ("cold", True): block(read_128k=[5.2]), ("cold", False): block(read_128k=[5.0])
    }  # fmt: skip
    assert unrelated._row("cold", "read_128k", [empty, full]).data["rounds"] == 1
    assert unrelated._row("cold", "read_128k", [empty]) == Row(
        "128 KiB cached read, during a cold load", "no slices", "-", False
    )
    assert unrelated._row("cold", "read_1", [empty]).ok is None


# --- cost of each program ---------------------------------------------------------------


def test_programs_come_dearest_first_with_their_share_of_ttft() -> None:
    table_ = {
        "ttft_a": {probes.WARM: Use(20, 1_000, 2)},
        "ttft_b": {probes.WARM: Use(10, 3_000, 2), probes.COLD: Use(400, 40_000_000, 2)},
    }
    found = probes.rows(table_, {probes.WARM: 0.001, probes.COLD: 2.0})
    assert [(row.what, row.measured, row.ok) for row in found] == [
        ("ttft_b", "warm 5 x 300 ns, cold 200 x 100,000 ns", None),
        ("ttft_a", "warm 10 x 50 ns", None),
        ("all programs: run time / TTFT, warm", "0.40 %", True),
        ("all programs: run time / TTFT, cold", "2.00 %", False),
    ]


# --- memory by part ---------------------------------------------------------------------

SMAPS = """\
55d0c0000000-55d0c0400000 rw-p 00000000 00:00 0     [heap]
Size:               4096 kB
Rss:                3000 kB
Pss:                3000 kB
Pss_Dirty:          3000 kB
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Pss:                 900 kB
7f0000200000-7f0000300000 rw-s 00001000 00:0e 12     anon_inode:bpf-map
Pss:                 512 kB
7f0000300000-7f0000400000 r-xp 00001000 fd:00 77     /usr/lib/libpython3.11.so.1.0
Pss:                 300 kB
7f0000400000-7f0000500000 r-xp 00001000 fd:00 78     /opt/a b/_core.so
Pss:                   7 kB
7f0000500000-7f0000600000 rw-s 00000000 fd:00 79     /var/lib/ttft/history.db-shm
Pss:                  32 kB
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0     [stack]
Pss:                  50 kB
7ffc00100000-7ffc00102000 r-xp 00000000 00:00 0     [vdso]
Pss:                   0 kB
"""


def test_memory_goes_to_its_parts() -> None:
    assert memory.parts(SMAPS) == Counter(
        {
            "heap": 3000 << 10,
            "objects": 950 << 10,
            "rings": 512 << 10,
            "libraries": 307 << 10,
            "history": 32 << 10,
            "other": 0,
        }
    )


def test_memory_rows_sum_up_and_follow_each_part() -> None:
    stages = {
        "start": Counter({"heap": 39_000_000, "rings": 1_000_000}),
        "peak": Counter({"heap": 55_000_000, "rings": 1_000_000}),
    }
    assert [(row.what, row.measured, row.ok) for row in memory.rows(stages)] == [
        ("daemon memory (PSS) after the start", "40.0 MB", True),
        ("daemon memory (PSS) at most, 200 streams", "56.0 MB", False),
        ("  C heap: larger objects, SQLite's cache", "39.0 -> 55.0 MB", None),
        ("  rings of the kernel, mapped", "1.0 -> 1.0 MB", None),
    ]


def test_the_sum_of_parts_is_what_the_kernel_says_of_us() -> None:
    pid = "self"
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    whole = next(int(line.split()[1]) << 10 for line in rollup if line.startswith("Pss:"))
    found = memory.parts(Path(f"/proc/{pid}/smaps").read_text())
    assert found.total() == pytest.approx(whole, rel=0.05)
