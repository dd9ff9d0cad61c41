"""When the page cache and memory are looked at: never while a resident model works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.unit.test_discovery import Noted, started
from tests.unit.test_host import Running
from tracer.host.discovery import Discovery
from tracer.host.processors import Processors
from tracer.host.sampler import Sampler
from tracer.records import Conn, HttpRequest, Insert, Memory, Ran, Resident

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


def asked(at: int, endpoint: str | None = "/completion") -> HttpRequest:
    conn = Conn(1, "::1", 8080, "::1", 5)
    return HttpRequest(ts_ns=at, xid=at, conn=conn, method="POST", endpoint=endpoint)


MS = 1_000_000


class Looks(Processors):
    """A sampler that tells when it looked at processors, in milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.sampler = Sampler(Discovery(Noted()))
        self.sampler._processors = self
        self.at: list[int] = []

    def look(self, tgids: Iterable[int], now_ns: int) -> list[Ran]:
        self.at.append(now_ns // MS)
        return []

    def turn(self, at: int, *, waiting: bool = False, ended: bool = False) -> None:
        self.sampler.processors(at * MS, waiting=waiting, ended=ended)

    def wait(self, since: int, until: int) -> None:
        """As the engine turns while a request waits, ten times a second."""
        for at in range(since, until, 100):
            self.turn(at, waiting=True)


def test_processors_are_looked_at_when_a_request_comes_and_while_it_waits() -> None:
    looks = Looks()
    looks.turn(1000)
    looks.sampler.note([asked(1990)])
    looks.turn(2000)
    looks.wait(2100, 3000)
    looks.turn(3005)
    looks.turn(3400)
    assert looks.at == [2000, 2300, 2600, 2900, 3005]


def test_what_a_long_wait_was_looked_at_seldom_for_is_over_with_it() -> None:
    looks = Looks()
    looks.wait(0, 80_000)
    assert 8000 < looks.at[-1] - looks.at[-2] <= 10_000
    looks.turn(80_005)
    looks.wait(80_300, 80_900)
    assert looks.at[-3:] == [80_005, 80_300, 80_600]


def test_processors_are_looked_at_when_a_request_ends_if_not_just_before() -> None:
    looks = Looks()
    for at, ended in ((1000, True), (1050, True), (1090, False), (1101, True), (1300, False)):
        looks.turn(at, ended=ended)
    assert looks.at == [1000, 1101]


def test_many_requests_do_not_mean_many_looks() -> None:
    """Nor does one that is asked for nothing that takes work."""
    looks = Looks()
    for at in range(1000, 2000, 10):
        looks.sampler.note([asked(at)])
        looks.turn(at, ended=True)
    assert looks.at == list(range(1000, 2000, 100))
    looks.sampler.note([asked(3000, "/health"), asked(3000, None)])
    looks.turn(3000)
    assert looks.at[-1] == 1900
