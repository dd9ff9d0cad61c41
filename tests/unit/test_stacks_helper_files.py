"""The helper opens the regular file that was mapped, or nothing, whatever paths lead to."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_stacks_names import elf
from tracer.host import walk
from tracer.stacks import helper
from tracer.stacks.names import Answer, Process, ask, interpreters

GONE = 2**22 + 1
PYTHONS = sorted({python for python, _ in interpreters()})


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "lib.so"
    path.write_bytes(elf({b"first": (0x1000, 0x10)}))
    return path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Kinds of what was opened for more than to name it."""
    found: list[int] = []
    real = os.open

    def watched(path: str, flags: int, *args: int, **named: int) -> int:
        fd = real(path, flags, *args, **named)
        if not flags & os.O_PATH:
            found.append(stat.S_IFMT(os.fstat(fd).st_mode))
        return fd

    monkeypatch.setattr(os, "open", watched)
    return found


def special(folder: Path, kind: str) -> Path:
    path = folder / "special"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("makes no devices here")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("tgid", [GONE, os.getpid()])
def test_only_a_file_is_opened(
    tmp_path: Path, opened: list[int], kind: str, linked: bool, tgid: int
) -> None:
    path = special(tmp_path, kind)
    ino = path.stat().st_ino
    if linked:
        link = tmp_path / "lib.so"
        link.symlink_to(path)
        path = link
    assert helper.open_file(walk, tgid, str(path), ino) is None
    assert opened == []


@pytest.mark.parametrize("tgid", [GONE, os.getpid()])
def test_the_file_that_was_mapped_is_opened(
    tmp_path: Path, library: Path, opened: list[int], tgid: int
) -> None:
    ino = library.stat().st_ino
    link = tmp_path / "a"
    link.symlink_to("lib.so")
    for path in (library, link):
        fd = helper.open_file(walk, tgid, str(path), ino)
        assert fd is not None
        os.close(fd)
    assert helper.open_file(walk, tgid, str(library), ino + 1) is None
    for odd in ("lib.so", "", "/\0", str(library) + "\0", "/" + "a/" * 5000):
        assert helper.open_file(walk, tgid, odd, ino) is None
    assert set(opened) == {stat.S_IFREG}


def test_links_stay_below_the_root_of_the_process(tmp_path: Path, library: Path) -> None:
    """As for a process in a container: its /lib.so is not ours."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "up").symlink_to("../../../../../.." + str(library))
    (root / "absolute").symlink_to(library)
    for name in ("up", "absolute"):
        with pytest.raises(FileNotFoundError):
            walk.below(str(root), "/" + name)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_program_opens_no_pipe(tmp_path: Path, library: Path, python: str) -> None:
    """Whoever opens one for writing waits for a reader: none may come."""
    pipe = special(tmp_path, "fifo")
    link = tmp_path / "linked.so"
    link.symlink_to(pipe)
    files = [(str(one), one.stat().st_ino) for one in (link, pipe, library)]
    asked = [Process(os.getpid(), files, [(0, n, 0x1004) for n in range(3)])]
    writer = f"import os; os.open({str(pipe)!r}, os.O_WRONLY)"
    with subprocess.Popen([sys.executable, "-c", writer]) as child:
        try:
            assert ask(asked, [(python, True)]) == Answer("symbols", [[None, None, "first"]])
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.3)
        finally:
            child.kill()


def test_bcc_is_not_let_at_what_is_no_file(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens by itself what it finds."""
    asked: list[int] = []

    def by_bcc(tgid: int, addresses: list[int]) -> list[str | None]:
        asked.append(tgid)
        return ["by bcc"] * len(addresses)

    monkeypatch.setattr(helper, "by_bcc", by_bcc)
    here = os.getpid()

    def answered(path: Path) -> object:
        files = [[str(path), path.stat().st_ino]]
        process = {"tgid": here, "files": files, "places": [[0, 0, 0x1004]]}
        return helper.answer({"use_bcc": True, "processes": [process]})

    assert answered(library) == {"by": "bcc", "names": [["by bcc"]]}
    assert answered(special(tmp_path, "fifo")) == {"by": "symbols", "names": [[None]]}
    names = Path(f"/tmp/perf-{here}.map")
    os.mkfifo(names)
    try:
        assert answered(library) == {"by": "symbols", "names": [["first"]]}
    finally:
        names.unlink()
    assert asked == [here]
