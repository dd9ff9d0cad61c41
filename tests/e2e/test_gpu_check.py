"""`python -m bench gpu_check` on a stand-in for libcuda: no GPU is here.

So that every line of the script runs; what it is for, a real driver, is not tested by this.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import cuda_work
from tests.e2e.conftest import ROOT
from tests.workloads.library_calls import make_library
from tracer.libs.calls import Catalogue, shipped

FAILS = "cuMemAlloc_v2"
pytestmark = [pytest.mark.kernel, pytest.mark.e2e]


def check(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "gpu_check", *map(str, args)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def stand_in(folder: Path, name: str, file: str, also: tuple[str, ...]) -> Path:
    """A library whose functions do nothing and return 0."""
    (library,) = (x for x in Catalogue(shipped()).libraries if x.name == name)
    return make_library(folder, file, sorted({*library.symbols, *also}))


def rows_of(output: str) -> dict[str, str]:
    """The last column of each row, by function."""
    rows = re.findall(r"^  (cu\w+|nvrtc\w+) .*?(ok|MISSED|on purpose)$", output, re.MULTILINE)
    return dict(rows)


def test_every_call_of_the_program_is_seen(tmp_path: Path) -> None:
    cuda = stand_in(tmp_path, "cuda", "libcuda.so.1", cuda_work.ALSO)
    nvrtc = stand_in(tmp_path, "nvrtc", "libnvrtc.so.12", cuda_work.NVRTC_ALSO)
    done = check("--stand-in", "--cuda", cuda, "--nvrtc", nvrtc, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "A STAND-IN for libcuda" in done.stdout
    assert rows_of(done.stdout) == {
        **dict.fromkeys(
            (
                "cuInit", "cuDevicePrimaryCtxRetain", "cuMemAlloc_v2", "cuMemcpyHtoD_v2",
                "cuMemHostAlloc", "cuMemcpyHtoDAsync_v2", "cuModuleLoadData",
                "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
                "cuGraphLaunch", "cuModuleLoadDataEx", "nvrtcCompileProgram",
            ),
            "ok",
        ),
        "cuLaunchKernel": "on purpose",
    }  # fmt: skip
    size, times = cuda_work.COPIED
    assert f"{times} x, {size * times:,} bytes" in done.stdout
    assert "stages_ms" in done.stdout and "transfer.h2d" in done.stdout
    assert "all was seen" in done.stdout


def test_a_driver_without_a_device(tmp_path: Path) -> None:
    cuda = stand_in(tmp_path, "cuda", "libcuda.so.1", cuda_work.ALSO)
    broken = check("--cuda", cuda)
    assert (broken.returncode, broken.stdout) == (2, "")
    assert "no NVIDIA GPU: the driver has no device" in broken.stderr


def test_a_driver_that_fails_says_which_call(tmp_path: Path) -> None:
    """Out of memory, say."""
    (library,) = (x for x in Catalogue(shipped()).libraries if x.name == "cuda")
    source, target = tmp_path / "failing.c", tmp_path / "libcuda.so.1"
    names = {*library.symbols, *cuda_work.ALSO}
    source.write_text("".join(f"long {n}(void) {{ return {2 * (n == FAILS)}; }}\n" for n in names))
    subprocess.run(["clang", "-shared", "-fPIC", "-o", target, source], check=True)
    done = check("--stand-in", "--cuda", target)
    assert done.returncode == 2
    assert f"the CUDA program failed: {FAILS} returned error 2" in done.stderr


def test_without_a_gpu_it_says_so() -> None:
    done = check("--cuda", "libcuda-not-there.so.1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "error: cannot check here: no NVIDIA GPU: libcuda-not-there.so.1" in done.stderr


def test_it_explains_itself() -> None:
    done = check("--help")
    assert done.returncode == 0
    assert "on a machine with an NVIDIA GPU" in done.stdout
    assert "Exit code 0" in done.stdout
