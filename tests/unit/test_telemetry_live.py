"""Readings in the stream of records: of the servers where a request waits, before their tick."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from tests.unit.test_live import Source
from tracer.host.discovery import Discovery
from tracer.host.members import Member
from tracer.http.reader import HttpReader
from tracer.live import Live
from tracer.records import AnyRecord, Exit, Holder, Telemetry, Tick
from tracer.telemetry.watch import TelemetryWatch

ME = os.getpid()
READING = Telemetry(ts_ns=1, device="d", source="x", holders=(Holder(tgid=ME),))


class Noting(TelemetryWatch):
    """Notes what it is asked for, and has a reading each time."""

    def __init__(self) -> None:
        super().__init__(print)
        self.asked: list[tuple[int, ...]] = []
        self.noted: list[AnyRecord] = []

    def note(self, records: Iterable[AnyRecord]) -> None:
        self.noted += records

    def collect(self, now_ns: int, tgids: tuple[int, ...]) -> list[AnyRecord]:
        self.asked.append(tgids)
        return [READING] if tgids else []


def drained(live: Live, *fronts: int) -> list[AnyRecord]:
    batches = live.drain(busy=bool(fronts), waiting=lambda: frozenset(fronts))
    return [record for batch in batches for record in batch]


def test_of_servers_where_a_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    source, telemetry = Source(), Noting()
    discovery = Discovery(source)
    discovery.tree[ME] = Member(ME)
    live = Live(source, discovery, HttpReader(), telemetry=telemetry)
    monkeypatch.setattr("tracer.live._WHOLE_NS", 0)
    waits, other, none = drained(live, ME), drained(live, ME + 1), drained(live)
    assert telemetry.asked == [(ME,), (), ()]
    assert READING in waits and isinstance(waits[-1], Tick)
    assert READING not in [*other, *none]


def test_what_happens_to_processes_is_noted() -> None:
    source, telemetry = Source(), Noting()
    discovery = Discovery(source)
    discovery.tree[ME] = Member(ME)
    live = Live(source, discovery, HttpReader(), telemetry=telemetry)
    ended = Exit(ts_ns=5, tgid=ME, code=0)
    source.raws = [ended]
    drained(live)
    assert ended in telemetry.noted
