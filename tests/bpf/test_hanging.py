"""A process that hangs, in each way it can, keeps nobody waiting who looks at it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.workloads.hanging_fs import HangingFs
from tests.workloads.hanging_process import FILES, HangingProcess, Way
from tests.workloads.waiting import wait_for
from tracer.host import discovery, files, mounts, naming, place, proc, processors, reach, sockets
from tracer.libs import caches, mappings
from tracer.stacks.mapped import Mappings

pytestmark = pytest.mark.kernel

PATIENCE_S = 0.1
#: A look at one process, mostly some milliseconds; of a machine that is busy with other tests.
SOON_S = 5.0


def _identified(tgid: int) -> object:
    return files.identify(ts_ns=1, tgid=tgid, dev=1, ino=1, size=1, fd=0, name="relative")


def _opened(tgid: int) -> object:
    mapped = mappings.Mapped(("00:01", 1), "/lib/x.so", f"/proc/{tgid}/map_files/1-2", tgid)
    return mappings.open_mapped(mapped)


class Nothing:
    """Stands for the kernel side."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


#: All that the daemon does with the process of another, as a process may be anybody's.
LOOKS: dict[str, Callable[[int], object]] = {
    "its program": proc.program,
    "where it is": proc.exe,
    "its arguments": proc.argv,
    "its command": lambda tgid: proc.command(tgid, child=False),
    "its record": lambda tgid: proc.process_record(tgid, 1, child=False),
    "its start": proc.start_ns,
    "its parent": proc.ppid,
    "its name": proc.comm,
    "its memory": proc.rss_bytes,
    "what it read": proc.read_counts,
    "its sockets": lambda tgid: proc.socket_owners([tgid]),
    "its namespace": proc.netns,
    "sockets of its namespace": lambda tgid: sockets.namespaces([tgid]),
    "its ports": sockets.listening,
    "children of its parent": lambda _: proc.descendants(os.getpid()),
    "all servers": lambda _: discovery.Discovery(Nothing()).start(1),
    "its mounts": mounts.read,
    "its open files": lambda tgid: files.already_open(tgid, 1),
    "a file it opens": _identified,
    "its host's name": naming.hostname,
    "its unit": place.place_of,
    "its processor time": lambda tgid: processors.Processors().look([tgid], 1),
    "its libraries": mappings.executable,
    "a library": _opened,
    "its compile caches": caches.folders_of,
    "its code": lambda tgid: Mappings().at(tgid, 1 << 20, 1),
}


@pytest.fixture(scope="module", params=["exec", "memory"])
def hanging(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    way: Way = request.param
    with (
        HangingFs(tmp_path_factory.mktemp("hanging") / "fs", FILES) as fs,
        HangingProcess(way, fs) as process,
    ):
        yield process.pid


@pytest.mark.parametrize("what", LOOKS)
def test_nobody_waits_for_it(hanging: int, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(reach, "PATIENCE", reach.Patience(PATIENCE_S))
    over = threading.Event()

    def look() -> None:
        with suppress(OSError):
            LOOKS[what](hanging)
        over.set()

    threading.Thread(target=look, daemon=True).start()
    assert over.wait(SOON_S)
    # And of others all is told.
    own = [file for file in mappings.executable(os.getpid()) or [] if file.name.startswith("lib")]
    assert own and Mappings().at(os.getpid(), 0, 1) is None
    assert (proc.program(os.getpid()) or (None,))[0] is not None
    assert Path(proc.link(os.getpid(), "cwd") or "") == Path.cwd()


def test_it_is_not_asked_again_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = reach.Patience(PATIENCE_S)
    monkeypatch.setattr(reach, "PATIENCE", patience)
    with (
        HangingFs(tmp_path / "fs", FILES) as fs,
        HangingProcess("exec", fs) as process,
    ):
        assert proc.read_counts(process.pid) is None
        assert patience.stuck == {(process.pid, "exec")}
        threads = threading.active_count()
        assert [proc.netns(process.pid) for _ in range(100)] == [0] * 100
        assert threading.active_count() <= threads
    wait_for(lambda: not patience.stuck, 10, "the first look to be over")
