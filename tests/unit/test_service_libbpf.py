"""The libbpf that a wheel carries, where the system has none or one that is too old."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pack import carried
from tracer.kernel import libbpf

ROOT = Path(__file__).parents[2]
#: In a process of its own: what is loaded once is found by its name for ever.
LOAD = """
import ctypes, pathlib, sys
from tracer.errors import KernelError
from tracer.kernel import libbpf
real, loaded = ctypes.CDLL, []
def load(name, mode=0, use_errno=False):
    if name == "libbpf.so.1":
        raise OSError("libbpf.so.1: cannot open shared object file")
    loaded.append(pathlib.Path(name).name)
    return real(name, mode, use_errno=use_errno)
ctypes.CDLL = load
libbpf.CARRIED = pathlib.Path(sys.argv[1])
try:
    print(libbpf.version(), *sorted(loaded))
except KernelError as error:
    print(error.message, error.hint, sep="; ")
"""


def loaded_from(folder: Path) -> str:
    argv = [sys.executable, "-c", LOAD, str(folder)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_carried_one_serves_and_brings_its_licences(tmp_path: Path) -> None:
    places = carried.located()
    if not places:
        pytest.skip("no libbpf here to be carried")
    copied = {path.name for path in carried.carry(tmp_path)}
    assert copied == {text for name in places for text in (name, f"{name}.copyright")}
    ours = loaded_from(tmp_path / "tracer" / "kernel" / "libs")
    assert ours == " ".join([libbpf.version(), *sorted(places)]) + "\n"


def test_without_any_the_error_says_what_to_install(tmp_path: Path) -> None:
    said = loaded_from(tmp_path)
    assert said.startswith("libbpf is missing: libbpf.so.1: cannot open")
    assert said.endswith(f"; {libbpf.MISSING_HINT}\n")
