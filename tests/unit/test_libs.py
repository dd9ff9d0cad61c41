"""The catalogue of functions, and the symbols of files that may be anything."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.config import LibraryTable, parse
from tracer.errors import ConfigError
from tracer.kernel import layouts
from tracer.libs import caches, calls
from tracer.libs.calls import Catalogue, Function, Measure, shipped
from tracer.libs.elf import Elf, ElfError

ROOT = Path(__file__).parents[2]
CATALOGUE = Catalogue(shipped())


def test_documented() -> None:
    """ARCHITECTURE.md has each library, its layer and the kinds of calls."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("| library | layer | told of it |")[2]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]+) \|$", text, re.MULTILINE)
    told: dict[tuple[str, str], list[str]] = {}
    for row in CATALOGUE.rows:
        kinds = told.setdefault((row.library, row.layer), [])
        if row.what not in kinds:
            kinds.append(row.what)
    documented = {(name, layer): sorted(kinds.split(", ")) for name, layer, kinds in rows}
    assert documented == {key: sorted(kinds) for key, kinds in told.items()}


def test_every_table_has_a_source_and_every_kind_is_used() -> None:
    assert all(entry.source for entry in shipped())
    assert {row.what for row in CATALOGUE.rows} == set(calls.WHATS)
    assert all(row.unit == "tokens" for row in CATALOGUE.rows if row.what == "decode")
    sized = [row for row in CATALOGUE.rows if row.what in ("alloc", "pin", "upload", "copy")]
    assert all(row.unit == "bytes" for row in sized)


def test_names_that_spin_are_in_no_table() -> None:
    spinning = {name for entry in shipped() for name in entry.never}
    assert {"cuStreamQuery", "cuEventQuery", "vkGetFenceStatus", "hipStreamQuery"} <= spinning
    assert not spinning & {name for x in CATALOGUE.libraries for name in x.symbols}


def test_twins() -> None:
    (cuda,) = (x for x in CATALOGUE.libraries if x.name == "cuda")
    names = ("cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync_v2_ptds")
    rows = {cuda.symbols[name] for name in names}
    assert [CATALOGUE.rows[row].symbol for row in rows] == ["cuMemcpyHtoDAsync_v2"]


def test_files() -> None:
    assert [x.name for x in CATALOGUE.of("libggml-base.so.0.20.0")] == ["ggml"]
    assert [x.name for x in CATALOGUE.of("llama-server")] == ["llama", "ggml"]
    assert CATALOGUE.of("libc.so.6") == []
    assert CATALOGUE.of("libcudart.so.12") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("compile", ("compile", None, Measure(), None)),
        ("upload bytes=arg4", ("upload", "bytes", Measure("arg", 4), None)),
        ("alloc bytes=int arg2", ("alloc", "bytes", Measure("u32", 2), None)),
        ("alloc bytes=arg3*arg4", ("alloc", "bytes", Measure("product", 3, 4), None)),
        ("alloc bytes=[arg2+16]", ("alloc", "bytes", Measure("pointed", 2, 0, 16), None)),
        (
            "copy bytes=sum arg4*[arg5+16/24]",
            ("copy", "bytes", Measure("array", 5, 4, 16, 24), None),
        ),
        ("decode tokens=batch+0", ("decode", "tokens", Measure("batch"), None)),
        ("upload bytes=arg3 if arg4==1", ("upload", "bytes", Measure("arg", 3), (4, 1))),
    ],
)  # fmt: skip
def test_a_line(text: str, expected: tuple[object, ...]) -> None:
    row = calls.parse("lib", "driver", "f", text)
    assert (row.what, row.unit, row.measure, row.when) == expected
    assert len(row.spec()) == layouts.CALL_SPEC.size


@pytest.mark.parametrize(
    "text", ["", "fetch", "upload bytes", "upload bytes=arg7", "upload words=arg1",
             "upload bytes=[arg2]", "upload if arg1", "UPLOAD",
             "upload bytes=arg1 if arg2=1", "decode tokens=batch"],
)  # fmt: skip
def test_a_line_that_means_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match="mine_f of mine"):
        Catalogue(shipped(), [LibraryTable(files=("libmine.so",), calls={"mine_f": text})])


def test_a_spinning_name_in_the_configuration() -> None:
    table = LibraryTable(files=("libcuda.so.1",), calls={"cuStreamQuery": "graph"})
    with pytest.raises(ConfigError, match="cuStreamQuery of cuda is called in loops"):
        Catalogue(shipped(), [table])


def test_the_configuration_adds() -> None:
    config = parse(
        b'[[library]]\nfiles = ["libmine.so*"]\ncalls = { f = "upload bytes=arg2" }\n', "x"
    )
    catalogue = Catalogue(shipped(), config.library)
    expected = Function("mine", "driver", "f", "upload", "bytes", Measure("arg", 2), None)
    assert catalogue.rows[-1] == expected
    assert [x.name for x in catalogue.of("libmine.so.3")] == ["mine"]
    assert [x.given for x in catalogue.libraries][-2:] == [False, True]


# --- ELF -------------------------------------------------------------------------------------


def elf_of(data: bytes, tmp_path: Path) -> Elf:
    path = tmp_path / "file"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return Elf(fd)
    finally:
        os.close(fd)


@pytest.fixture
def made(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "made"
        path.write_bytes(data)
        return path

    return write


def functions(path: Path, *names: str) -> dict[str, int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return Elf(fd).functions(names)
    finally:
        os.close(fd)


CODE_AT, BASE = 0x200, 0x10000


def image(code: bytes, *, sections: bool = True, names: tuple[str, ...] = ("one", "two")) -> bytes:
    """A small shared library: each name is a function of 16 bytes of `code`."""
    strings = b"\0" + b"".join(n.encode() + b"\0" for n in names)
    symbols = bytes(24)
    for i, name in enumerate(names):
        at = strings.index(b"\0" + name.encode() + b"\0") + 1
        symbols += struct.pack("<IBBHQQ", at, 0x12, 0, 1, BASE + CODE_AT + 16 * i, 16)
    body = code.ljust(16, b"\xc3") * len(names)
    strings_at = CODE_AT + len(body)
    symbols_at = strings_at + len(strings)
    hash_at = symbols_at + len(symbols)
    table = struct.pack("<IIII", 1, len(names) + 1, 1, 0)
    dynamic_at = hash_at + len(table)
    dynamic = b"".join(
        struct.pack("<qQ", tag, value)
        for tag, value in (
            (4, BASE + hash_at), (5, BASE + strings_at), (6, BASE + symbols_at),
            (10, len(strings)), (0, 0),
        )
    )  # fmt: skip
    end = dynamic_at + len(dynamic)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, end if sections else 0, 0,
        64, 56, 2, 64, 3 if sections else 0, 0,
    )  # fmt: skip
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, end, end, 4096)
    where = struct.pack("<IIQQQQQQ", 2, 4, dynamic_at, BASE + dynamic_at, 0, len(dynamic), 0, 8)
    found = (head + load + where).ljust(CODE_AT, b"\0") + body + strings + symbols + table + dynamic
    if sections:
        found += bytes(64)
        found += struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, symbols_at, len(symbols), 2, 0, 8, 24)
        found += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, strings_at, len(strings), 0, 0, 1, 0)
    return found


@pytest.mark.parametrize("sections", [True, False])
def test_symbols_as_offsets(made: Callable[[bytes], Path], sections: bool) -> None:
    path = made(image(b"\x31\xc0\xc3", sections=sections))
    assert functions(path, "two", "three") == {"two": CODE_AT + 16}


@pytest.mark.parametrize(
    ("code", "skipped"),
    [
        ("f30f1efa4157", 4),  # endbr64; push %r15
        ("f30f1efa55", 4),  # endbr64; push %rbp
        ("f30f1efa4885ff741f", 7),  # endbr64; test %rdi,%rdi; je
        ("f30f1efa4885f6741f", 0),
        ("f30f1efa4883ec68", 0),  # endbr64; sub: stepped over anyhow
        ("55", 0),
        ("4157", 0),
    ],
)
def test_the_probe_is_behind_a_landing_mark(
    made: Callable[[bytes], Path], code: str, skipped: int
) -> None:
    assert functions(made(image(bytes.fromhex(code))), "one") == {"one": CODE_AT + skipped}


def test_a_real_library() -> None:
    """This interpreter's C library, wherever it is."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    path = next(s.split()[-1] for s in lines if re.search(r"/libc[.-]", s))
    found = functions(Path(path), "malloc", "free", "no_such_function")
    assert set(found) == {"malloc", "free"}
    assert len(set(found.values())) == 2


@given(data=st.binary(max_size=200))
def test_any_bytes(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(data)
    with pytest.raises(ElfError):
        functions(path, "one")


@given(at=st.integers(0, 0x330), value=st.integers(0, 255), cut=st.integers(0, 1200))
def test_a_damaged_file(
    at: int, value: int, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Found, not found or an error that says so: nothing else."""
    data = bytearray(image(b"\xf3\x0f\x1e\xfa\x55"))
    data[at] = value
    path = tmp_path_factory.mktemp("damaged") / "file"
    path.write_bytes(data[: len(data) - cut // 100])
    try:
        found = functions(path, "one", "two")
    except ElfError as error:
        assert str(error)
    else:
        assert set(found) <= {"one", "two"}


# --- compile caches --------------------------------------------------------------------------


def test_folders_by_the_environment() -> None:
    environment = {b"HOME": b"/home/a", b"CUDA_CACHE_PATH": b"/data/cuda"}
    found = caches.folders(environment, b"/root")
    assert found[0] == b"/data/cuda"
    wanted = {
        b"/home/a/.nv/ComputeCache", b"/root/.nv/ComputeCache", b"/home/a/.triton/cache",
        b"/home/a/.cache/mesa_shader_cache", b"/root/.cache/mesa_shader_cache",
        b"/home/a/.cache/comgr", b"/home/a/.cache/flashinfer",
        b"/home/a/.cache/vllm/torch_compile_cache", b"/tmp/torchinductor_",
    }  # fmt: skip
    assert wanted <= set(found)
    assert len(set(found)) == len(found)


def test_folders_of_odd_environments() -> None:
    """Relative, empty and root folders are none: all paths begin with the last."""
    odd = {
        b"HOME": b"", b"CUDA_CACHE_PATH": b"here", b"TRITON_CACHE_DIR": b"/",
        b"XDG_CACHE_HOME": b"", b"VLLM_CACHE_ROOT": b"/" + 5000 * b"a",
    }  # fmt: skip
    assert caches.folders(odd, None) == (b"/tmp/torchinductor_",)
