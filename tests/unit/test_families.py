"""Who is to blame for what processes cost: as few as explain it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.host import families
from tracer.host.families import Family, family_of, to_blame

#: A session with a shell that started two servers, one of them with children; a service.
SHELL: Family = ("/user", "/user/1", 10)
LOUD, QUIET = (*SHELL, 20), (*SHELL, 30)
SERVICE: Family = ("/system", "/system/ollama", 40)


@pytest.mark.parametrize(
    ("costs", "blamed"),
    [
        ([], set()),
        ([(LOUD, 2.0), (SERVICE, 2.0)], set()),
        ([(LOUD, 3.0), (QUIET, 1.0), (SERVICE, 1.0)], {20}),
        ([((*LOUD, n), 1.0) for n in range(100, 103)], {20}),
        ([((*LOUD, n), 1.0) for n in range(100, 102)] + [(LOUD, 1.0)], {20}),
        ([((*LOUD, n), 3.0) for n in range(100, 102)], {100, 101}),
        ([(LOUD, 3.0), (QUIET, 3.0)], {20, 30}),
        ([(LOUD, 2.0), (QUIET, 2.0)], {10}),
        ([(("/user", "/user/1", n), 1.0) for n in range(100, 103)], {"/user/1"}),
        ([((f"/user/{n}", n), 1.0) for n in range(100, 103)], set()),
    ],
    ids=[
        "nobody", "too little", "one process", "its children", "it and its children",
        "each child by itself", "two processes", "two that their shell started",
        "some that left their parents", "some that have nothing in common",
    ],
)  # fmt: skip
def test_the_farthest_down_that_explains_it(
    costs: list[tuple[Family, float]], blamed: set[str | int]
) -> None:
    assert to_blame(costs, 3.0) == blamed


_families = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(
    lambda path: tuple(str(path[: n + 1]) for n in range(len(path)))
)


@given(st.lists(st.tuples(_families, st.floats(0, 3)), max_size=30))
def test_what_is_left_explains_nothing_and_nobody_is_blamed_for_nothing(
    costs: list[tuple[Family, float]],
) -> None:
    blamed = to_blame(costs, 3.0)
    left = [(family, cost) for family, cost in costs if blamed.isdisjoint(family)]
    assert to_blame(left, 3.0) == set()
    for node in blamed:
        assert sum(cost for family, cost in costs if node in family) >= 3.0 - 1e-9


@pytest.mark.parametrize(
    ("group", "told"),
    [
        ("/", ()),
        ("/system.slice/ollama.service", ("/system.slice/ollama.service",)),
        (
            "/user.slice/user-1000.slice/session-3.scope",
            ("/user.slice/user-1000.slice", "/user.slice/user-1000.slice/session-3.scope"),
        ),
        ("/docker/0123", ("/docker/0123",)),
        ("/lxc.payload.nas", ("/lxc.payload.nas",)),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7.slice",
            ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7.slice",),
        ),
    ],
)
def test_who_shares_nothing_but_a_place_for_all_is_no_family(
    group: str, told: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"cgroup": f"0::{group}\n".encode(), "status": b"PPid:\t1\n"}
    monkeypatch.setattr(families, "_read", lambda _, name: files[name])
    assert family_of(7) == (*told, 7)


def test_the_family_of_a_process() -> None:
    own = family_of(os.getpid())
    assert own[-1] == os.getpid()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert family_of(child.pid) == (*own, child.pid)
    finally:
        child.communicate(b"\n")
    assert family_of(child.pid) == (child.pid,)
