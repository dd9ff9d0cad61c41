"""A call of which the kernel left one program out is told as lost; it is never half a call."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bpf.watching import key_of
from tests.workloads.fileio import make_file
from tracer.kernel.loader import Kernel
from tracer.kernel.probes import PROBES

pytestmark = pytest.mark.kernel
MIB = 1 << 20


@pytest.fixture
def reading(built: Path, disk: Path) -> Iterator[tuple[Kernel, Path, int]]:
    """This process is watched and has a large file open."""
    path = make_file(disk / "weights", MIB)
    with Kernel.open(off=("sockets", "faults"), variant="tracepoint", path=built) as kernel:
        kernel.watch(os.getpid())
        fd = os.open(path, os.O_RDONLY)
        yield kernel, path, fd
        os.close(fd)


def read_without(kernel: Kernel, program: str, fd: int) -> None:
    """A read that this program does not run at."""
    kernel.probes._links.drop(program)
    os.pread(fd, 4096, 0)
    kernel.probes._attach_one(program, kernel.probes.programs[program])


@pytest.mark.parametrize("program", ["ttft_sys_enter", "ttft_sys_exit"])
def test_a_missing_half_is_counted(reading: tuple[Kernel, Path, int], program: str) -> None:
    kernel, path, fd = reading
    os.pread(fd, 4096, 0)
    assert kernel.lost() == {}
    read_without(kernel, program, fd)
    os.pread(fd, 4096, 0)
    assert kernel.lost() == {"span.half": 1}
    dev, ino = key_of(path)
    assert kernel.totals()[os.getpid(), dev, ino, "read"].count == 2


@pytest.mark.parametrize("program", ["ttft_sys_enter", "ttft_sys_exit"])
def test_a_half_before_the_group_was_attached_is_none(
    reading: tuple[Kernel, Path, int], program: str
) -> None:
    """What a thread is in when the group comes or goes was not begun, or not ended, for it."""
    kernel, path, fd = reading
    os.pread(fd, 4096, 0)
    read_without(kernel, program, fd)
    kernel.detach("files")
    kernel.attach("files")
    os.pread(fd, 4096, 0)
    expected = {"span.half": 1} if program == "ttft_sys_enter" else {}  # its end came before
    assert kernel.lost() == expected
    dev, ino = key_of(path)
    assert kernel.totals()[os.getpid(), dev, ino, "read"].count == 2


def test_calls_while_the_group_comes_are_whole_or_not_seen(
    reading: tuple[Kernel, Path, int],
) -> None:
    """Calls that begin between the attaching of one program and the other are no halves."""
    kernel, _, fd = reading
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            os.pread(fd, 4096, 0)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(100):
        kernel.detach("files")
        kernel.attach("files")
        kernel.drain()
    stop.set()
    reader.join()
    assert kernel.lost() == {}


def test_the_end_of_a_call_is_attached_before_its_begin() -> None:
    for group in ("files", "devices"):
        order = [p.section for p in PROBES if p.group == group and p.program != "ttft_open_done"]
        ends = [section.replace("sys_enter", "sys_exit").replace("fentry", "fexit")
                for section in order[1::2]]  # fmt: skip
        assert order[::2] == ends
