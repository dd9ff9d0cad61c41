"""Processor time of processes and what their threads waited for it, as looks at /proc tell it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.evidence_build import MS
from tests.workloads.waiting import wait_for
from tracer.host import processors
from tracer.host.processors import Processors
from tracer.records import Ran


def looked(reader: Processors) -> Ran:
    (found,) = reader.look([os.getpid()], time.monotonic_ns())
    return found


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def ended(*threads: threading.Thread) -> None:
    """Wait until the kernel has them no more either, which is a little later."""
    for thread in threads:
        thread.join()
    tasks = [Path(f"/proc/self/task/{thread.native_id}") for thread in threads]
    wait_for(lambda: not any(task.exists() for task in tasks), 10, "their end")


def test_a_process_that_is_gone_has_no_counts() -> None:
    assert Processors().look([1 << 22], 1) == []


def test_threads_that_came_and_went_between_two_looks() -> None:
    """What they ran is the process's; what they waited went with them."""
    reader = Processors()
    first = looked(reader)
    ended(in_thread(lambda: spin(0.1)))
    second = looked(reader)
    assert 100 * MS <= second.ran_ns - first.ran_ns < 1000 * MS
    assert (first.waited_ns, second.waited_ns) == (0, None)
    spin(0.01)
    third, fourth = looked(reader), looked(reader)
    assert third.waited_ns is not None and fourth.waited_ns is not None
    assert 0 <= fourth.waited_ns - third.waited_ns < 1000 * MS
    assert third.ran_ns - second.ran_ns >= 10 * MS
    assert fourth.host_ns > 0


def test_a_process_with_more_threads_than_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they did before is not told when others end and so make room for them; nor what they
    wait, before all of them were looked at twice."""
    reader, few = Processors(), len(os.listdir("/proc/self/task"))
    monkeypatch.setattr(processors, "_MAX_THREADS", few + 3)
    early, late = threading.Event(), threading.Event()
    gate = threading.Barrier(9)

    def work(go: threading.Event) -> None:
        spin(0.02)
        gate.wait()
        go.wait()

    threads = [in_thread(partial(work, go)) for go in (early,) * 6 + (late,) * 2]
    gate.wait()
    first = looked(reader)
    early.set()
    ended(*threads[:6])
    looks = [looked(reader) for _ in range(3)]
    late.set()
    ended(*threads[6:])
    assert first.ran_ns >= 160 * MS
    assert all(one.ran_ns - first.ran_ns < 80 * MS for one in looks)
    assert [first.waited_ns, looks[0].waited_ns, looks[1].waited_ns] == [None, None, 0]
    assert looks[2].waited_ns is not None and looks[2].waited_ns < 80 * MS


# --- any threads ------------------------------------------------------------------


@dataclass
class Task:
    """Of a process the kernel tells of: its threads, and what those that ended had run."""

    threads: dict[str, list[int]] = field(default_factory=dict)
    gone_ns: int = 0
    waited_ns: int = 0
    born: int = 0

    def begin(self) -> None:
        self.born += 1
        self.threads[str(self.born % 7)] = [0, 0]

    def end(self, which: int) -> None:
        if self.threads:
            tid = sorted(self.threads)[which % len(self.threads)]
            self.gone_ns += self.threads.pop(tid)[0]

    def work(self, which: int, ran: int, waited: int) -> None:
        if self.threads:
            counts = self.threads[sorted(self.threads)[which % len(self.threads)]]
            counts[0] += ran
            counts[1] += waited
            self.waited_ns += waited

    def clock(self, _: int) -> int:
        return self.gone_ns + sum(ran for ran, _ in self.threads.values())

    def told(self, _: int) -> dict[str, tuple[int, int]] | None:
        whole = 0 < len(self.threads) <= 4
        return {t: (ran, waited) for t, (ran, waited) in self.threads.items()} if whole else None


small = st.integers(0, 3 * MS)
steps = st.one_of(
    st.just(("begin",)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("work"), st.integers(0, 9), st.integers(0, 900 * MS), small),
    st.just(("look",)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=40))
def test_what_grew_between_two_looks(does: list[tuple[object, ...]]) -> None:
    """What it ran is exact. What it waited is, too, or is short of what threads waited that ended
    and had not run for long, or it is unknown; never is it anything of before."""
    task, reader = Task(), Processors()
    seen: tuple[Ran, int] | None = None
    lost = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processors, "_ran_ns", task.clock)
        patch.setattr(processors, "_threads", task.told)
        for name, *args in [("begin",), *does]:
            if name != "look":
                if name == "end" and task.threads:
                    lost += 1
                getattr(task, str(name))(*args)
                continue
            (now,) = reader.look([os.getpid()], 1)
            truth = task.waited_ns
            assert now.ran_ns == task.clock(0)
            if seen is not None and None not in (seen[0].waited_ns, now.waited_ns):
                grown = (now.waited_ns or 0) - (seen[0].waited_ns or 0)
                assert 0 <= grown <= truth - seen[1]
                assert lost or grown == truth - seen[1]
            seen, lost = (now, truth), 0


# --- quotas -----------------------------------------------------------------------


class Groups:
    """Control groups of version 1 and 2, in folders."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.reader = root, Processors()
        for version in ("v1", "v2"):
            (root / version / "docker/a").mkdir(parents=True)
        patch.setattr(processors, "_TREES", {"": root / "v2", "cpu": root / "v1"})
        patch.setattr(processors, "_groups", lambda _: "1:cpu,cpuacct:/docker/a\n0::/docker/a\n")

    def write(self, path: str, text: str) -> None:
        (self.root / path).write_text(text)

    def held(self) -> int | None:
        return looked(self.reader).throttled_ns


def test_a_quota_of_the_group_or_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2, with the limit one above. What it held back before the first look is no news."""
    groups = Groups(tmp_path, monkeypatch)
    groups.write("v2/docker/a/cpu.max", "max 100000\n")
    assert groups.held() is None
    groups.write("v2/docker/cpu.max", "50000 100000\n")
    groups.write("v2/docker/cpu.stat", "usage_usec 9\nthrottled_usec 90000000\n")
    assert groups.held() == 0
    groups.write("v2/docker/cpu.stat", "usage_usec 9\nthrottled_usec 90002500\n")
    assert groups.held() == 2_500_000
    groups.write("v2/docker/cpu.max", "max 100000\n")
    assert groups.held() is None


def test_version_1_counts_nanoseconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups(tmp_path, monkeypatch)
    groups.write("v1/docker/a/cpu.cfs_quota_us", "-1\n")
    assert groups.held() is None
    groups.write("v1/docker/a/cpu.cfs_quota_us", "50000\n")
    groups.write("v1/docker/a/cpu.stat", "nr_periods 3\nthrottled_time 70\n")
    assert groups.held() == 0
    groups.write("v1/docker/a/cpu.stat", "nr_periods 4\nthrottled_time 147\n")
    assert groups.held() == 77


def test_a_quota_that_comes_beside_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it ever held back is not of this moment."""
    groups = Groups(tmp_path, monkeypatch)
    groups.write("v2/docker/cpu.max", "50000 100000\n")
    groups.write("v2/docker/cpu.stat", "throttled_usec 5\n")
    assert groups.held() == 0
    groups.write("v2/docker/a/cpu.max", "20000 100000\n")
    groups.write("v2/docker/a/cpu.stat", "throttled_usec 90000000\n")
    assert groups.held() is None
    assert groups.held() == 0
    groups.write("v2/docker/a/cpu.stat", "throttled_usec 90000001\n")
    assert groups.held() == 1000


def test_a_quota_whose_count_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = Groups(tmp_path, monkeypatch)
    groups.write("v2/docker/cpu.max", "50000 100000\n")
    assert groups.held() is None
