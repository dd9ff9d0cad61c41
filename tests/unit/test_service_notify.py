"""What systemd is told, and what a configuration read again changes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracer.config import Config, HistorySection, ProbesSection, SpikeSection
from tracer.service import notify, reload


class Manager:
    """Stands in for systemd: what was sent to it."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(5)
        self.address = address

    def next(self) -> str:
        return self._socket.recv(4096).decode()

    def silent(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Manager]:
    path = tmp_path / "notify"
    found = Manager(str(path) if request.param == "path" else f"@ttft-{os.getpid()}")
    monkeypatch.setenv("NOTIFY_SOCKET", found.address)
    yield found
    found.close()


def test_assignments_go_in_one_message(manager: Manager) -> None:
    notify.notify("READY=1", "STATUS=watching 2 servers")
    assert manager.next() == "READY=1\nSTATUS=watching 2 servers"
    notify.reloading()
    first, second = manager.next().split("\n")
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify.notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify.notify("READY=1")


@pytest.mark.parametrize(
    ("usec", "pid", "expected"),
    [
        (None, None, None),
        ("90000000", None, 90.0),
        ("90000000", str(os.getpid()), 90.0),
        ("90000000", "1", None),
        ("0", None, None),
        ("soon", None, None),
    ],
)
def test_whether_a_sign_of_life_is_awaited(
    monkeypatch: pytest.MonkeyPatch, usec: str | None, pid: str | None, expected: float | None
) -> None:
    for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert notify.watchdog_s() == expected


def test_signs_of_life_end_when_the_engine_hangs(manager: Manager) -> None:
    answers = 0

    async def engine() -> None:
        nonlocal answers
        answers += 1
        if answers > 3:
            await asyncio.Event().wait()

    async def watched() -> None:
        task = asyncio.create_task(notify.keep_alive(0.003, engine))
        while answers < 4:
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(watched())
    assert [manager.next() for _ in range(3)] == ["WATCHDOG=1"] * 3
    assert manager.silent()


def test_what_changes_at_once_and_what_waits() -> None:
    before = Config()
    after = Config(
        socket="/run/other.sock",
        spike=SpikeSection(min_ms=10.0),
        history=HistorySection(max_mb=7.0),
        probes=ProbesSection(off=("minor",)),
    )
    assert reload.changed(before, after) == (["spike", "history"], ["socket", "probes"])
    assert reload.taken(before, after) == Config(spike=after.spike, history=after.history)
    assert reload.changed(after, after) == ([], [])


@pytest.mark.parametrize(
    ("now", "later", "expected"),
    [
        ([], [], "configuration read again: nothing changed"),
        (["spike"], [], "configuration read again: spike changed"),
        (
            [],
            ["socket"],
            "configuration read again: socket will change at the next start"
            " (sudo systemctl restart ttftd)",
        ),
        (
            [],
            ["metrics"],
            "configuration read again: metrics will change at the next start"
            " (sudo ttft service install, for their network, then sudo systemctl restart ttftd)",
        ),
        (
            ["spike", "server"],
            ["group"],
            "configuration read again: spike, server changed; group will change at the next"
            " start (sudo systemctl restart ttftd)",
        ),
    ],
)
def test_it_is_said(now: list[str], later: list[str], expected: str) -> None:
    assert reload.said(now, later) == expected


def test_every_section_is_one_or_the_other() -> None:
    assert set(reload.AT_ONCE) < set(Config.__struct_fields__)
