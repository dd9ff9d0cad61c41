"""Calls into stand-in libraries: every one counted, every byte, by whatever way they are made."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.bpf.libraries import FILES, Scene, links_of, scene
from tests.workloads.library_calls import Caller, make_caller, make_library
from tests.workloads.waiting import wait_for
from tracer.config import LibraryTable
from tracer.kernel import libbpf
from tracer.kernel.loader import Kernel
from tracer.kernel.objectfile import object_path
from tracer.libs import mappings
from tracer.libs.calls import Catalogue, Function, shipped
from tracer.records import Cached, Exit

pytestmark = pytest.mark.kernel


@pytest.fixture
def kernel(built: Path) -> Iterator[Kernel]:
    with Kernel.open(off=("sockets", "files", "faults"), path=built) as opened:
        yield opened


def _arguments(row: Function) -> tuple[list[str], int]:
    """What to say so that a call of this row has a known amount, and the amount."""
    m, poke, args = row.measure, [], ["0"] * 6
    amount = 4096 + len(row.symbol)
    if m.kind in ("arg", "u32"):
        args[m.arg - 1] = str(amount)
    elif m.kind == "product":
        args[m.arg - 1], args[m.other - 1] = str(amount), "3"
        amount *= 3
    elif m.kind == "pointed":
        poke = [f"poke {m.offset} {amount}"]
        args[m.arg - 1] = "m0"
    elif m.kind == "array":
        poke = [f"poke {m.offset + i * m.stride} {amount + i}" for i in range(5)]
        args[m.arg - 1], args[m.other - 1] = "m0", "5"
        amount = 5 * amount + 10
    if row.when is not None:
        args[row.when[0] - 1] = str(row.when[1])
    return [*poke, " ".join(args)], amount


@pytest.mark.parametrize("name", FILES)
def test_every_call_of_the_catalogue(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path, name: str
) -> None:
    """Each function and each of its twins, looked up while running."""
    catalogue = Catalogue(shipped())
    (library,) = (x for x in catalogue.libraries if x.name == name)
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        caller.tell(f"open {stand_ins[name]}")
        stage.probed(caller, name)
        (seen,) = (r for r in stage.libraries(caller.pid) if r.name == name)
        assert seen.functions == len(library.symbols)
        expected: dict[str, int] = {}
        amounts: dict[str, int] = {}
        for symbol, number in library.symbols.items():
            row, count = catalogue.rows[number], 2 + number % 3
            *pokes, arguments = _arguments(row)[0]
            amount = _arguments(row)[1]
            for poke in pokes:
                caller.tell(poke)
            if row.measure.kind == "batch":
                amount = 7 + number
                caller.tell(f"decode {symbol} {count} {amount}")
            else:
                caller.tell(f"call {symbol} {count} {arguments}")
            expected[row.symbol] = expected.get(row.symbol, 0) + count
            amounts[row.symbol] = amounts.get(row.symbol, 0) + count * amount
        rows = {row.symbol: row for row in catalogue.rows if row.library == name}
        for symbol, count in expected.items():
            unit = rows[symbol].unit
            size = amounts[symbol] if unit == "bytes" else None
            tokens = amounts[symbol] if unit == "tokens" else None
            assert (symbol, *stage.total(symbol)) == (symbol, count, size, tokens)
        assert {c.tgid for c in stage.calls()} == {caller.pid}
    assert stage.said == []
    assert not [kind for kind in stage.kernel.lost() if kind.startswith("call")]


@pytest.mark.parametrize("flags", [0, 2], ids=["legacy stream", "stream of each thread"])
def test_every_call_by_the_librarys_own_look_up(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path, flags: int
) -> None:
    """As CUDA's runtime finds them: by names without versions, through cuGetProcAddress_v2."""
    catalogue = Catalogue(shipped())
    rows = {row.symbol: row for row in catalogue.rows if row.library == "cuda"}
    newest = {re.sub(r"_v\d$", "", symbol): symbol for symbol in sorted(rows)}
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        caller.tell(f"open {stand_ins['cuda']}")
        stage.probed(caller, "cuda")
        for number, (name, symbol) in enumerate(newest.items()):
            row, count = rows[symbol], 2 + number % 3
            (*pokes, arguments), amount = _arguments(row)
            for poke in pokes:
                caller.tell(poke)
            caller.tell(f"ask {flags} {name} {count} {arguments}")
            size = count * amount if row.unit == "bytes" else None
            assert (symbol, *stage.total(symbol)) == (symbol, count, size, None)
        assert sum(c.count for c in stage.calls()) == sum(2 + n % 3 for n in range(len(newest)))
    assert stage.said == []


@pytest.mark.parametrize("name", ["cuda", "hip"])
def test_direct_calls(stage: Scene, stand_ins: dict[str, Path], folder: Path, name: str) -> None:
    """Linked when built: the library is there before main() begins."""
    catalogue = Catalogue(shipped())
    (library,) = (x for x in catalogue.libraries if x.name == name)
    with Caller(make_caller(folder, stand_ins[name], library.symbols)) as caller:
        stage.adopt(caller)
        stage.probed(caller, name)
        expected: dict[str, tuple[int, int | None, int | None]] = {}
        for symbol, number in library.symbols.items():
            row, count = catalogue.rows[number], 2 + number % 3
            (*pokes, arguments), amount = _arguments(row)
            for poke in pokes:
                caller.tell(poke)
            caller.tell(f"direct {symbol} {count} {arguments}")
            before = expected.get(row.symbol, (0, 0, None))
            size = (before[1] or 0) + count * amount if row.unit == "bytes" else None
            expected[row.symbol] = (before[0] + count, size, None)
        stage.take()
        assert {symbol: stage.total(symbol) for symbol in expected} == expected
    assert stage.said == []


def test_opened_later_is_told_by_the_loader(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path
) -> None:
    """Long after its start nobody looks again by himself: the dynamic loader says so."""
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        stage.is_left()
        caller.tell(f"open {stand_ins['cuda']}")
        stage.probed(caller, "cuda")
        caller.tell(f"open {stand_ins['vulkan']}")
        stage.probed(caller, "cuda", "vulkan")


def test_who_tells_is_not_looked_at_unasked(
    stage: Scene, caller_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look costs us and holds up the process."""
    real, looks = mappings.executable, []

    def counted(tgid: int) -> list[mappings.Mapped] | None:
        looks.append(tgid)
        return real(tgid)

    monkeypatch.setattr(mappings, "executable", counted)
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        stage.is_left()
        assert looks == [caller.pid] * 2


def test_the_loader_of_the_next_program_tells_too(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path
) -> None:
    """Of one that is run in the same process, which nobody looks at any more."""
    with Caller("sh", "-c", 'read go; echo done; exec "$0"', caller_binary) as caller:
        stage.adopt(caller)
        stage.is_left()
        caller.tell("go")
        caller.tell(f"open {stand_ins['cuda']}")
        stage.probed(caller, "cuda")


def test_other_processes_are_left_alone(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path
) -> None:
    with Caller(caller_binary) as caller, Caller(caller_binary) as stranger:
        stage.adopt(caller)
        for one in (caller, stranger):
            one.tell(f"open {stand_ins['cuda']}")
        stage.probed(caller, "cuda")
        for one in (caller, stranger):
            one.tell("call cuMemAlloc_v2 3 0 4096")
        assert [(c.tgid, c.count) for c in stage.calls("cuMemAlloc_v2")] == [(caller.pid, 3)]
        assert stage.libraries(stranger.pid) == []


def test_a_direction_counts_only_that_way(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path
) -> None:
    """hipMemcpy from the device to the host is no upload."""
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        caller.tell(f"open {stand_ins['hip']}")
        stage.probed(caller, "hip")
        for kind, count in ((1, 4), (2, 8), (3, 16), (4, 32)):
            caller.tell(f"call hipMemcpy {count} 0 0 100 {kind}")
        assert stage.total("hipMemcpy") == (4, 400, None)


def test_decoding_is_told_by_size_of_batch(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path
) -> None:
    """A prompt in two batches, then token by token: three runs, in order."""
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        caller.tell(f"open {stand_ins['llama']}")
        stage.probed(caller, "llama")
        caller.tell("decode llama_decode 1 512")
        caller.tell("decode llama_decode 1 77")
        caller.tell("decode llama_decode 50 1")
        runs = sorted(stage.calls("llama_decode"), key=lambda c: c.ts_ns)
        assert [(c.count, c.tokens) for c in runs] == [(1, 512), (1, 77), (50, 50)]
        assert all(a.end_ns <= b.ts_ns for a, b in pairwise(runs))


def test_time_until_the_next_entry(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path
) -> None:
    """What bounds a call: the thread's next call, or its end."""
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        caller.tell(f"open {stand_ins['vulkan']}")
        stage.probed(caller, "vulkan")
        caller.tell("call vkCreateComputePipelines 1")
        assert [c.last_ns for c in stage.calls("vkCreateComputePipelines")] == [None]
        caller.tell("call vkCreateShaderModule 2")
        (first,) = stage.calls("vkCreateComputePipelines")
        (after,) = stage.calls("vkCreateShaderModule")
        assert first.follow_ns == first.last_ns == after.ts_ns - first.ts_ns
        caller.tell("thread vkCreateComputePipelines 1")
        own = [c for c in stage.calls("vkCreateComputePipelines") if c.tid != caller.pid]
        assert [c.last_ns is not None and 0 < c.last_ns < 10**9 for c in own] == [True]


def test_one_event_each(
    kernel: Kernel, stand_ins: dict[str, Path], caller_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels without links for many functions."""
    monkeypatch.setattr(libbpf, "set_attach_type", lambda *_: None)
    with Kernel.open(off=("sockets", "files", "faults"), path=object_path()) as older:
        stage = scene(older, Catalogue(shipped()))
        try:
            with Caller(caller_binary) as caller:
                stage.adopt(caller)
                caller.tell(f"open {stand_ins['llama']}")
                stage.probed(caller, "llama")
                caller.tell("decode llama_decode 5 9")
                assert stage.total("llama_decode") == (5, None, 45)
                assert links_of(os.getpid()) > links_of(caller.pid)
        finally:
            stage.watch.close()


def test_detached_after_the_last_user(
    kernel: Kernel, stand_ins: dict[str, Path], caller_binary: Path
) -> None:
    """The second user keeps it; a while after the last one there is none."""
    stage = scene(kernel, Catalogue(shipped()), linger_ns=50_000_000)
    try:
        assert stage.watch.settle(10)
        before = links_of(os.getpid())
        with Caller(caller_binary) as first, Caller(caller_binary) as second:
            for one in (first, second):
                stage.adopt(one)
                one.tell(f"open {stand_ins['cuda']}")
                stage.probed(one, "cuda")
            assert links_of(os.getpid()) == before + 7  # the library's, and three of each process
            first.end()
            wait_for(lambda: _ended(stage, first.pid), 10, "the end")
            assert stage.watch.settle(10)
            second.tell("call cuInit 1 0")
            assert stage.total("cuInit")[0] == 1
            second.end()
        wait_for(lambda: _ended(stage, second.pid), 10, "the end")
        wait_for(lambda: links_of(os.getpid()) == before, 10, "the probes to be gone")
    finally:
        stage.watch.close()


def _ended(stage: Scene, pid: int) -> bool:
    stage.take()
    return any(isinstance(r, Exit) and r.tgid == pid for r in stage.records)


def test_library_of_a_container(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path, tmp_path: Path
) -> None:
    """In a mount namespace of its own, on a file system nobody else sees, and then deleted."""
    inside = tmp_path / "inside"
    inside.mkdir()
    script = (
        f"mount -t tmpfs none {inside} && cp {stand_ins['cuda']} {caller_binary} {inside} && "
        f"exec {inside}/caller"
    )
    with Caller("unshare", "--mount", "sh", "-c", script) as caller:
        caller.tell(f"open {inside / 'libcuda.so.1'}")
        assert not (inside / "libcuda.so.1").exists()
        stage.adopt(caller)
        stage.probed(caller, "cuda")
        caller.tell("call cuMemAlloc_v2 6 0 1000")
        assert stage.total("cuMemAlloc_v2") == (6, 6000, None)
    assert stage.said == []


def test_without_the_right_to_follow_mappings(
    stage: Scene,
    stand_ins: dict[str, Path],
    caller_binary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the service's own user: by the path, if the same file is still there."""
    real = os.open
    copy = tmp_path / FILES["hip"]
    shutil.copy(stand_ins["hip"], copy)
    other = shutil.copy(copy, tmp_path / "other")

    def refuse(path: str | bytes, flags: int, **more: Any) -> int:
        name = os.fsencode(path)
        if b"/map_files/" in name:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        if name.endswith(copy.name.encode()):  # exchanged just before it is looked at
            with contextlib.suppress(FileNotFoundError):
                os.replace(other, copy)
        return real(path, flags, **more)

    monkeypatch.setattr(os, "open", refuse)
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        caller.tell(f"open {stand_ins['cuda']}")
        stage.probed(caller, "cuda")
        caller.tell("call cuInit 3 0")
        assert stage.total("cuInit")[0] == 3
        assert stage.said == []
        caller.tell(f"open {copy}")
        stage.hears("the exchanged file to be named")
        assert stage.said == [f"{FILES['hip']} cannot be probed: it is gone ({copy})"]


def test_stripped_library(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path, folder: Path
) -> None:
    """Without its section headers the functions are found; without any of them it is named."""
    bare = folder / "bare"
    bare.mkdir()
    whole = shutil.copy(stand_ins["cuda"], bare / "libcuda.so.1")
    subprocess.run(["llvm-strip", "--strip-sections", whole], check=True)
    empty = make_library(folder / "empty", "libnvrtc.so.12", ["nothing_of_interest"])
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        caller.tell(f"open {whole}")
        caller.tell(f"open {empty}")
        stage.probed(caller, "cuda")
        caller.tell(f"open {whole}")
        caller.tell("call cuInit 4 0")
        assert stage.total("cuInit")[0] == 4
        stage.hears("the empty one to be named")
        assert stage.watch.settle(10)
    name = f"libnvrtc.so.12 has none of the functions to watch (stripped?) ({empty})"
    assert stage.said == [name]


def test_library_that_vanishes_while_it_is_attached(
    stage: Scene, stand_ins: dict[str, Path], caller_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between look and probe the process unmapped it: named once, the rest goes on."""
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        real = mappings.executable

        def unmapped_meanwhile(tgid: int) -> list[mappings.Mapped] | None:
            found = real(tgid)
            if tgid != caller.pid or found is None:
                return found
            gone = mappings.Mapped(
                ("00:00", 1), "/gone/libcuda.so.1", f"/proc/{tgid}/map_files/0-1"
            )
            return [gone, *found]

        monkeypatch.setattr(mappings, "executable", unmapped_meanwhile)
        caller.tell(f"open {stand_ins['vulkan']}")
        stage.probed(caller, "vulkan")
        caller.tell(f"open {stand_ins['hip']}")
        stage.probed(caller, "hip")
        caller.tell("call hipInit 2 0")
        assert stage.total("hipInit")[0] == 2
        assert stage.said == ["libcuda.so.1 cannot be probed: it is gone (/gone/libcuda.so.1)"]


def test_process_gone_while_it_is_looked_at(stage: Scene, caller_binary: Path) -> None:
    with Caller(caller_binary) as caller:
        caller.end()
        stage.adopt(caller)
    assert stage.said == []
    assert stage.libraries(caller.pid) == []


def test_library_of_the_configuration(kernel: Kernel, caller_binary: Path, folder: Path) -> None:
    """Its functions count like the others; one that is not there is named once."""
    own = make_library(folder / "own", "libmine.so", ["mine_upload"])
    entry = LibraryTable(
        files=("libmine.so*",),
        calls={"mine_upload": "upload bytes=arg2", "mine_typo": "upload bytes=arg2"},
    )
    stage = scene(kernel, Catalogue(shipped(), [entry]))
    try:
        for _ in range(2):
            with Caller(caller_binary) as caller:
                stage.adopt(caller)
                caller.tell(f"open {own}")
                stage.probed(caller, "mine")
                caller.tell("call mine_upload 3 0 7")
        assert stage.total("mine_upload") == (6, 42, None)
        assert stage.said == [f"libmine.so has no function mine_typo ({own})"]
    finally:
        stage.watch.close()


def test_cost_of_a_call(
    stage: Scene,
    stand_ins: dict[str, Path],
    caller_binary: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Printed, and held far from what would slow a server down: it decodes 100 times a second."""
    with Caller(caller_binary) as caller, Caller(caller_binary) as stranger:
        for one in (caller, stranger):
            one.tell(f"open {stand_ins['llama']}")
        free = float(stranger.tell("spin llama_decode 20000"))
        stage.adopt(caller)
        stage.probed(caller, "llama")
        watched = float(caller.tell("spin llama_decode 20000"))
        other = float(stranger.tell("spin llama_decode 20000"))
        with capsys.disabled():
            print(f"\na call: {free:.0f} ns, watched {watched:.0f}, of a stranger {other:.0f}")
        assert stage.total("llama_decode")[0] == 20000
    assert watched < 50_000


def test_opens_in_compile_caches(
    stage: Scene, caller_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up that finds nothing and the write after it have one stem; a hit has its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "mesa_shader_cache"
    cache.mkdir()
    (cache / "there").write_text("x")
    (tmp_path / "elsewhere").write_text("x")
    with Caller(caller_binary) as caller:
        stage.adopt(caller)
        stage.is_left()
        for line in (
            f"look {cache / '12ab'}", f"make {cache / '12ab.tmp'}", f"look {cache / 'there'}",
            f"look {tmp_path / 'elsewhere'}",
        ):  # fmt: skip
            caller.tell(line)
        stage.take()
        seen = [r for r in stage.records if isinstance(r, Cached)]
    assert [(r.folder, r.write) for r in seen] == [(str(cache), w) for w in (False, True, False)]
    assert seen[0].stem == seen[1].stem != seen[2].stem
    assert {r.tgid for r in seen} == {caller.pid}
