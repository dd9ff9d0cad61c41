"""What guests are made of: the cache, the package sources, the initrd."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.vm import cache, initrd
from tests.vm.catalogue import catalogue, lane
from tests.vm.lane import nearing, normal, trouble
from tests.vm.packages import Mirror, _package, find_mirror

WEEK_S = 7 * 24 * 3600
URIS = """\
'https://other.test/debian/dists/stable/InRelease' a_InRelease 0 
'https://other.test/debian/dists/stable/contrib/binary-amd64/Packages.xz' b 0 
'http://mirror.test/debian-security/dists/stable-security/main/binary-amd64/Packages.xz' c 0 
'http://mirror.test/debian/dists/stable/main/binary-amd64/Packages.xz' d 0 
"""  # noqa: W291


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTFT_VM_CACHE", str(tmp_path))


def test_every_listed_kernel_and_userland_is_understood() -> None:
    known = catalogue()
    assert set(lane()) <= set(known.kernels)
    assert {spec.arch for spec in known.kernels.values()} <= {"amd64", "arm64"}
    assert not known.userlands["lane"].systemd


def test_a_thing_is_built_once_however_many_want_it() -> None:
    meet, builds = threading.Barrier(4), []

    def build(folder: Path) -> None:
        builds.append(folder)
        (folder / "content").write_text("done")

    def want(_: int) -> str:
        meet.wait()
        return (cache.built("thing-1", build) / "content").read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(want, range(4))) == ["done"] * 4
    assert len(builds) == 1


def test_an_aborted_build_leaves_nothing() -> None:
    left = cache.root() / "thing-1.tmpkilled"
    left.mkdir()

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise cache.BuildError("no")

    with pytest.raises(cache.BuildError):
        cache.built("thing-1", fail)
    assert [path.name for path in cache.root().iterdir()] == ["locks"]
    assert cache.built("thing-1", lambda folder: None).name == "thing-1"


def test_what_is_not_used_any_more_goes_when_its_successor_comes() -> None:
    for name, age_s in (("thing-old", 2 * WEEK_S), ("thing-new", 60), ("other-old", 2 * WEEK_S)):
        folder = cache.built(name, lambda folder: None)
        os.utime(folder, (time.time() - age_s,) * 2)
    cache.built("thing-newest", lambda folder: None)
    kept = {path.name for path in cache.root().iterdir()} - {"locks"}
    assert kept == {"thing-new", "thing-newest", "other-old"}


def test_a_failing_tool_tells_its_last_words() -> None:
    with pytest.raises(cache.BuildError, match=r"sh failed \(3\):\nwhy"):
        cache.run("sh", "-c", "echo why >&2; exit 3")


def test_the_mirror_is_the_one_that_has_this_release() -> None:
    assert find_mirror(URIS, "stable") == "http://mirror.test/debian"
    assert find_mirror(URIS, "elsewhere") is None
    line = Mirror("http://mirror.test/debian", "/keys").line("newer")
    assert line == "deb [signed-by=/keys] http://mirror.test/debian newer main"


def test_a_package_is_read_from_its_stanza() -> None:
    depends = "linux-image-7.2 (= 7.2-1), a | b:any"
    package = _package(f"Package: linux-image-amd64\nVersion: 7.2-1\nDepends: {depends}\n")
    assert (package.name, package.version) == ("linux-image-amd64", "7.2-1")
    assert package.depends == ("linux-image-7.2", "a", "b")


def test_the_initrd_is_an_archive_that_holds_what_was_put_in() -> None:
    archive = initrd.Archive()
    archive.add("init", 0o100755, b"#!/bin/sh\n")
    data = archive.done()
    assert data.startswith(b"070701") and data[6:14] == b"00000001"
    assert data[110:115] == b"init\0" and data[116:126] == b"#!/bin/sh\n"
    assert b"TRAILER!!!\0" in data and len(data) % 4 == 0


def test_what_differs_each_day_is_left_out_of_a_doctors_answer() -> None:
    def answer(release: str, took: str, path: str) -> dict[str, object]:
        facts = [{"name": "kernel", "value": release}, {"name": "x", "value": f"{took} {path}"}]
        return {"ok": True, "facts": facts}

    assert normal(answer("6.1", "12.5 ms", "a")) == normal(answer("6.2", "7 ms", "a"))
    assert normal(answer("6.1", "12.5 ms", "a")) != normal(answer("6.1", "12.5 ms", "b"))
    assert normal(answer("6.1", "12 calls", "a")) != normal(answer("6.1", "13 calls", "a"))


def test_a_program_that_grows_is_told() -> None:
    expected = {"same": 1000, "gone": 5, "grown": 1000, "near": 800_000, "never": None}
    found = {"same": 1100, "grown": 1101, "near": 800_000, "never": None, "new": 7}
    assert nearing(expected, found) == [
        "grown grew from 1000 to 1101 instructions",
        "near takes 800000 of 1000000 instructions",
        "new is new: 7 instructions",
        "gone is not loaded any more",
    ]


def test_a_kernels_complaints_are_found() -> None:
    words = (
        "[ 1.0] usb: BUG in name only\n[ 2.0] WARNING: CPU: 0 PID: 1 at kernel/x.c:1\n[ 3.0] fine"
    )
    assert trouble(words) == ["[ 2.0] WARNING: CPU: 0 PID: 1 at kernel/x.c:1"]
