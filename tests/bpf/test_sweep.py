"""What the sweep tells of open spans and runs, on tables that change under it (no kernel)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tracer.kernel import layouts
from tracer.kernel.maps import Table
from tracer.kernel.sweep import Sweeper
from tracer.records import Insert, Span

NOW = 10_000_000_000
US = os.getpid()
GONE = 2**22 + 1  # above the highest process id


class FakeTable(Table):
    """A map in memory; `late` replaces values between the copy and the deletion."""

    def __init__(self) -> None:
        super().__init__(-1, 0, 0)
        self.rows: dict[bytes, bytes] = {}
        self.late: dict[bytes, bytes] = {}

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        yield from list(self.rows.items())

    def take(self, key: bytes) -> bytes | None:
        value = self.rows.pop(key, None)
        return self.late.get(key, value)


KEY = layouts.SPAN_KEY.packer.pack(99, 3, US, 1, 0)
GONE_KEY = layouts.SPAN_KEY.packer.pack(99, 3, GONE, 1, 0)


def state(tgid: int, count: int, end_ns: int, *, torn: bool = False) -> bytes:
    return layouts.SPAN_STATE.packer.pack(
        7, tgid, 1_000, end_ns, 500, count * 4096, count, 5, 0, 6 if torn else 7
    )


def span(tgid: int, count: int, end_ns: int) -> Span:
    return Span(
        ts_ns=1_000, end_ns=end_ns, tgid=tgid, tid=tgid, dev=3, ino=99, token=5, op="read",
        count=count, bytes=count * 4096, busy_ns=500,
    )  # fmt: skip


def test_told_again_when_it_grew() -> None:
    spans = FakeTable()
    sweeper = Sweeper(spans, FakeTable())
    told = []
    for count, end_ns, torn in (
        (1, NOW, False),
        (1, NOW, False),
        (2, NOW + 5, True),
        (2, NOW + 5, False),
    ):
        spans.rows[KEY] = state(US, count, end_ns, torn=torn)
        told.append(sweeper.sweep(NOW + 10))
    assert told == [[span(US, 1, NOW)], [], [], [span(US, 2, NOW + 5)]]


def test_quiet_span_of_a_live_thread_stays() -> None:
    spans = FakeTable()
    sweeper = Sweeper(spans, FakeTable())
    spans.rows[KEY] = state(US, 1, 2_000)
    assert sweeper.sweep(NOW) == [span(US, 1, 2_000)]
    assert sweeper.sweep(NOW) == []
    assert list(spans.rows) == [KEY]


def test_span_of_a_dead_thread_is_taken_out_with_its_last_state() -> None:
    spans = FakeTable()
    sweeper = Sweeper(spans, FakeTable())
    spans.rows[GONE_KEY] = state(GONE, 1, 2_000)
    spans.late[GONE_KEY] = state(GONE, 3, 4_000)
    assert sweeper.sweep(NOW)[-1] == span(GONE, 3, 4_000)
    assert spans.rows == {}
    assert sweeper.sweep(NOW) == []


def test_end_of_a_process() -> None:
    """Only its spans, only what was not told, and all of them taken out."""
    spans = FakeTable()
    sweeper = Sweeper(spans, FakeTable())
    spans.rows = {KEY: state(US, 1, NOW), GONE_KEY: state(GONE, 2, NOW)}
    assert len(sweeper.sweep(NOW)) == 2
    assert sweeper.end_of(GONE) == []
    assert list(spans.rows) == [KEY]
    spans.rows[KEY] = state(US, 4, NOW + 9)
    assert sweeper.end_of(US) == [span(US, 4, NOW + 9)]
    assert spans.rows == {}


def test_runs_of_insertions() -> None:
    files = FakeTable()
    sweeper = Sweeper(FakeTable(), files)
    key = layouts.FILE_KEY.packer.pack(99, 3, 0)
    told = []
    for start, end, pages, opens in (
        (0, 0, 0, 1), (50, 60, 4, 1), (50, 60, 4, 2), (50, 70, 6, 2), (90, 90, 1, 2),
    ):  # fmt: skip
        files.rows[key] = layouts.FILE_STATE.packer.pack(
            1 << 20, 99, start << 1 | 1, 1, end, 7, pages, 11, 12, 0, opens, 2, 0
        )
        told.append([(i.ts_ns, i.end_ns, i.pages) for i in runs(sweeper.sweep(NOW))])
    assert told == [[], [(50, 60, 4)], [], [(50, 70, 6)], [(90, 90, 1)]]


def runs(found: list[Span | Insert]) -> list[Insert]:
    return [each for each in found if isinstance(each, Insert)]
