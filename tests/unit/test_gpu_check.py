"""What the GPU check says of records made by hand: counts, bytes, classes, and what was missed."""

from __future__ import annotations

import re

import pytest

from bench import gpu_check
from bench.gpu_check import Row, Seen
from tracer.records import AnyRecord, Call, DeviceCall, DeviceWhat, Library

TGID = 7
DONE = {"cuInit": [1, 0], "cuMemcpyHtoD_v2": [5, 500], "cuLaunchKernel": [100, 0]}


def call(symbol: str, count: int, size: int | None = None, ts: int = 1, tgid: int = TGID) -> Call:
    return Call(
        ts_ns=ts, end_ns=ts + 1, tgid=tgid, tid=tgid, library="cuda", layer="driver",
        symbol=symbol, what="upload", count=count, bytes=size,
    )  # fmt: skip


def ioctl(what: DeviceWhat, count: int, ts: int, number: int | None = None) -> DeviceCall:
    return DeviceCall(
        ts_ns=ts, end_ns=ts + 9, tgid=TGID, tid=TGID, device="nvidiactl", driver="nvidia",
        what=what, count=count, busy_ns=1_500_000, number=number,
    )  # fmt: skip


def seen(*records: AnyRecord) -> Seen:
    made = Seen()
    for record in records:
        made.take(record, TGID)
    return made


def test_equal_counts_and_bytes_are_ok() -> None:
    """A run that grew replaces itself; another process's calls are not its own."""
    found = seen(
        call("cuInit", 1, ts=1),
        call("cuMemcpyHtoD_v2", 2, 200, ts=5),
        call("cuMemcpyHtoD_v2", 3, 300, ts=5),
        call("cuMemcpyHtoD_v2", 2, 200, ts=9),
        call("cuMemcpyHtoD_v2", 99, 9, ts=9, tgid=8),
        Library(ts_ns=1, tgid=TGID, name="cuda", path="/x", functions=3),
    )
    assert found.libraries == {"cuda"}
    assert list(gpu_check.compared(DONE, found)) == [
        Row("cuInit", "1 x", "1 x", True),
        Row("cuMemcpyHtoD_v2", "5 x, 500 bytes", "5 x, 500 bytes", True),
        Row("cuLaunchKernel", "100 x", "not probed, on purpose", None),
    ]


@pytest.mark.parametrize(("count", "size"), [(4, 500), (6, 500), (5, 499), (0, 0)])
def test_any_difference_is_a_miss(count: int, size: int) -> None:
    more = [call("cuMemcpyHtoD_v2", count, size)] if count else []
    rows = {r.what: r.ok for r in gpu_check.compared(DONE, seen(call("cuInit", 1), *more))}
    assert rows == {"cuInit": True, "cuMemcpyHtoD_v2": False, "cuLaunchKernel": None}


def test_a_call_that_was_never_made_is_a_miss() -> None:
    found = seen(call("cuInit", 1), call("cuMemcpyHtoD_v2", 5, 500), call("cuMemCreate", 1, 4096))
    assert [r for r in gpu_check.compared(DONE, found) if r.ok is False] == [
        Row("cuMemCreate", "0 x", "1 x, 4,096 bytes", False)
    ]


def test_classes_of_driver_calls() -> None:
    found = seen(ioctl("open", 2, 1), ioctl("allocate", 3, 20, 0x2B), ioctl("other", 1, 40, 0xFF))
    rows = list(gpu_check.classes(found, stand_in=False))
    assert {r.what: r.ok for r in rows if r.what.startswith("any")} == {
        "any device: open": True, "any device: context": False, "any device: allocate": True,
        "any device: map": False, "any device: free": False,
    }  # fmt: skip
    assert Row("nvidiactl: allocate", "", "3 x, 1.5 ms", None) in rows
    assert Row("not in the table (last of each run)", "", "0xff", None) in rows
    assert list(gpu_check.classes(seen(), stand_in=True)) == []


def test_what_was_missed_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"phases_ms": {"init": 1.0, "load": 0.0}, "stages_ms": {}, "evidence_detail": {}}
    done = {"device": "GPU", "calls": DONE}
    good = seen(call("cuInit", 1), call("cuMemcpyHtoD_v2", 5, 500))
    assert gpu_check.report(done, good, answer, True) == 0
    assert "all was seen" in capsys.readouterr().out
    assert gpu_check.report(done, seen(), answer, True) == 1
    told = capsys.readouterr().out
    assert "2 MISSED" in told
    assert re.search(r"cuMemcpyHtoD_v2 +5 x, 500 bytes +0 x +MISSED", told)
