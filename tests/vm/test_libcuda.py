"""NVIDIA's own libcuda of driver 535, from Debian: names and entries, on a machine without a GPU.

No stand-in, but no device either: its functions refuse, after their probed entries. Fetched by
the machine's package configuration like the kernels of guests, so it is tried with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import build_bpf
from tests.bpf.libraries import Scene, scene
from tests.vm import standins
from tests.vm.catalogue import ROOT
from tests.workloads.library_calls import Caller, make_caller
from tracer.kernel import features
from tracer.kernel.loader import Kernel
from tracer.kernel.objectfile import object_path
from tracer.libs.calls import Catalogue, Library, shipped
from tracer.libs.elf import Elf

pytestmark = [pytest.mark.vm, pytest.mark.kernel]

#: Functions that came after CUDA 12.2, which driver 535 brings.
NEWER = {"cuCtxCreate_v4", "cuFuncLoad", "cuMemcpyBatchAsync"}
NO_DEVICE = 100
#: The program's own /dev: where it may, the library makes device nodes even without a driver.
_ALONE = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec {}"


@pytest.fixture(scope="module")
def libcuda() -> Path:
    return standins.libcuda()


@pytest.fixture(scope="module")
def caller_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_caller(tmp_path_factory.mktemp("caller"))


@pytest.fixture
def stage() -> Iterator[Scene]:
    if build_bpf.find("clang"):
        build_bpf.build(ROOT)
    path = object_path(plain=bool(features.detect().plain))
    with Kernel.open(off=("sockets", "files", "faults"), path=path) as kernel:
        made = scene(kernel, Catalogue(shipped()))
        yield made
        made.watch.close()


def _library() -> Library:
    return next(x for x in Catalogue(shipped()).libraries if x.name == "cuda")


def _functions(path: Path) -> dict[str, int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return Elf(fd).functions(_library().symbols)
    finally:
        os.close(fd)


def test_every_function_of_the_catalogue_is_there(libcuda: Path) -> None:
    found = _functions(libcuda)
    rows = {row.symbol for row in Catalogue(shipped()).rows if row.library == "cuda"}
    assert rows - found.keys() == NEWER
    assert len(set(found.values())) == len(found)
    assert all(0 < offset < libcuda.stat().st_size for offset in found.values())
    twins = found.keys() - rows
    assert {"cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoD_v2_ptds", "cuGraphLaunch_ptsz"} <= twins


def test_every_entry_fires_without_a_device(
    stage: Scene, libcuda: Path, caller_binary: Path
) -> None:
    """By name; the arguments are no pointers that it could follow, for nothing was set up."""
    catalogue = Catalogue(shipped())
    with Caller("unshare", "--mount", "sh", "-ec", _ALONE.format(caller_binary)) as caller:
        caller.tell("poke 0 0")  # it is itself by now
        stage.adopt(caller)
        caller.tell(f"open {libcuda}")
        stage.probed(caller, "cuda")
        found = _functions(libcuda)
        (seen,) = (r for r in stage.libraries(caller.pid) if r.name == "cuda")
        assert seen.functions == len(found)
        expected: dict[str, int] = {}
        for symbol in found:
            row = catalogue.rows[_library().symbols[symbol]]
            expected[row.symbol] = expected.get(row.symbol, 0) + 2
            caller.tell(f"call {symbol} 2 0 m64 m128 m192 m256 m320")
        # What the library calls of itself goes past its exports.
        assert {symbol: stage.total(symbol)[0] for symbol in expected} == expected
    assert stage.said == []


def test_entries_by_its_own_look_up(stage: Scene, libcuda: Path, caller_binary: Path) -> None:
    """cuGetProcAddress_v2 gives addresses of exports, so what is found by it is seen as well."""
    with Caller("unshare", "--mount", "sh", "-ec", _ALONE.format(caller_binary)) as caller:
        caller.tell("poke 0 0")  # it is itself by now
        stage.adopt(caller)
        caller.tell(f"open {libcuda}")
        stage.probed(caller, "cuda")
        for flags, size in ((0, 4096), (2, 8192)):
            caller.tell(f"ask {flags} cuMemcpyHtoD 3 0 0 {size}")
        caller.tell("ask 0 cuMemAlloc 4 0 1000")
        caller.tell("ask 0 cuInit 1 0")
        assert stage.total("cuMemcpyHtoD_v2") == (6, 3 * 4096 + 3 * 8192, None)
        assert stage.total("cuMemAlloc_v2") == (4, 4000, None)
        assert stage.total("cuInit")[0] == 1


def test_it_says_that_there_is_no_device(libcuda: Path, caller_binary: Path) -> None:
    with Caller("unshare", "--mount", "sh", "-ec", _ALONE.format(caller_binary)) as caller:
        caller.tell(f"open {libcuda}")
        assert caller.tell("answer cuInit 0") == str(NO_DEVICE)
