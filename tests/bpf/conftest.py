"""Fixtures of the kernel tests: the built object, a workload, files on a real disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import build_bpf
from tests.bpf.libraries import FILES, Scene, scene
from tests.bpf.watching import Watching
from tests.workloads import fileio
from tests.workloads.library_calls import make_caller, make_library
from tracer.kernel import features
from tracer.kernel.loader import Kernel
from tracer.kernel.objectfile import object_path
from tracer.libs.calls import Catalogue, shipped

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


@pytest.fixture(scope="session")
def built() -> Path:
    """The object for this machine and its kernel is new."""
    if build_bpf.find("clang"):
        build_bpf.build(ROOT)
    return object_path(plain=bool(features.detect().plain))


@pytest.fixture(scope="session")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fileio.compiled(tmp_path_factory.mktemp("workload"))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder on a file system with a page cache of its own."""
    if _file_system(tmp_path) not in ("tmpfs", "ramfs"):
        return tmp_path
    other = ROOT / "build" / "test-files"
    other.mkdir(parents=True, exist_ok=True)
    return other


def _file_system(path: Path) -> str:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    fitting = [m for m in mounts if path.is_relative_to(m[1])]
    return max(fitting, key=lambda m: len(m[1]))[2]


@pytest.fixture
def kernel(built: Path) -> Iterator[Kernel]:
    """All file and process programs attached, nothing watched."""
    with Kernel.open(off=("sockets",), path=built) as opened:
        opened.attach("minor")
        yield opened


@pytest.fixture
def watching(kernel: Kernel, workload: Path) -> Callable[..., Watching]:
    """`watching(WHAT, COUNT, SIZE, *FILES)`: run that work watched; all that was recorded."""

    def run(what: str, count: int, size: int, *files: Path) -> Watching:
        return Watching.run(kernel, workload, what, count, size, files)

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stand-ins")


@pytest.fixture(scope="module")
def stand_ins(folder: Path) -> dict[str, Path]:
    libraries = Catalogue(shipped()).libraries
    assert {library.name for library in libraries} == set(FILES)
    return {
        x.name: make_library(folder, FILES[x.name], x.symbols, looks_up=x.name == "cuda")
        for x in libraries
    }


@pytest.fixture(scope="module")
def caller_binary(folder: Path) -> Path:
    return make_caller(folder)


@pytest.fixture
def stage(kernel: Kernel) -> Iterator[Scene]:
    made = scene(kernel, Catalogue(shipped()))
    yield made
    made.watch.close()
