"""A kernel's types out of a file that is given: any other is an error that says what to do."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cli_runs import Runner
from tracer.errors import KernelError
from tracer.kernel import btf

NAMES = b"\0int\0sys_read\0"
TYPES = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, 8, 8, len(NAMES)) + bytes(8) + NAMES


def elf(types: bytes = TYPES, name: bytes = b".BTF") -> bytes:
    """A file with three sections: none, the types, the sections' names."""
    texts = b"\0.text\0" + name + b"\0"
    at = 64
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, 0, 0,
        at + len(types) + len(texts), 0, 64, 0, 0, 64, 3, 2,
    )  # fmt: skip
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", text, 1, 0, 0, offset, size, 0, 0, 0, 0)
        for text, offset, size in (
            (0, 0, 0),
            (7, at, len(types)),
            (1, at + len(types), len(texts)),
        )
    )
    return head + types + texts + sections


@pytest.mark.parametrize("content", [TYPES, elf(), elf(TYPES) + b"more"])
def test_names(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "types"
    path.write_bytes(content)
    assert btf.names(path, "advice") == NAMES


def test_names_of_this_kernel() -> None:
    path = Path("/sys/kernel/btf/vmlinux")
    if not path.exists():
        pytest.skip("this kernel has none")
    assert b"\0task_struct\0" in btf.names(path, "")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it begins|cut short"),
        (b"\x9f\xeb", "cut short"),
        (TYPES[:-1], "cut short"),
        (b"nothing at all that is a type", "it begins otherwise"),
        (elf(name=b".BTX"), "no section .BTF"),
        (elf(b"nothing at all that is a type"), "it begins otherwise"),
        (elf()[:100], "cut short"),
    ],
)
def test_what_holds_no_types(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "types"
    path.write_bytes(content)
    with pytest.raises(KernelError, match=f"holds no type information .BTF.: .*({why})") as caught:
        btf.names(path, "give another")
    assert caught.value.hint == "give another"


def test_what_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "types"
    path.write_bytes(TYPES)
    os.truncate(path, 1 << 40)
    with pytest.raises(KernelError, match="larger than 64 MiB"):
        btf.names(path, "")


@pytest.mark.parametrize("kind", ["device", "fifo", "folder"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    path = Path("/dev/zero") if kind == "device" else path
    with pytest.raises(KernelError, match="it is no file"):
        btf.names(path, "")


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null", "/etc/passwd"])
def test_doctor_asked_with_what_holds_none(
    place: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    ran = Runner(capfdbinary, tmp_path / "none")("doctor", "--btf", place)
    assert ran.code == 1
    assert f"{place} holds no type information (BTF)" in ran.err
    assert "give a file that holds the types of this kernel" in ran.err


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([TYPES, elf()]), st.data())
def test_damaged_types(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    raw = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged-types"
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        assert isinstance(btf.names(path, ""), bytes)
    except KernelError as error:
        assert "type information" in error.message
