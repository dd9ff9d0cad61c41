"""Page faults against the kernel's own count (getrusage)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bpf.watching import Watching, key_of
from tests.workloads.fileio import drop_cache, make_file
from tracer.kernel.loader import Kernel
from tracer.kernel.wire import RawMagic

pytestmark = pytest.mark.kernel
MIB = 1 << 20


def _counts(seen: Watching, path: Path) -> dict[str, int]:
    minor, major = seen.total(path, "fault_minor"), seen.total(path, "fault_major")
    return {"minor": minor.count if minor else 0, "major": major.count if major else 0}


@pytest.mark.parametrize("timed", [True, False])
def test_warm_faults(
    kernel: Kernel, watching: Callable[..., Watching], disk: Path, timed: bool
) -> None:
    """Counts are exact; times are known only where they are asked for."""
    path = make_file(disk / "warm", 16 * MIB)
    drop_cache(path)
    watching("touches", 0, 1, path)  # in the cache page by page
    if not timed:
        kernel.detach("minor")
    seen = watching("touches", 0, 0, path)
    assert seen.said == {"minor": 256, "major": 0}
    assert _counts(seen, path) == seen.said
    minor = seen.total(path, "fault_minor")
    assert minor is not None
    assert (minor.busy_ns > 256 * 100) == timed


def test_majors_untimed_minors(
    kernel: Kernel, watching: Callable[..., Watching], disk: Path
) -> None:
    """A fault that finds neighbours in the cache, but not its page, is one major fault."""
    path = make_file(disk / "mixed", 16 * MIB)
    kernel.detach("minor")
    drop_cache(path)
    seen = watching("touches", 0, 0, path)
    assert seen.said["major"] > 0 and seen.said["minor"] > 0
    assert _counts(seen, path) == seen.said
    drop_cache(path)
    watching("reads", 5, 4096, path)  # a few pages only
    seen = watching("touches", 0, 1, path)
    assert seen.said["major"] > 1_000
    assert _counts(seen, path) == seen.said


def test_major_faults_are_counted_while_nothing_times_them(
    kernel: Kernel, watching: Callable[..., Watching], disk: Path
) -> None:
    """The first one is told at once: whoever listens then can have them timed."""
    path = make_file(disk / "untimed", 4 * MIB)
    kernel.detach("minor")
    kernel.detach("paging")
    drop_cache(path)
    seen = watching("touches", 0, 1, path)
    assert seen.said == {"minor": 0, "major": 1024}
    assert _counts(seen, path) == seen.said
    major = seen.total(path, "fault_major")
    assert major is not None
    assert (major.busy_ns, major.bytes) == (0, 4 * MIB)
    spans = sorted(seen.spans(path, "fault_major"), key=lambda span: span.ts_ns)
    assert (spans[0].count, sum(span.count for span in spans)) == (1, 1024)
    kernel.attach("paging")
    drop_cache(path)
    seen = watching("touches", 0, 1, path)
    assert _counts(seen, path) == seen.said == {"minor": 0, "major": 1024}
    major = seen.total(path, "fault_major")
    assert major is not None
    assert major.busy_ns > 1024 * 1000


@pytest.mark.parametrize("timed", [True, False])
def test_cold_faults(
    kernel: Kernel, watching: Callable[..., Watching], disk: Path, timed: bool
) -> None:
    """Without readahead every page is a major fault and an insertion."""
    path = make_file(disk / "cold", 4 * MIB)
    drop_cache(path)
    if not timed:
        kernel.detach("minor")
    seen = watching("touches", 0, 1, path)
    assert seen.said == {"minor": 0, "major": 1024}
    assert _counts(seen, path) == seen.said
    assert seen.pages[key_of(path)] == 1024
    major = seen.total(path, "fault_major")
    assert major is not None
    assert major.bytes == 4 * MIB
    assert major.busy_ns > 1024 * 1000


def test_first_bytes_of_a_mapped_file(watching: Callable[..., Watching], disk: Path) -> None:
    """They are not there at mmap: they come with the first fault."""
    path = make_file(disk / "lazy", 2 * MIB, b'\x10\0\0\0\0\0\0\0{"tensor')
    drop_cache(path)
    seen = watching("touches", 0, 0, path)
    magics = [m.data for m in seen.of(RawMagic, lambda m: m.ino == key_of(path)[1])]
    assert magics == [b'\x10\0\0\0\0\0\0\0{"tensor']


def test_other_mappings_are_not_counted(watching: Callable[..., Watching], disk: Path) -> None:
    """Faults belong to the file that is mapped there, not to one mapped there before."""
    first, second = make_file(disk / "a", 8 * MIB), make_file(disk / "b", 8 * MIB)
    seen = watching("touches", 0, 0, first)
    other = watching("touches", 0, 0, second)
    assert _counts(seen, first) == seen.said
    assert _counts(other, second) == other.said
    assert other.total(first, "fault_minor") is None
    assert os.getpid() not in {key[0] for key in other.totals}


def test_faults_while_the_memory_map_changes(
    kernel: Kernel, watching: Callable[..., Watching], disk: Path
) -> None:
    """A mapping that cannot be told at once is told later; if never, the loss is counted."""
    path = make_file(disk / "contended", 64 * MIB)
    drop_cache(path)
    seen = watching("touches", 1, 1, path)
    lost = kernel.lost()
    assert seen.said["major"] > 16_000
    missing = seen.said["major"] - _counts(seen, path)["major"]
    sys.stdout.write(f"\n{missing} of {seen.said['major']} missing, lost: {lost}\n")
    assert 0 <= missing <= lost.get("span.lookup", 0)
    assert missing < 1_000
    assert set(lost) <= {"span.lookup"}


def test_children_inherit(watching: Callable[..., Watching]) -> None:
    """A child's faults are seen from its first instruction on, across exec."""
    seen = watching("children", 0, 0)
    *_, true = seen.said["pids"]
    library = {key for key in seen.totals if key[0] == true and key[3] == "fault_minor"}
    mapped = {key for key in seen.totals if key[0] == true and key[3] == "mmap"}
    assert {key[1:3] for key in library} == {key[1:3] for key in mapped} != set()
