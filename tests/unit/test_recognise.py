"""Processes that did not say what they are when they were looked at, and do later."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.test_discovery import Noted, about, running, started
from tests.unit.test_host import Running
from tests.unit.test_live import Made
from tests.workloads.waiting import wait_for
from tracer.host import proc
from tracer.host.discovery import Discovery
from tracer.host.recognise import Recogniser, Rule, ancestor
from tracer.kernel.wire import RawExec
from tracer.libs import caches, mappings
from tracer.records import AnyRecord, Listen, Process, Server

__all__ = ["running"]
program, start_ns = proc.program, proc.start_ns
S = 1_000_000_000


class Silent:
    """The processes in `tgids` answer nothing, for now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *tgids: int) -> None:
        self.tgids = set(tgids)
        monkeypatch.setattr(proc, "program", lambda t: None if t in self.tgids else program(t))
        monkeypatch.setattr(proc, "start_ns", lambda t: None if t in self.tgids else start_ns(t))


@pytest.fixture
def silent(running: Running, monkeypatch: pytest.MonkeyPatch) -> Silent:
    return Silent(monkeypatch, running.process.pid)


def test_a_server_is_found_once_it_answers(running: Running, silent: Silent) -> None:
    tgid = running.process.pid
    kernel = Noted()
    discovery = Discovery(kernel)
    started(discovery, 1)
    assert discovery.again_ns is not None
    assert about(discovery.ask_again(2), tgid) == []
    assert discovery.again_ns == 2 + S and tgid not in kernel.watched
    silent.tgids.clear()
    late = about(discovery.ask_again(2 + S), tgid)
    assert discovery.again_ns is None
    assert tgid in kernel.watched
    assert late == about(started(Discovery(Noted()), 2 + S), tgid)
    assert {type(record) for record in late} >= {Process, Listen, Server}
    assert discovery.ask_again(9 * S) == []


def test_one_that_starts_and_does_not_answer_is_found_later(
    running: Running, silent: Silent
) -> None:
    """A server's name in an exec; it may hang just then."""
    tgid = running.process.pid
    discovery = Discovery(Noted())
    raw = RawExec(ts_ns=1, tgid=tgid, comm="llama-server", filename="/usr/bin/llama-server")
    assert discovery.translate(raw) == []
    silent.tgids.clear()
    assert about(discovery.ask_again(2), tgid) != []


@pytest.mark.parametrize("when", ["front is found", "front was found"])
def test_a_process_of_a_server_joins_it_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.argv[1], '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
        "child.communicate(b'')"
    )
    front = subprocess.Popen(
        ["llama-server", "-c", code, sys.executable, "--models-dir", str(tmp_path)],
        executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert front.stdout is not None
        child = int(front.stdout.readline())
        silent = Silent(monkeypatch, child, *([] if when == "front was found" else [front.pid]))
        kernel = Noted()
        discovery = Discovery(kernel)
        started(discovery, 1)
        assert (front.pid in discovery.tree) == (when == "front was found")
        assert child not in kernel.watched
        silent.tgids.clear()
        found = {r.tgid for r in discovery.ask_again(2) if isinstance(r, Process)}
        assert found == ({child} if when == "front was found" else {front.pid, child})
        assert child in kernel.watched
        assert discovery.tree[child] == discovery.tree[front.pid]
        assert discovery.tree[child].front == front.pid
    finally:
        front.communicate(b"\n")


def test_who_is_gone_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    Silent(monkeypatch, child.pid)
    discovery = Discovery(Noted())
    started(discovery, 1)
    child.communicate(b"\n")
    assert discovery.ask_again(2) == []
    assert discovery.again_ns is None


def test_who_is_at_its_end_is_no_server_any_more() -> None:
    """Its end may have been told already: it would be watched for ever. A zombie stands for it."""
    child = subprocess.Popen(["llama-server", "-c", "input()"], executable=sys.executable,
                             stdin=subprocess.PIPE)  # fmt: skip
    try:
        discovery = Discovery(Noted(), [Rule(name="by port", port=70)])
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert proc.start_ns(child.pid) is not None
        assert discovery.translate(Listen(ts_ns=1, tgid=child.pid, netns=9, port=70)) == []
        assert discovery.tree == {}
        assert discovery.ask_again(2) == []
    finally:
        child.communicate()


def test_of_who_is_gone_nothing_is_known() -> None:
    """Which is an answer."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    recogniser = Recogniser([])
    assert recogniser.program(child.pid) is None
    assert recogniser.silent.tgids == set()


def test_the_nearest_ancestor(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = {5: 4, 4: 3, 3: 2, 2: 1, 1: 0, 8: 9, 9: 8}
    monkeypatch.setattr(proc, "ppid", parents.get)
    assert ancestor(5, {2, 3}) == 3
    assert ancestor(5, {5}) is None
    assert ancestor(5, {0}) is None
    assert ancestor(8, {1}) is None, "a circle, as pids may be used again while we look"
    assert ancestor(77, {1}) is None


def test_the_daemon_asks_again_by_itself(running: Running, silent: Silent) -> None:
    made = Made(quiet_ns=1)
    started(made.discovery, 1)
    assert about(made.drain(), running.process.pid) == []
    made.live.wait(busy=False)
    assert made.source.waits[-1][0] <= 1_001, "who is silent keeps it from its long sleep"
    silent.tgids.clear()
    found: list[AnyRecord] = []

    def told() -> bool:
        found.extend(about(made.drain(), running.process.pid))
        return bool(found)

    wait_for(told, 30, "the process to be told", 0.05)
    assert any(isinstance(record, Process) for record in found)
    made.drain()  # what was armed for it goes
    made.live.wait(busy=False)
    assert made.source.waits[-1] == (60_000, 60_000)


def test_the_longer_one_is_silent_the_seldomer_it_is_asked(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each on its own: one that hangs for long does not keep a new one waiting."""
    made = Made(quiet_ns=1)
    asked: dict[int, list[int]] = {}
    now_s = [1000]

    def ask(tgid: int) -> tuple[str | None, list[str]] | None:
        asked.setdefault(tgid, []).append(now_s[0])
        return None

    old, new = (*silent.tgids, os.getppid())
    monkeypatch.setattr(proc, "program", ask)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_s[0] * S)
    known = made.discovery
    known.translate(RawExec(ts_ns=1, tgid=old, comm="llama-server", filename="/x"))
    for second in range(400):
        if second == 200:
            known.translate(RawExec(ts_ns=1, tgid=new, comm="llama-server", filename="/x"))
        now_s[0] += 1
        made.drain()
    told = {tgid: [b - a for a, b in pairwise(times)] for tgid, times in asked.items()}
    assert told[old] == [1, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    assert told[new] == [1, 1, 2, 4, 8, 16, 32, 60, 60]


def test_only_so_many_are_asked_again() -> None:
    silent = Recogniser([]).silent
    for tgid in range(1 << 22, (1 << 22) + 10_000):
        silent.add(tgid)
    assert len(silent.tgids) == 4096
    assert silent.take(1) == [] and silent.due_ns is None, "none of them is there"


@pytest.mark.parametrize("when", ["start", "listen"])
def test_one_known_by_its_port_alone_is_found_once_it_answers(
    running: Running, silent: Silent, when: str
) -> None:
    """It tells of its sockets no sooner than of its program."""
    tgid, port = running.process.pid, running.port
    kernel = Noted()
    discovery = Discovery(kernel, [Rule(name="mine", port=port)])
    owners = proc.socket_owners
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proc, "socket_owners", lambda t: owners([p for p in t if p != tgid]))
        patch.setattr("tracer.host.recognise.parse_command", lambda *_, **__: None)
        if when == "start":
            started(discovery, 1)
        else:
            listen = Listen(ts_ns=1, tgid=tgid, netns=proc.netns(tgid), port=port)
            assert discovery.translate(listen) == []
        assert tgid not in discovery.tree
        assert about(discovery.ask_again(2), tgid) == []
        patch.setattr(proc, "socket_owners", owners)
        silent.tgids.clear()
        found = about(discovery.ask_again(2 + S), tgid)
    assert [r.name for r in found if isinstance(r, Server)] == ["mine"]
    assert tgid in kernel.watched and discovery.again_ns is None


THREADED = """
import ctypes, mmap, os, socket, sys, threading
weights = open(sys.argv[1], "rb")
mapped = mmap.mmap(weights.fileno(), 0, access=mmap.ACCESS_READ)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def go_on():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).syscall(int(sys.argv[2]), 0)
"""
EXIT = {"x86_64": "60", "aarch64": "93"}[platform.machine()]


def test_a_server_whose_first_thread_ended_goes_on(tmp_path: Path) -> None:
    """Of that one /proc tells as of a zombie: its other threads have the memory and the files."""
    weights = tmp_path / "alpha.gguf"
    weights.write_bytes(b"GGUF" + bytes(2 << 20))
    argv = ["llama-server", "-c", THREADED, str(weights), EXIT, "--models-dir", str(tmp_path)]
    child = subprocess.Popen(
        argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        port, tgid = int(child.stdout.readline()), child.pid
        statm = Path(f"/proc/{tgid}/statm")
        wait_for(lambda: statm.read_text()[:2] == "0 ", 10, "its first thread to end")
        kernel = Noted()
        records = about(started(Discovery(kernel), 1), tgid)
        assert [(r.port, r.name) for r in records if isinstance(r, Server)] == [
            (port, f"llama-server:{port}")
        ]
        (process,) = (r for r in records if isinstance(r, Process))
        assert process.command is not None and process.exe == os.path.realpath(sys.executable)
        assert weights.stat().st_ino in {ino for _, ino in kernel.files}
        assert proc.rss_bytes(tgid) and proc.netns(tgid) == proc.netns(os.getpid())
        libraries = mappings.executable(tgid) or []
        assert any(os.path.exists(mapped.link) for mapped in libraries)
        assert caches.folders_of(tgid) == caches.folders_of(os.getpid())
    finally:
        child.communicate(b"")


def test_a_child_that_ended_is_no_process_of_a_server(tmp_path: Path) -> None:
    """Nobody waits for it: it is neither watched nor asked again for as long as it is there."""
    code = (
        "import os, sys\n"
        "child = os.fork() or os._exit(0)\n"
        "os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n"
        "print(child, flush=True)\n"
        "sys.stdin.read()"
    )
    argv = ["llama-server", "-c", code, "--models-dir", str(tmp_path)]
    front = subprocess.Popen(
        argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert front.stdout is not None
        child = int(front.stdout.readline())
        discovery = Discovery(Noted())
        assert about(started(discovery, 1), child) == []
        assert front.pid in discovery.tree and child not in discovery.tree
        assert discovery.again_ns is None
    finally:
        front.communicate(b"")


def test_a_program_that_was_replaced_while_it_runs(tmp_path: Path) -> None:
    """As an upgrade does."""
    program = tmp_path / "mine"
    shutil.copy("/bin/sleep", program)
    child = subprocess.Popen([program, "60"])
    try:
        program.unlink()
        assert (proc.exe(child.pid) or "").endswith(" (deleted)")
        discovery = Discovery(Noted(), [Rule(name="mine", exe=str(program))])
        assert about(started(discovery, 1), child.pid) != []
        other = Rule(name="other", exe=f"{program}2")
        assert not other.claims(*(proc.program(child.pid) or (None, [])))
    finally:
        child.kill()
        child.wait()


def test_who_listens_all_the_time_is_asked_what_it_is_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def ask(tgid: int) -> tuple[str | None, list[str]]:
        asked.append(tgid)
        return None, []

    monkeypatch.setattr(proc, "program", ask)
    recogniser = Recogniser([])
    now_ns = time.monotonic_ns()
    for port in range(1000):
        listen = Listen(ts_ns=now_ns, tgid=os.getpid(), netns=9, port=port + 1)
        assert recogniser.listening(listen) is None
    assert asked == [os.getpid()]
    later = Listen(ts_ns=time.monotonic_ns(), tgid=os.getpid(), netns=9, port=1)
    recogniser.listening(later)
    assert len(asked) == 2, "it may be another program by now"
