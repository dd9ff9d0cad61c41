"""Libraries and processes that do not answer at once are seen when they do."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bpf.libraries import Scene
from tests.workloads.library_calls import Caller
from tests.workloads.waiting import wait_for
from tracer.kernel.loader import Kernel
from tracer.libs import mappings

pytestmark = pytest.mark.kernel


@pytest.fixture
def kernel(built: Path) -> Iterator[Kernel]:
    with Kernel.open(off=("sockets", "files", "faults"), path=built) as opened:
        yield opened


def test_what_did_not_answer_is_tried_again(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy disk is no reason never to see what this process does, however late that was."""
    real, late = mappings.open_mapped, iter([True])

    def slow(mapped: mappings.Mapped) -> int:
        if mapped.name == stand_ins["cuda"].name and next(late, False):
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), mapped.path)
        return real(mapped)

    monkeypatch.setattr(mappings, "open_mapped", slow)
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        stage.is_left()
        caller.tell(f"open {stand_ins['cuda']}")
        stage.probed(caller, "cuda")
        caller.tell("call cuInit 2 0")
        assert stage.total("cuInit")[0] == 2
        (said,) = stage.said
        assert "cannot be probed yet" in said
        stage.is_left()


def test_who_did_not_answer_is_looked_at_again(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mappings, as its loader said that there are more."""
    real, silent, asked = mappings.executable, threading.Event(), threading.Event()

    def read(tgid: int) -> list[mappings.Mapped] | None:
        if not silent.is_set():
            return real(tgid)
        asked.set()
        return None

    monkeypatch.setattr(mappings, "executable", read)
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        stage.is_left()
        silent.set()
        caller.tell(f"open {stand_ins['cuda']}")

        def looked_at() -> bool:
            stage.take()
            return asked.is_set()

        wait_for(looked_at, 10, "the loader's word")
        assert stage.libraries(caller.pid) == []
        silent.clear()
        stage.probed(caller, "cuda")


def test_loader_that_did_not_answer_is_tried_again(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unseen, it would tell of nothing that is opened later."""
    real, hangs = mappings.open_mapped, threading.Event()

    def slow(mapped: mappings.Mapped) -> int:
        if hangs.is_set():
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), mapped.path)
        return real(mapped)

    monkeypatch.setattr(mappings, "open_mapped", slow)
    hangs.set()
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        hangs.clear()
        stage.is_left()
        caller.tell(f"open {stand_ins['cuda']}")
        stage.probed(caller, "cuda")
