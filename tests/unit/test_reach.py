"""Files reached below a root of another's making: never past it, whatever links say."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracer.host import reach


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
        fd = reach._walk(below, path.encode())
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
            reach._walk(below, f"/proc/self/fd/{read}".encode())
    finally:
        for fd in (below, read, write):
            os.close(fd)


def test_a_process_sees_itself(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    assert reach.text(os.getpid(), str(file), 100) == "text"
    assert reach.text(os.getpid(), str(tmp_path), 100) is None
    assert reach.text(os.getpid(), "/dev/null", 100) is None
