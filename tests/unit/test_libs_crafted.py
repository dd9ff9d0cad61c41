"""A library is anybody's file: its reader gives up in time and in little memory."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path

import pytest

from tests.unit.elf_made import CODE_AT, CRAFTED, image
from tracer.libs.elf import Elf, ElfError

MEMORY = 24 << 20
SECONDS = 6.0
WANTED = ("llama_decode", "ggml_backend_tensor_set", "cuInit", "open")


@pytest.mark.parametrize("name", CRAFTED)
def test_made_to_keep_the_reader_busy(name: str, tmp_path: Path) -> None:
    path = tmp_path / "libllama.so"
    CRAFTED[name](path)
    fd = os.open(path, os.O_RDONLY)
    tracemalloc.start()
    began = time.thread_time()
    try:
        assert Elf(fd).functions(WANTED) == {}
    except ElfError as error:
        assert str(error)
    taken = time.thread_time() - began
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    os.close(fd)
    assert most < MEMORY
    assert taken < SECONDS


def test_names_that_end_others_are_found(tmp_path: Path) -> None:
    """A linker keeps `open` as the end of `popen`."""
    path = tmp_path / "libc.so.6"
    path.write_bytes(image(b"\x55", b"popen", b"read"))
    fd = os.open(path, os.O_RDONLY)
    assert Elf(fd).functions(["open", "popen", "read"]) == {"popen": CODE_AT, "read": CODE_AT}
    os.close(fd)


def test_a_table_longer_than_a_piece(tmp_path: Path) -> None:
    """Names lie across the ends of the pieces that are read."""
    names = [b"some_function_number_%d" % number for number in range(30_000)]
    path = tmp_path / "libmany.so"
    path.write_bytes(image(b"\x55", *names))
    wanted = [name.decode() for name in names[::7]]
    fd = os.open(path, os.O_RDONLY)
    assert Elf(fd).functions(wanted[:50]) == dict.fromkeys(wanted[:50], CODE_AT)
    assert set(Elf(fd).functions(wanted)) == set(wanted)
    os.close(fd)
