"""Processes that did not say what they are when they were looked at, and do later."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.test_discovery import Noted, about, running, started
from tests.unit.test_host import Running
from tests.unit.test_live import Made
from tracer.host import proc
from tracer.host.discovery import Discovery
from tracer.host.recognise import Recogniser, Rule, ancestor
from tracer.kernel.wire import RawExec
from tracer.records import AnyRecord, Listen, Process, Server

__all__ = ["running"]
program, start_ns = proc.program, proc.start_ns


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
    assert discovery.some_silent
    assert about(discovery.ask_again(2), tgid) == []
    assert discovery.some_silent and tgid not in kernel.watched
    silent.tgids.clear()
    late = about(discovery.ask_again(5), tgid)
    assert not discovery.some_silent
    assert tgid in kernel.watched
    assert late == about(started(Discovery(Noted()), 5), tgid)
    assert {type(record) for record in late} >= {Process, Listen, Server}
    assert discovery.ask_again(6) == []


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
    assert not discovery.some_silent


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
    assert recogniser.silent == set()


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
    found: list[type] = []
    deadline = time.monotonic() + 30
    while not found and time.monotonic() < deadline:
        time.sleep(0.05)
        found = [type(record) for record in about(made.drain(), running.process.pid)]
    assert Process in found
    made.drain()  # what was armed for it goes
    made.live.wait(busy=False)
    assert made.source.waits[-1] == (60_000, 60_000)


def test_the_longer_one_is_silent_the_seldomer_it_is_asked(
    running: Running, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(quiet_ns=1)
    started(made.discovery, 1)
    asked: list[float] = []
    now_s = [1000]

    def ask_again(now_ns: int) -> list[AnyRecord]:
        asked.append(now_ns / 1e9)
        return []

    monkeypatch.setattr(made.discovery, "ask_again", ask_again)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_s[0] * 1_000_000_000)
    for _ in range(400):
        now_s[0] += 1
        made.drain()
    assert [b - a for a, b in pairwise(asked)] == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
