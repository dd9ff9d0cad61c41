"""Left alone for a year: disks fill up, turn read-only and break; rings overflow.

A real daemon survives each, says so in `ttft status`, and recovers where it can.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workloads.stub_clients import call, stream, streams
from tests.workloads.stub_server import StubServer
from tests.workloads.ttftd import UNIT_NICE, Json, Ttftd, ttft
from tests.workloads.waiting import wait_for
from tracer.errors import TtftError

pytestmark = pytest.mark.kernel

CONFIG = '[[server]]\nname = "stub"\nport = {port}\n'
DISK_KB = 4096
#: How soon the daemon tries again what the disk refused, and some.
AGAIN_S = 20.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, where the history will be."""
    folder = tmp_path / "ttftd" / "state"
    folder.mkdir(parents=True)
    options = f"size={DISK_KB}k,mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "ttft-test", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def daemon(tmp_path: Path, stub: StubServer) -> Iterator[Ttftd]:
    """Not started yet."""
    running = Ttftd(tmp_path / "ttftd", CONFIG.format(port=stub.port), UNIT_NICE)
    yield running
    running.stop()


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with StubServer(chunks=2) as running:
        yield running


def ask(daemon: Ttftd, stub: StubServer, times: int = 3) -> list[Json]:
    """Requests, explained; all that this daemon has of the stand-in."""
    daemon.wait_server(stub.port)
    before = len(ours(daemon))

    async def send() -> None:
        for _ in range(times):
            await stream("127.0.0.1", stub.port, call("stub", 2))

    asyncio.run(send())
    wait_for(lambda: len(ours(daemon)) >= before + times, 15, "requests to be explained")
    return ours(daemon)


def ours(daemon: Ttftd) -> list[Json]:
    return [
        one for one in daemon.requests() if one["server"] == "stub" and one["outcome"] != "open"
    ]


def history(daemon: Ttftd) -> Json:
    found: Json = daemon.get("/v1/status")["history"]
    return found


def shown(daemon: Ttftd) -> str:
    """`ttft status`, in one line."""
    ran = ttft("status", socket=daemon.socket)
    assert (ran.returncode, ran.stderr) == (0, "")
    return " ".join(ran.stdout.split())


def fill(disk: Path) -> Path:
    """A file that takes all the room there is."""
    filler = disk / "filler"
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError as error:
        assert error.errno == errno.ENOSPC
    finally:
        os.close(fd)
    return filler


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


def written(daemon: Ttftd) -> bool:
    now = history(daemon)
    return now["pending"] == 0 and now["trouble"] is None


def stored(disk: Path) -> int:
    kept = sqlite3.connect(f"file:{disk / 'history.db'}?mode=ro", uri=True)
    count: int = kept.execute("SELECT count(*) FROM requests WHERE server = 'stub'").fetchone()[0]
    kept.close()
    return count


@pytest.mark.parametrize("when", ["before it starts", "before it ever was", "while it runs"])
def test_a_full_disk(daemon: Ttftd, stub: StubServer, disk: Path, when: str) -> None:
    before = 0
    if when == "before it starts":
        with daemon:
            before = len(ask(daemon, stub))
        filler = fill(disk)
        daemon.start()
        assert len(ours(daemon)) == before, "what is there still answers"
    elif when == "before it ever was":
        filler = fill(disk)
        daemon.start()
    else:
        daemon.start()
        before = len(ask(daemon, stub))
        filler = fill(disk)
    assert len(ask(daemon, stub, 60)) == before + 60
    wait_for(lambda: history(daemon)["trouble"] is not None, AGAIN_S, "the trouble to be told", 0.1)
    assert history(daemon)["pending"] > 0
    assert "not written:" in shown(daemon)
    assert len(ask(daemon, stub)) == before + 63, "it goes on answering"
    filler.unlink()
    ask(daemon, stub)
    wait_for(lambda: written(daemon), AGAIN_S, "all to be written", 0.1)
    assert "not written" not in shown(daemon)
    daemon.stop()
    assert stored(disk) == before + 66
    assert "Traceback" not in daemon.log.read_text()


@pytest.mark.parametrize("when", ["before it starts", "before it ever was"])
def test_a_read_only_disk(daemon: Ttftd, stub: StubServer, disk: Path, when: str) -> None:
    """While it runs is in tests/unit: nobody can make a disk so that somebody writes to."""
    before = 0
    if when == "before it starts":
        with daemon:
            before = len(ask(daemon, stub))
    remount(disk, "ro")
    daemon.start()
    assert "not written:" in shown(daemon)
    assert len(ours(daemon)) == before, "what is there still answers"
    assert len(ask(daemon, stub)) == before + 3
    assert "not written:" in shown(daemon)
    remount(disk, "rw")
    ask(daemon, stub)
    wait_for(lambda: written(daemon), AGAIN_S, "all to be written", 0.1)
    assert "not written" not in shown(daemon)
    daemon.stop()
    assert stored(disk) == before + 6
    assert "Traceback" not in daemon.log.read_text()


def test_no_id_is_given_twice(daemon: Ttftd, stub: StubServer, disk: Path) -> None:
    """Over runs that are killed, on a disk that takes nothing for longer than ids are reserved."""
    arrivals: dict[int, str] = {}

    def note() -> None:
        for one in ours(daemon):
            assert arrivals.setdefault(one["id"], one["wall_time"]) == one["wall_time"]

    def killed() -> None:
        note()
        daemon.kill()

    daemon.start()
    ask(daemon, stub)
    filler = fill(disk)
    for _ in range(9):
        ask(daemon, stub, 100)
        note()
    assert any(number > 1 << 40 for number in arrivals), "by the clock, once none is reserved"
    killed()
    daemon.start()
    ask(daemon, stub)
    killed()
    daemon.start()
    ask(daemon, stub)
    filler.unlink()
    ask(daemon, stub)
    wait_for(lambda: written(daemon), AGAIN_S, "all to be written", 0.1)
    note()
    daemon.stop()
    daemon.start()
    before = set(arrivals)
    ask(daemon, stub)
    note()
    assert 0 < max(set(arrivals) - before) < 1 << 40, "counting goes on where it was"
    daemon.stop()


@pytest.mark.parametrize("when", ["before it starts", "while it runs"])
def test_a_broken_database(daemon: Ttftd, stub: StubServer, when: str) -> None:
    """Set aside whole, a new one begun; said once, and shown until it is removed."""
    with daemon:
        ask(daemon, stub, 80)
    database = daemon.state / "history.db"
    if when == "before it starts":
        scribble(database)
        daemon.start()
    else:
        daemon.start()
        daemon.wait_server(stub.port)
        scribble(database)

    def noticed() -> bool:
        asyncio.run(stream("127.0.0.1", stub.port, call("stub", 2)))
        for item in daemon.requests():  # what SQLite has in memory tells nothing of the disk
            with contextlib.suppress(TtftError):
                daemon.get(f"/v1/requests/{item['id']}")
        return bool(daemon.requests() and history(daemon)["set_aside"])

    daemon.wait_server(stub.port)
    wait_for(noticed, AGAIN_S, "it to be set aside", 0.1)
    (name,) = history(daemon)["set_aside"]
    assert (daemon.state / name).stat().st_size > 0
    assert f"set aside as {name}" in shown(daemon)
    ask(daemon, stub)
    wait_for(lambda: written(daemon), AGAIN_S, "all to be written", 0.1)
    assert daemon.log.read_text().count("the history was damaged") == 1
    daemon.stop()
    daemon.start()
    assert f"set aside as {name}" in shown(daemon)
    for part in daemon.state.glob(f"{name}*"):
        part.unlink()
    assert "set aside" not in shown(daemon)


def scribble(database: Path) -> None:
    """What a broken disk or another program may do to it."""
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.write(os.urandom(size))
    for suffix in ("-wal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)


def test_a_ring_that_overflows(tmp_path: Path, stub: StubServer) -> None:
    """Told with the setting to raise; what was lost makes no request whole that is not."""
    small = CONFIG.format(port=stub.port) + "[probes]\nring_kb = 64\npacket_ring_kb = 64\n"
    with Ttftd(tmp_path / "ttftd", small, UNIT_NICE) as daemon:
        daemon.wait_server(stub.port)

        def flood() -> bool:
            asyncio.run(streams("127.0.0.1", stub.port, 100, call("stub", 200)))
            return bool(daemon.get("/v1/status")["lost"])

        wait_for(flood, 30, "records to be lost")
        text = shown(daemon)
        assert "packet_ring_kb" in text or "ring_kb" in text
        whole = [one for one in ours(daemon) if one["complete"]]
        assert all(one["tokens"] == 200 and one["ttft_ms"] is not None for one in whole)
