"""Processes: who is watched from when, and how they end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bpf.watching import Watching, collect
from tests.workloads.fileio import FileIo
from tracer.kernel.loader import Kernel
from tracer.kernel.wire import RawExec
from tracer.records import Exit, Fork, Signal

pytestmark = pytest.mark.kernel


def test_children(watching: Callable[..., Watching]) -> None:
    """fork, exec, exit status, a signal and who sent it: in order, nothing else."""
    seen = watching("children", 0, 0)
    three, killed, true = seen.said["pids"]
    story = [
        (type(r).__name__, r.child if isinstance(r, Fork) else r.tgid)
        for r in sorted(seen.records, key=lambda r: r.ts_ns)
        if isinstance(r, (Fork, RawExec, Exit))
    ]
    assert story == [
        ("Fork", three), ("Exit", three), ("Fork", killed), ("Exit", killed),
        ("Fork", true), ("RawExec", true), ("Exit", true), ("Exit", seen.pid),
    ]  # fmt: skip
    assert {r.parent for r in seen.of(Fork)} == {seen.pid}
    assert {r.comm for r in seen.of(Fork)} == {"fileio"}
    ends = {r.tgid: (r.code, r.signal) for r in seen.of(Exit)}
    assert ends == {
        three: (3, None), killed: (None, 15), true: (0, None), seen.pid: (0, None),
    }  # fmt: skip
    assert [(s.target, s.signal, s.sender) for s in seen.of(Signal)] == [(killed, 15, seen.pid)]
    assert [(e.comm, e.filename) for e in seen.of(RawExec)] == [("true", "/bin/true")]


def test_exec_by_a_thread(watching: Callable[..., Watching]) -> None:
    """exec makes the calling thread the leader; the process stays watched."""
    seen = watching("thread_exec", 0, 0)
    assert [(e.tgid, e.comm) for e in seen.of(RawExec)] == [(seen.pid, "true")]
    assert [(e.tgid, e.code) for e in seen.of(Exit)] == [(seen.pid, 0)]


def test_killed(kernel: Kernel, workload: Path) -> None:
    with FileIo(workload, "nothing", 0, 0, []) as work:
        kernel.watch(work.pid)
        os.kill(work.pid, signal.SIGKILL)
        records = collect(kernel, work.pid)
    signals = [r for r in records if isinstance(r, Signal)]
    assert [(s.target, s.signal, s.sender) for s in signals] == [(work.pid, 9, os.getpid())]
    ends = [r for r in records if isinstance(r, Exit)]
    assert [(e.tgid, e.code, e.signal) for e in ends] == [(work.pid, None, 9)]


def test_server_by_name(kernel: Kernel, tmp_path: Path) -> None:
    """A program of a server's name is watched from its exec on; others are not."""
    named, other = tmp_path / "ttft-test-server", tmp_path / "ttft-other"
    for path in (named, other):
        shutil.copy("/bin/true", path)
    kernel.add_server_comm("ttft-test-server")  # cut at 15, as the kernel does
    subprocess.run([other], check=True)
    with subprocess.Popen([named]) as process:
        records = collect(kernel, process.pid)
    execs = [r for r in records if isinstance(r, RawExec)]
    assert [(e.tgid, e.comm, e.filename) for e in execs] == [
        (process.pid, "ttft-test-serve", str(named))
    ]
    assert [e.tgid for e in records if isinstance(e, Exit)] == [process.pid]
    assert kernel.watched() == []


def test_unwatch(kernel: Kernel, workload: Path) -> None:
    with FileIo(workload, "children", 0, 0, []) as work:
        kernel.watch(work.pid)
        assert kernel.watched() == [work.pid]
        kernel.unwatch(work.pid)
        work.go()
        work.end()
        assert kernel.drain() == []
        assert kernel.watched() == []


def test_gone_processes_are_ignored(kernel: Kernel) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        kernel.watch(process.pid)
        kernel.unwatch(process.pid)
    assert kernel.watched() == []
