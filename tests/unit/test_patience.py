"""Work that may hang: nobody waits long, and whose place hangs keeps us from nobody else."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workloads.waiting import wait_for
from tracer.host import files, reach
from tracer.host.families import Family
from tracer.host.reach import Patience

PATIENCE_S, LONG_S = 0.005, 60.0
SOON_S = 5.0


def family(tgid: int) -> Family:
    """A thousand processes each."""
    return (f"/{tgid // 1000}", tgid)


class Places:
    """Places that do not answer until they are `free`. Only for these the patience is short."""

    def __init__(self) -> None:
        self.patience = Patience(LONG_S)
        self.free = threading.Event()

    def hang(self, tgid: int, where: object = "there", result: int = 1) -> None:
        def work() -> int:
            assert self.free.wait(60)
            return result

        self.too_late(tgid, where, work)

    def too_late(
        self,
        tgid: int,
        where: object,
        work: Callable[[], int],
        late: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.patience._patience_s = PATIENCE_S
        assert self.patience.ask(tgid, where, work, late) is None
        self.patience._patience_s = LONG_S

    def answers(self, tgid: int, where: object = "here") -> bool:
        return self.patience.ask(tgid, where, lambda: 7) == 7

    def over(self) -> None:
        self.free.set()
        wait_for(lambda: not self.patience.stuck, SOON_S, "all to come back")


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    monkeypatch.setattr(reach, "family_of", family)
    made = Places()
    yield made
    made.over()


def test_what_the_work_returns_or_raises(places: Places) -> None:
    def fail() -> int:
        raise TimeoutError("its own")

    assert places.answers(1)
    assert places.patience.ask(1, "here", lambda: None) is None
    with pytest.raises(TimeoutError, match="its own"):
        places.patience.ask(1, "here", fail)
    assert places.answers(1)
    assert places.patience.stuck == set()


def test_one_process_that_hangs_wherever_it_can_keeps_us_from_no_other(places: Places) -> None:
    for where in range(100):
        places.hang(1, where)
    assert places.patience.stuck == {(1, where) for where in range(reach._STUCK_OF_FAMILY)}
    assert not places.answers(1)
    assert all(places.answers(tgid, where) for tgid in (2, 3, 1001) for where in range(100))


def test_nor_do_all_the_processes_of_a_family(places: Places) -> None:
    for tgid in range(1, 100):
        places.hang(tgid)
    assert len(places.patience.stuck) == reach._STUCK_OF_FAMILY
    assert not places.answers(100)
    assert all(places.answers(1000 + tgid) for tgid in range(100))


def test_the_last_threads_are_for_those_of_whom_nothing_hangs(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many families as one likes can be made below one's own group."""

    def below(tgid: int) -> Family:
        return ("/users/1", f"/users/1/{tgid // 1000}", tgid) if tgid < 50_000 else family(tgid)

    monkeypatch.setattr(reach, "family_of", below)
    for tgid in range(1, 40_000, 500):
        places.hang(tgid)
    assert len(places.patience.stuck) <= reach._STUCK_KNOWN_MAX
    assert all(places.answers(50_000 + 1000 * n) for n in range(100))


def test_what_a_process_is_is_worth_more(places: Places) -> None:
    places.patience._patience_s = 0.05
    freed = threading.Timer(0.1, places.free.set)
    freed.start()
    told = places.patience.ask(1, "it", lambda: places.free.wait(60), times=100)
    freed.join()
    assert told is True


def test_there_are_never_more_threads_than_some(places: Places) -> None:
    before = threading.active_count()
    for tgid in range(1, 30_000, 500):
        places.hang(tgid)
    assert len(places.patience.stuck) == reach._STUCK_MAX
    assert threading.active_count() - before <= reach._STUCK_MAX + reach._IDLE_MAX


def test_it_is_asked_again_when_it_has_come_back(places: Places) -> None:
    late: list[int] = []

    def work() -> int:
        assert places.free.wait(60)
        return 3

    places.too_late(1, "there", work, late.append)
    assert not places.answers(1, "there")
    assert places.answers(1)
    places.over()
    wait_for(lambda: late == [3], SOON_S, "what came too late")
    assert places.patience.ask(1, "there", work, late.append) == 3
    assert late == [3]


def test_what_fails_too_late_is_nobodys_concern(places: Places) -> None:
    late: list[int] = []

    def work() -> int:
        assert places.free.wait(60)
        raise OSError("gone")

    places.too_late(1, "there", work, late.append)
    places.over()
    assert (late, places.answers(1, "there")) == ([], True)


def test_who_waits_keeps_no_other_thread_waiting() -> None:
    places = Places()
    asked = threading.Event()

    def work() -> int:
        asked.set()
        assert places.free.wait(60)
        return 1

    waiting = threading.Thread(target=places.patience.ask, args=(1, "there", work))
    waiting.start()
    assert asked.wait(SOON_S)
    assert places.answers(2) and places.answers(1)
    assert waiting.is_alive()
    places.free.set()
    waiting.join(SOON_S)
    assert not waiting.is_alive()


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


def test_a_process_that_answers_just_in_time_is_asked_seldom(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold us up for as much of the time as it likes, and never hang."""
    clock = Clock()
    monkeypatch.setattr(reach, "time", clock)
    asked: Counter[int] = Counter()
    began_s = clock.now_s

    def most_s() -> float:
        # It may begin at what it may owe at most, and pays for that much more.
        owed_s = reach._SPENT_MAX_S + 0.4
        part = owed_s / reach._SPENT_MAX_S / reach._PART
        return (owed_s + (clock.now_s - began_s) * part) * 0.4 / (0.4 - reach._FREE_S)

    def ask(tgid: int, takes_s: float) -> None:
        def work() -> None:
            asked[tgid] += 1
            clock.now_s += takes_s

        places.patience.ask(tgid, "there", work)

    for _ in range(1000):
        ask(1, 0.4)
        ask(2, 0.000_01)
        ask(3, reach._FREE_S)  # of a host that is busy, all are slow
    assert asked[3] == 1000
    assert 0 < asked[1] * 0.4 <= most_s()
    assert asked[2] == 1000
    clock.now_s += 3600
    before, began_s = asked[1], clock.now_s
    for _ in range(10_000):
        ask(1, 0.4)
        clock.now_s += 0.1
    assert 0 < (asked[1] - before) * 0.4 <= most_s()


def test_nor_can_many_together_take_more_than_some_of_the_time(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them keeps below what one may; others are asked all the while."""
    clock = Clock()
    monkeypatch.setattr(reach, "time", clock)
    asked: Counter[int] = Counter()

    def ask(tgid: int, takes_s: float) -> None:
        def work() -> None:
            asked[tgid // 1000] += 1
            clock.now_s += takes_s

        places.patience.ask(tgid, "there", work)

    for turn in range(3000):
        ask(turn % 400, 0.2)
        ask(5000 + turn, 0.001)
        clock.now_s += 0.01
    took_s, all_s = asked[0] * (0.2 - reach._FREE_S), clock.now_s - 1000.0
    most_s = reach._SPENT_MAX_S * reach._FAMILY_TIMES
    assert most_s <= took_s <= most_s + 1 + all_s * reach._FAMILY_TIMES / reach._PART
    assert asked[5] + asked[6] + asked[7] == 3000


def test_what_is_kept_of_processes_is_bounded(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(reach, "time", clock)

    def work() -> None:
        clock.now_s += 0.06

    for tgid in range(0, 600_000, 1000):
        places.patience.ask(tgid, "there", work)
    assert len(places.patience._spent) <= reach._ACCOUNTS_MAX


def test_where_the_system_gives_no_more_threads(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert not places.answers(1)
    assert places.answers(1)


def test_a_path_of_one_process_says_nothing_of_the_device_for_others(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have mounted what it likes over its own path of a file that others have, too."""
    weights = tmp_path / "a.gguf"
    weights.write_bytes(b"GGUF" + bytes(2 << 20))
    info, own, other = weights.stat(), os.getpid(), 1
    held = (files.kernel_dev(info.st_dev), info.st_ino, str(weights))
    real = files._glance

    def glance(tgid: int, path: str) -> os.stat_result:
        assert tgid == own or places.free.wait(60)
        return real(own, path)

    monkeypatch.setattr(files, "_glance", glance)
    monkeypatch.setattr(files, "_mapped", lambda _: [held])
    monkeypatch.setattr(reach, "PATIENCE", places.patience)
    places.patience._patience_s = PATIENCE_S
    assert files.already_open(other, 1) == []
    places.patience._patience_s = LONG_S
    assert [file.ino for file in files.already_open(own, 1)] == [info.st_ino]
    assert files.already_open(other, 1) == []


_step = st.tuples(st.integers(1, 8), st.sampled_from([0, 1000, 2000]), st.booleans())


@settings(max_examples=20, deadline=None)
@given(st.lists(_step, max_size=30))
def test_whatever_processes_do(steps: list[tuple[int, int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reach, "family_of", family)
        places = Places()
        for number, (tgid, of, hangs) in enumerate(steps):
            stuck = Counter(owner for owner, _ in places.patience.stuck)
            families = Counter(owner // 1000 for owner in stuck.elements())
            assert max(families.values(), default=0) <= reach._STUCK_OF_FAMILY
            assert stuck.total() <= reach._STUCK_MAX
            if hangs:
                places.hang(of + tgid, number)
            elif families[of // 1000] < reach._STUCK_OF_FAMILY:
                assert places.answers(of + tgid)
        places.over()
