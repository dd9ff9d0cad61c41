"""When the page cache and memory are looked at: never while a resident model works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_discovery import Noted, started
from tests.unit.test_host import Running
from tracer.host.discovery import Discovery
from tracer.host.sampler import Sampler
from tracer.records import Insert, Memory, Resident

S = 1_000_000_000


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    server = Running(tmp_path)
    yield server
    server.stop()


def test_a_file_is_looked_at_while_it_comes_in_and_after_an_answer(running: Running) -> None:
    discovery = Discovery(Noted())
    started(discovery, 1)
    ino = running.weights.stat().st_ino
    (file,) = (f for f in discovery.files() if f.ino == ino)
    sampler = Sampler(discovery)

    def looked(records: list[object]) -> list[int]:
        return [r.ino for r in records if isinstance(r, Resident) and r.ino == ino]

    first = sampler.during(1 * S)
    assert {type(r) for r in first} == {Memory}
    assert running.process.pid in {r.tgid for r in first if isinstance(r, Memory)}
    assert sampler.during(1 * S + 1) == [], "not again at once"

    sampler.note([Insert(ts_ns=1, end_ns=2, dev=file.dev, ino=ino, pages=1, tgid=1)])
    known = bool(looked([*sampler.during(2 * S)]))
    assert looked([*sampler.during(4 * S)]) == [], "nothing came in since"
    assert looked([*sampler.after(6 * S)]) == ([ino] if known else [])
