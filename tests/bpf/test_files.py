"""File work with known answers: every count and byte, whole."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bpf.watching import Watching, key_of, latest
from tests.workloads.fileio import FileIo, drop_cache, make_file
from tests.workloads.pagecache import refaulted_bytes
from tests.workloads.waiting import wait_for
from tracer.kernel.loader import Kernel
from tracer.kernel.wire import Raw, RawFile, RawMagic
from tracer.records import Insert, Op, Open

pytestmark = pytest.mark.kernel
MIB = 1 << 20
GAP_NS = 20_000_000  # ends a run of insertions
Run = Callable[..., Watching]


def test_reads_of_seven_files(watching: Run, disk: Path) -> None:
    """23 reads of each, by the whole read family, going round the files."""
    files = [make_file(disk / f"{i}", MIB + i * 4096) for i in range(7)]
    seen = watching("reads", 23, 4096, *files)
    assert seen.said == {"bytes": 7 * 23 * 4096}
    for path in files:
        total = seen.total(path, "read")
        assert total is not None
        assert (total.count, total.bytes) == (23, 23 * 4096)
        (opened,) = seen.opens(path)
        assert {s.token for s in seen.spans(path, "read")} == {opened.token}
        assert all(s.ts_ns > opened.ts_ns for s in seen.spans(path, "read"))
    tokens = {o.token for o in seen.of(Open) if (o.dev, o.ino) in map(key_of, files)}
    assert len(tokens) == 7


def test_first_sight(watching: Run, disk: Path) -> None:
    """Identity, name and first bytes once; the second process only opens."""
    path = make_file(disk / "weights", MIB, b"GGUF\3\0\0\0tensors!")
    dev, ino = key_of(path)
    for first in (True, False):
        seen = watching("reads", 2, 4096, path)
        files = seen.of(RawFile, lambda f: (f.dev, f.ino) == (dev, ino))
        assert [(f.size, f.name) for f in files] == ([(MIB, str(path))] if first else [])
        assert all(f.fd > 2 for f in files)
        magics = seen.of(RawMagic, lambda m: (m.dev, m.ino) == (dev, ino))
        assert [m.data for m in magics] == ([b"GGUF\3\0\0\0tensors!"] if first else [])
        assert len(seen.opens(path)) == 1


def test_small_files_are_not_followed(watching: Run, disk: Path) -> None:
    path = make_file(disk / "small", MIB - 1)
    seen = watching("reads", 5, 4096, path)
    assert seen.said == {"bytes": 5 * 4096}
    assert seen.total(path, "read") is None
    assert seen.of(RawFile, lambda f: (f.dev, f.ino) == key_of(path)) == []


def test_direct_reads(watching: Run, disk: Path) -> None:
    path = make_file(disk / "direct", 4 * MIB)
    drop_cache(path)
    seen = watching("direct", 11, 65536, path)
    total = seen.total(path, "read_direct")
    assert total is not None
    assert (total.count, total.bytes) == (11, 11 * 65536) == (11, seen.said["bytes"])
    assert seen.total(path, "read") is None
    assert seen.pages[key_of(path)] == 0


def test_populate(watching: Run, disk: Path) -> None:
    """MAP_POPULATE brings all pages within mmap: no fault to see, bytes from disk all the same."""
    path = make_file(disk / "mapped", 3 * MIB + 8192)
    drop_cache(path)
    seen = watching("populate", 3, MIB, path)
    (span,) = seen.spans(path, "mmap")
    assert (span.count, span.bytes, span.populate) == (1, 3 * MIB + 8192, True)
    advised = seen.spans(path, "madvise")
    assert sum(s.count for s in advised) == 3
    assert sum(s.bytes for s in advised) == 3 * MIB
    assert {s.advice for s in advised} == {3}  # MADV_WILLNEED
    unmapped = seen.total(path, "munmap")
    assert unmapped is not None
    assert (unmapped.count, unmapped.bytes) == (1, 3 * MIB + 8192)
    assert seen.total(path, "fault_minor") is None
    assert seen.total(path, "fault_major") is None
    assert seen.pages[key_of(path)] == 768 + 2
    assert [m.data[:4] for m in seen.of(RawMagic, lambda m: m.ino == key_of(path)[1])] == [b"GGUF"]
    tokens = {s.token for op in ("mmap", "madvise", "munmap") for s in seen.spans(path, op)}
    assert tokens == {o.token for o in seen.opens(path)}


def test_threads(watching: Run, disk: Path) -> None:
    """Five threads on one descriptor: a span for each, the total exact."""
    path = make_file(disk / "shared", MIB)
    seen = watching("threads", 101, 4096, path)
    total = seen.total(path, "read")
    assert total is not None
    assert (total.count, total.bytes) == (505, 505 * 4096)
    by_thread: dict[int, int] = {}
    for span in seen.spans(path, "read"):
        by_thread[span.tid] = by_thread.get(span.tid, 0) + span.count
    assert sorted(by_thread.values()) == [101] * 5
    assert {s.tgid for s in seen.spans(path, "read")} == {seen.pid}


@pytest.mark.parametrize("size", [MIB, 5 * MIB + 12288, 67 * MIB])
def test_insertions_are_exact(watching: Run, disk: Path, size: int) -> None:
    """Bytes from disk to the page, then none when it is read again."""
    path = make_file(disk / "cold", size)
    drop_cache(path)
    chunk = 1 << 16
    reads = -(-size // chunk)
    seen = watching("threads", 1, 4096, path)  # tracked from here on
    assert seen.pages[key_of(path)] > 0
    drop_cache(path)
    before = refaulted_bytes() // 4096
    seen = watching("reads", 5 * reads, chunk, path)
    again = watching("reads", 5 * reads, chunk, path).pages[key_of(path)]
    put_out = refaulted_bytes() // 4096 - before
    assert size // 4096 <= seen.pages[key_of(path)] <= size // 4096 + put_out
    assert again <= put_out


def test_container_image(watching: Run, disk: Path) -> None:
    """On overlayfs the pages, reads and mappings are those of the real file below."""
    lower = disk / "lower"
    lower.mkdir()
    below = make_file(lower / "weights", 2 * MIB)
    with overlay(disk, lower) as merged:
        path = merged / "weights"
        drop_cache(below)
        seen = watching("reads", 5, 65536, path)
        total = seen.total(below, "read")
        assert total is not None
        assert (total.count, total.bytes) == (5, seen.said["bytes"])
        assert seen.pages[key_of(below)] > 0
        drop_cache(below)
        seen = watching("populate", 1, MIB, path)
        assert seen.pages[key_of(below)] == 512
        tokens = {s.token for op in OPS if op != "read" for s in seen.spans(below, op)}
        assert tokens == {o.token for o in seen.opens(below)}
        assert len(tokens) == 1


OPS: tuple[Op, ...] = ("read", "mmap", "madvise", "munmap")


@contextlib.contextmanager
def overlay(disk: Path, lower: Path) -> Iterator[Path]:
    """An overlay over `lower`, mounted while in the context."""
    upper, work, merged = disk / "upper", disk / "work", disk / "merged"
    for folder in (upper, work, merged):
        folder.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True)
    try:
        yield merged
    finally:
        subprocess.run(["umount", merged], check=True)


def test_runs_of_two_readers(kernel: Kernel, disk: Path) -> None:
    """Processors add to a run at once: pages are in one run each, and runs end in time."""
    path = make_file(disk / "both", 48 * MIB)
    kernel.track_file(*key_of(path))
    ends: list[int] = []
    for _ in range(4):
        drop_cache(path)
        kernel.drain()
        wait_for(lambda: time.monotonic_ns() > max(ends, default=0) + GAP_NS, 5, "the gap")
        began = time.monotonic_ns()
        readers = [threading.Thread(target=path.read_bytes) for _ in range(2)]
        for reader in readers:
            reader.start()
        found: list[Raw] = []
        while any(reader.is_alive() for reader in readers):
            kernel.wait(5)
            found += [*kernel.drain(), *kernel.sweep(time.monotonic_ns())]
        found += [*kernel.drain(), *kernel.sweep(time.monotonic_ns())]
        runs = [r for r in latest(found) if isinstance(r, Insert) and r.ino == key_of(path)[1]]
        assert sum(r.pages for r in runs if r.ts_ns >= began) == 48 * MIB // 4096
        assert all(r.end_ns < began for r in runs if r.ts_ns < began)
        ends.append(max(r.end_ns for r in runs))
    assert ends == sorted(ends)


def test_insertions_before_first_use(kernel: Kernel, disk: Path) -> None:
    """A file user space names is counted whoever reads it, watched or not."""
    path = make_file(disk / "named", 2 * MIB)
    drop_cache(path)
    kernel.track_file(*key_of(path))
    kernel.track_file(*key_of(path))
    path.read_bytes()
    assert kernel.inserted()[key_of(path)] == 512


def test_file_opened_before_watching(kernel: Kernel, workload: Path, disk: Path) -> None:
    """A descriptor older than the watch is followed from its next use."""
    path = make_file(disk / "early", MIB)
    with path.open("rb", buffering=0) as early:
        fd = early.fileno()
        kernel.watch(os.getpid())
        for _ in range(13):
            early.read(4096)
        kernel.unwatch(os.getpid())
        early.read(4096)
    files = [r for r in kernel.drain() if isinstance(r, RawFile) and r.ino == key_of(path)[1]]
    assert [(f.fd, f.name, f.size) for f in files] == [(fd, "", MIB)]
    total = kernel.totals()[os.getpid(), *key_of(path), "read"]
    assert (total.count, total.bytes) == (13, 13 * 4096)
    with FileIo(workload, "reads", 3, 4096, [path]) as stranger:
        stranger.go()
        assert (stranger.pid, *key_of(path), "read") not in kernel.totals()
