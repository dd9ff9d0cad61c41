"""Who watches: nobody, ttftd, or a general tracer asked for the same facts."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.common import Plan, say, watching
from tests.workloads.llama import LlamaServer
from tests.workloads.waiting import wait_for

Observer = Callable[[LlamaServer], AbstractContextManager[object]]

SCRIPT = Path(__file__).with_name("equivalent.bt")
TRACEFS = Path("/sys/kernel/tracing")
# What explains a first token: processes, files, mappings, driver calls, sockets.
CALLS = (
    "execve,openat,read,pread64,readv,preadv,mmap,madvise,munmap,ioctl,"
    "recvfrom,sendto,accept4,connect,exit_group"
)
START_S = 30.0
STOP_S = 30.0


def ttftd(plan: Plan) -> Observer:
    """Our daemon."""
    return lambda server: watching(plan, server.port)


def strace(plan: Plan) -> Observer | None:
    """strace -f on the server and its children; None where it is not installed."""
    binary = shutil.which("strace")
    if binary is None:
        return None

    @contextmanager
    def observe(server: LlamaServer) -> Iterator[None]:
        pids = ",".join(map(str, (server.pid, *server.runners())))
        log = plan.out / "strace.log"
        command = [binary, "-f", "-q", "-T", "-e", f"trace={CALLS}", "-o", str(log), "-p", pids]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: _traced_by(server.pid, process.pid), START_S, "strace to attach")
            yield
        finally:
            _interrupt(process)
        if not log.stat().st_size:
            raise RuntimeError("strace saw nothing")

    return observe


def _traced_by(pid: int, tracer: int) -> bool:
    """Whether every thread of a process has this tracer."""
    return all(
        f"TracerPid:\t{tracer}\n" in status.read_text()
        for status in Path(f"/proc/{pid}/task").glob("*/status")
    )


def bpftrace(plan: Plan) -> Observer | None:
    """An equivalent bpftrace script; None where it is not installed."""
    binary = shutil.which("bpftrace")
    if binary is None:
        return None

    @contextmanager
    def observe(_: LlamaServer) -> Iterator[None]:
        with _tracefs(), (plan.out / "bpftrace.log").open("wb") as log:
            process = subprocess.Popen(
                [binary, str(SCRIPT)], stdout=subprocess.PIPE, stderr=log, env=os.environ
            )
            try:
                _wait_line(process, b"ready", START_S)
                yield
            finally:
                seen = _interrupt(process)
            if b"@calls" not in seen:
                raise RuntimeError(f"bpftrace saw nothing; see {log.name}")

    return observe


@contextmanager
def _tracefs() -> Iterator[None]:
    """bpftrace wants tracefs."""
    if (TRACEFS / "events").exists():
        yield
        return
    subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACEFS], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", TRACEFS], check=True)


def _wait_line(process: subprocess.Popen[bytes], wanted: bytes, timeout_s: float) -> None:
    assert process.stdout is not None
    while select.select([process.stdout], [], [], timeout_s)[0]:
        line = process.stdout.readline()
        if wanted in line:
            return
        if not line:
            raise RuntimeError(f"{process.args!r} ended with {process.wait()}")
    raise TimeoutError(f"waited {timeout_s:g} s for {process.args!r}")


def _interrupt(process: subprocess.Popen[bytes]) -> bytes:
    """End it; what it still had to say on a piped standard output."""
    process.send_signal(signal.SIGINT)
    try:
        rest, _ = process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        say(f"{process.args!r} does not end; killed")
        process.kill()
        rest, _ = process.communicate()
    return rest or b""
