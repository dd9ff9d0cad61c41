"""What a process has mounted: read once for all that happened before, and only so far."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.test_host import Running
from tracer.host import files, mounts, proc
from tracer.host.mounts import Looks, Mount, Mounts

MANY = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
folder = os.fsencode(sys.argv[1])
libc.mount(b"none", b"/", None, (1 << 14) | (1 << 18), None)
assert libc.mount(b"a b", folder, b"tmpfs", 0, b"") == 0
os.mkdir(folder + b"/b x")
for _ in range(int(sys.argv[2])):
    assert libc.mount(folder + b"/b x", folder + b"/b x", None, 4096, None) == 0
weights = open(folder + b"/b x/alpha.gguf", "wb+")
weights.truncate(2 << 20)
print(os.fstat(weights.fileno()).st_dev, os.fstat(weights.fileno()).st_ino, flush=True)
sys.stdin.read()
"""


def test_each_mount_is_read() -> None:
    seen = mounts.read(os.getpid())
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    assert seen.whole and seen.numbers.keys() == {int(line.split()[0]) for line in lines}
    assert set(seen.numbers.values()) == seen.devices.keys()
    fd = os.open("/proc", os.O_PATH)
    try:
        assert (files.mount_of(seen, fd) or Mount("", "")).fs == "proc"
    finally:
        os.close(fd)
    assert not mounts.read(4194305).numbers


def test_no_more_are_read_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_MOUNTS_MAX", 1)
    cut = mounts.read(os.getpid())
    assert (len(cut.numbers), cut.whole) == (1, False)


def test_no_longer_is_read_than_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_READ_S", -1)
    monkeypatch.setattr(mounts, "_LINES_AT_ONCE", 2)
    cut = mounts.read(os.getpid())
    assert (len(cut.numbers), cut.whole) == (2, False)


def test_a_load_of_many_files_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is charged to the process: on a slow host a load would use up what it may cost."""
    monkeypatch.setattr(mounts, "LOOKS", Looks())
    monkeypatch.setattr(files, "LOOKS", mounts.LOOKS)
    asked: list[str] = []
    read, namespace = mounts.read, proc.namespace

    def seen(tgid: int) -> Mounts:
        asked.append("mounts")
        return read(tgid)

    def space(tgid: int, kind: str) -> int:
        asked.append(kind)
        return namespace(tgid, kind)

    monkeypatch.setattr(mounts, "read", seen)
    monkeypatch.setattr(proc, "namespace", space)
    st_dev = os.stat("/proc/self").st_dev
    began_ns = time.monotonic_ns()
    for n in range(100):
        file = files.identify(
            ts_ns=began_ns + n * 9_000_000, tgid=os.getpid(), dev=files.kernel_dev(st_dev),
            ino=n, size=2 << 20, fd=-1, name="/proc/x",
        )  # fmt: skip
        assert file.fs == "proc"
    assert asked == ["mnt", "mounts"]


@pytest.mark.kernel
def test_a_file_of_the_last_of_many_mounts_is_found_as_soon(tmp_path: Path) -> None:
    """All of them show one file system."""
    argv = ["unshare", "--mount", sys.executable, "-c", MANY, str(tmp_path), "500"]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        st_dev, ino = map(int, child.stdout.readline().split())
        dev = files.kernel_dev(st_dev)
        found = {(f.dev, f.ino): f for f in files.already_open(child.pid, time.monotonic_ns())}
        assert (found[dev, ino].fs, found[dev, ino].device) == ("tmpfs", "a b")
        now_ns, began = time.monotonic_ns(), time.monotonic()
        for _ in range(400):
            file = files.identify(
                ts_ns=now_ns, tgid=child.pid, dev=dev, ino=ino, size=2 << 20, fd=-1, name="/x"
            )
            assert (file.fs, file.device) == ("tmpfs", "a b")
        assert time.monotonic() - began < 5
    finally:
        child.communicate(b"")


class Reads:
    """How often the table of which process was read; it takes `slow_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slow_s: float = 0) -> None:
        self.of: list[int] = []

        def read(tgid: int) -> Mounts:
            self.of.append(tgid)
            time.sleep(slow_s)
            return Mounts(time.monotonic_ns(), numbers=dict.fromkeys(range(10), (0, 1)))

        monkeypatch.setattr(mounts, "read", read)


def test_one_look_is_good_for_all_that_happened_before(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, looks, me = Reads(monkeypatch), Looks(), os.getpid()
    now_ns = time.monotonic_ns()
    assert all(looks.of(tgid, now_ns).numbers for tgid in (me, os.getppid()) * 100)
    assert reads.of == [me], "both are in one namespace"
    looks.of(me, time.monotonic_ns())
    assert reads.of == [me, me]


def test_who_keeps_us_busy_has_to_do_with_an_older_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mounts, "_SPENT_MAX_S", 0.05)
    reads, looks, me = Reads(monkeypatch, 0.02), Looks(), os.getpid()
    other = Running(tmp_path)
    try:
        for _ in range(50):
            assert looks.of(me, time.monotonic_ns()).numbers
        assert len(reads.of) < 10
        looks.of(other.process.pid, time.monotonic_ns())
        assert reads.of[-1] == other.process.pid, "others pay nothing for it"
        assert looks.of(os.getpid(), time.monotonic_ns(), sake=me).numbers
    finally:
        other.stop()


def test_only_so_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of processes in as many namespaces as there are."""
    monkeypatch.setattr(mounts, "_KEPT_MAX", 50)
    monkeypatch.setattr(proc, "namespace", lambda tgid, _: tgid)
    reads, looks = Reads(monkeypatch), Looks()
    for tgid in range(1 << 22, (1 << 22) + 20):
        looks.of(tgid, 1)
    assert sum(len(m.numbers) for m in looks._kept.values()) <= 50
    looks.of(reads.of[-1], 1)
    assert len(reads.of) == 20
