"""Links come and go; slow ones leave in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.workloads.waiting import wait_for
from tracer.kernel import libbpf
from tracer.kernel.links import Links


@dataclass
class Kernel:
    """Hands out numbers; a link is destroyed when `gate` is open."""

    attached: list[int] = field(default_factory=list)
    destroyed: list[int] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def attach(self) -> int:
        self.attached.append(len(self.attached) + 1)
        return self.attached[-1]

    def destroy(self, link: int) -> None:
        assert self.gate.wait(10)
        self.destroyed.append(link)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    found = Kernel()
    monkeypatch.setattr(libbpf, "destroy_link", found.destroy)
    yield found
    found.gate.set()


def test_drop_at_once(kernel: Kernel) -> None:
    kernel.gate.set()
    links = Links()
    links.add("a", kernel.attach)
    links.drop("a")
    links.drop("a")
    links.drop("b")
    assert kernel.destroyed == [1]


def test_a_slow_one_keeps_nobody_waiting_and_comes_back(kernel: Kernel) -> None:
    links = Links()
    for name in "abc":
        links.add(name, kernel.attach)
    for name in "abc":
        links.drop(name, later=True)
    assert kernel.destroyed == []
    links.add("c", kernel.attach)  # not its turn yet: no need to attach
    assert kernel.attached == [1, 2, 3]
    kernel.gate.set()
    wait_for(lambda: kernel.destroyed == [1, 2], 10, "the others to leave")
    links.add("a", kernel.attach)
    assert kernel.attached == [1, 2, 3, 4]
    links.close()
    assert sorted(kernel.destroyed) == [1, 2, 3, 4]


def test_close_waits_for_those_that_leave(kernel: Kernel) -> None:
    links = Links()
    for name in "abcd":
        links.add(name, kernel.attach)
    for name in "abc":
        links.drop(name, later=True)
    threading.Timer(0.05, kernel.gate.set).start()
    links.close()
    assert sorted(kernel.destroyed) == [1, 2, 3, 4]
