"""Files reached below a root of another's making: never past it, whatever links say."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracer.host import reach, walk


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A tree whose links point everywhere; nothing outside it may be found."""
    (tmp_path / "secret").write_text("outside")
    made = tmp_path / "root"
    (made / "a/b").mkdir(parents=True)
    (made / "a/b/file").write_text("inside")
    (made / "secret").write_text("below the root")
    links = {
        "absolute": "/a/b/file",
        "up": "../../../../../../../secret",
        "a/relative": "b/file",
        "a/back": "../a/b/../b/file",
        "folder": "a/b",
        "chain": "folder/../../absolute",
        "loop": "loop",
        "nowhere": "/not/there",
        "top": "/",
    }
    for name, target in links.items():
        (made / name).symlink_to(target)
    before = len(os.listdir("/proc/self/fd"))
    yield made
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"


def found(root: Path, path: str) -> str:
    """What is at `path` below `root`: a file's text, or a folder's names."""
    below = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        fd = walk.walk(below, path.encode())
    finally:
        os.close(below)
    try:
        place = Path(f"/proc/self/fd/{fd}")
        return place.read_text() if place.is_file() else " ".join(sorted(os.listdir(place)))
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/a/b/file", "inside"),
        ("a//./b/file", "inside"),
        ("/a/../a/b/file", "inside"),
        ("/absolute", "inside"),
        ("/a/relative", "inside"),
        ("/a/back", "inside"),
        ("/folder/file", "inside"),
        ("/chain", "inside"),
        ("/top/top/a/b", "file"),
        ("/../../secret", "below the root"),
        ("/up", "below the root"),
        ("/a/b", "file"),
        ("/a/b/..", "b back relative"),
    ],
)
def test_what_is_there_is_found_below_the_root(root: Path, path: str, text: str) -> None:
    assert found(root, path) == text


@pytest.mark.parametrize("path", ["", "/", "..", "/a/../..", "/top"])
def test_the_root_is_the_end(root: Path, path: str) -> None:
    assert "secret" in found(root, path).split()
    assert "root" not in found(root, path).split()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/loop", errno.ELOOP),
        ("/nowhere", errno.ENOENT),
        ("/a/none", errno.ENOENT),
        ("/secret/x", errno.ENOTDIR),
        ("/" + "x" * 300, errno.ENAMETOOLONG),
    ],
)
def test_what_is_not_there_is_not(root: Path, path: str, why: int) -> None:
    with pytest.raises(OSError) as caught:
        found(root, path)
    assert caught.value.errno == why


def test_links_of_proc_are_text(root: Path) -> None:
    """They would lead to whatever another process has open."""
    below = os.open("/", os.O_PATH | os.O_DIRECTORY)
    read, write = os.pipe()
    try:
        with pytest.raises(FileNotFoundError):
            walk.walk(below, f"/proc/self/fd/{read}".encode())
    finally:
        for fd in (below, read, write):
            os.close(fd)


def test_a_process_sees_itself(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    assert reach.text(os.getpid(), str(file), 100) == "text"
    assert reach.text(os.getpid(), str(tmp_path), 100) is None
    assert reach.text(os.getpid(), "/dev/null", 100) is None


def refuse(number: int) -> None:
    """A system call is not there for this process, as the unit's filter has it for some."""
    program = b"".join(
        struct.pack("<HBBI", *step)
        for step in (
            (0x20, 0, 0, 0),  # the call's number
            (0x15, 0, 1, number),
            (0x06, 0, 0, 0x50000 | errno.ENOSYS),
            (0x06, 0, 0, 0x7FFF0000),  # all else is allowed
        )
    )
    code = ctypes.create_string_buffer(program)
    given = struct.pack("@HP", 4, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((38, 1, 0, 0, 0), (22, 2, given, 0, 0)):  # no new privileges, then seccomp
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def test_the_units_filter_leaves_it_working(tmp_path: Path) -> None:
    """RestrictSUIDSGID takes openat2() away, which could make such files."""
    file = tmp_path / "file"
    file.write_text("text")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            refuse(437)
            status = 0 if reach.text(os.getpid(), str(file), 100) == "text" else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
