"""Names of functions: what is asked, what a helper may answer, what it may do instead."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_stacks_fold import samples, told
from tests.workloads.waiting import wait_for
from tracer.records import Names
from tracer.stacks import helper, symbols
from tracer.stacks.mapped import MADE, Mapping, Mappings, parse
from tracer.stacks.names import (
    Answer,
    HelperError,
    Namer,
    Process,
    ask,
    question,
    record,
    run,
)
from tracer.stacks.words import NAME_MAX, shown

PYTHON = sys.executable


# --- words -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("main", "main"),
        ("llvm::Instruction::getSuccessor(unsigned int) const", "llvm::Instruction::getSuccessor"),
        ("void foo<int, std::vector<a> >(int)", "foo"),
        ("operator new(unsigned long)", "operator new"),
        ("llvm::V<llvm::B*>::operator=(llvm::V<llvm::B*>&&)", "llvm::V::operator="),
        ("std::function<void(int)>::operator()(int) const", "std::function::operator()"),
        ("(anonymous namespace)::X::run(llvm::F&) [clone .cold]", "(anonymous)::X::run"),
        ("unlink_chunk.constprop.0", "unlink_chunk"),
        ("pthread_cond_broadcast@@GLIBC_2.3.2", "pthread_cond_broadcast"),
        ("core::fmt::write::h0123456789abcdef", "core::fmt::write"),
        ("\x1b[2Jcls\n\u202eevil", "?[2Jcls??evil"),
        ("((((", "(((("),
        ("", ""),
    ],
)
def test_names_as_they_are_shown(name: str, text: str) -> None:
    assert shown(name) == text


@given(st.text(max_size=400) | st.text("_ZNKV0123²٣४ax", max_size=60).map("_ZN".__add__))
def test_no_name_can_do_harm(name: str) -> None:
    assert len(symbols.plain(name)) <= 2 * len(name)
    text = shown(name)
    assert len(text) <= NAME_MAX
    assert text.isprintable()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "plain"),
        ("_ZN4llvm12SelectionDAG7CombineENS_12CombineLevelE", "llvm::SelectionDAG::Combine"),
        ("_ZNK4llvm11Instruction12getSuccessorEj", "llvm::Instruction::getSuccessor"),
        ("_ZN", "_ZN"),
        ("_ZN99999999999999999999x", "_ZN99999999999999999999x"),
        ("_ZN3ab", "_ZN3ab"),
        ("_ZN²x", "_ZN²x"),
        ("_Z4mainv", "_Z4mainv"),
    ],
)
def test_mangled_names(name: str, text: str) -> None:
    assert symbols.plain(name) == text


# --- mappings ----------------------------------------------------------------------

MAPS = b"""\
55d0c0000000-55d0c0001000 r--p 00000000 08:01 42 /opt/serve
55d0c0001000-55d0c0005000 r-xp 00001000 08:01 42 /opt/serve
7f0000000000-7f0000001000 r-xp 00000000 00:00 0 
7f0000002000-7f0000003000 rwxp 00000000 00:05 9 /memfd:jit (deleted)
7f0000004000-7f0000005000 r-xp 00002000 08:01 43 /lib/a b.so (deleted)
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0 [vdso]
"""  # noqa: W291


def test_mappings() -> None:
    found = parse(MAPS)
    assert [(m.module, m.file) for m in found] == [
        ("/opt/serve", "08:01 42"),
        (MADE, ""),
        ("/memfd:jit", "00:05 9"),
        ("/lib/a b.so", "08:01 43"),
        ("[vdso]", ""),
    ]
    assert found[0].place(0x55D0C0001010) == 0x1010
    assert found[1].place(0x7F0000000123) == 0
    assert found[3].place(0x7F0000004001) == 0x2001


@given(st.binary(max_size=300))
def test_mappings_of_any_text(text: bytes) -> None:
    assert all(isinstance(m, Mapping) for m in parse(text))


def test_a_process_is_looked_at_again_only_for_what_is_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []

    def read(tgid: int) -> list[Mapping]:
        looked.append(tgid)
        return parse(MAPS)

    monkeypatch.setattr("tracer.stacks.mapped._read", read)
    mappings = Mappings()
    assert mappings.at(7, 1, 0, sure=False) is None  # never looked at before
    for ns in (1, 10**9, 2 * 10**9):
        assert mappings.at(7, 1, ns, sure=False) is None
    assert looked == [7]
    assert mappings.at(7, 1, 3 * 10**9) is None
    assert mappings.at(7, 1, 3 * 10**9 + 1) is None
    assert looked == [7, 7]


def test_mappings_of_this_process_and_of_one_that_is_gone() -> None:
    mappings = Mappings()
    inside = parse(Path("/proc/self/maps").read_bytes())[0]
    found = mappings.at(os.getpid(), inside.start, 0)
    assert found == inside
    assert mappings.at(os.getpid(), 1, 0) is None
    gone = subprocess.Popen([PYTHON, "-c", ""])
    gone.wait()
    assert mappings.at(gone.pid, inside.start, 0) is None
    assert mappings.of(gone.pid) == []


# --- question and answer -------------------------------------------------------------


class Fixed(Mappings):
    """A process with two files."""

    def of(self, tgid: int) -> list[Mapping]:
        return [
            Mapping(0x1000, 0x9000, 0, "/usr/lib/libLLVM-15.so.1", "08:01 7"),
            Mapping(0x20000, 0x21000, 0x1000, "/usr/lib/libc.so.6", "08:01 8"),
        ]


def test_the_question_has_addresses_and_files() -> None:
    asked = question(told(samples(0, (2, 0, 16), (1, 1, 0x1008), (1, 1, 0x99999))), Fixed())
    assert asked == [
        Process(
            300,
            [("/usr/lib/libLLVM-15.so.1", 7), ("/usr/lib/libc.so.6", 8)],
            [(0x1010, 0, 16), (0x20008, 1, 0x1008)],
        )
    ]


ASKED = [Process(7, [("/a", 1), ("/b", 2)], [(0, 0, 16), (0, 1, 32), (0, 0, 48)])]


def test_an_answer_becomes_a_record() -> None:
    said = Answer(by="bcc", names=[["x(int)", None, "x(long)"]])
    assert record(5, ASKED, said, 9) == Names(
        ts_ns=9, id=5, modules=("/a",), functions=("x",), at=((0, 16, 0), (0, 48, 0))
    )
    assert record(5, ASKED, Answer(by="bcc", names=[[None, None, ""]]), 9) is None


@pytest.mark.parametrize("names", [[], [["x"]], [["x"] * 4], [["x"] * 3, []]])
def test_an_answer_to_something_else(names: list[list[str | None]]) -> None:
    with pytest.raises(HelperError):
        record(5, ASKED, Answer(by="bcc", names=names), 9)


# --- the helper's bad manners ---------------------------------------------------------


def test_what_a_program_says() -> None:
    text = b"x" * (1 << 20)
    assert run(["/bin/cat"], text, 10, 2 << 20) == text


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import time; time.sleep(60)", "too long"),
        ("import sys\nwhile True: sys.stdout.write('x' * 9999)", "too much"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
        ("import sys; sys.exit(3)", "ended with 3"),
        ("import os, time; os.close(1); time.sleep(60)", "does not end"),
    ],
)
def test_a_program_that_fails(program: str, why: str) -> None:
    began = time.monotonic()
    limit_s = 1.0 if "sleep" in program else 60.0  # a busy machine takes its time to start one
    with pytest.raises(HelperError, match=why):
        run([PYTHON, "-c", program], b"x" * 300_000, limit_s, 1 << 16)
    assert time.monotonic() - began < 30


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(HelperError, match="No such file"):
        run(["/nowhere/python"], b"", 1, 1)


def test_children_of_a_program_end_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    program = (
        "import os, sys, time\n"
        "pid = os.fork()\n"
        "if pid: open(sys.argv[1], 'w').write(str(pid))\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(HelperError):
        run([PYTHON, "-c", program, str(note)], b"", 1.0, 1)
    child = Path("/proc", note.read_text(), "stat")

    def ended() -> bool:
        try:
            return child.read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    wait_for(ended, 10, "the child to end")


def stand_in(folder: Path, says: bytes) -> str:
    """An interpreter that says this, whatever it is to run."""
    path = folder / "python"
    (folder / "says").write_bytes(says)
    path.write_text(f'#!/bin/sh\ncat > /dev/null\nexec cat "{folder}/says"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "says",
    [
        b"", b"garbage", b"\xff\xfe", b"[]", b'{"by": "bcc"}', b'{"by": 1, "names": []}',
        b'{"by": "bcc", "names": [[1]]}', b'{"by": "bcc", "names": [], "more": 1}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_an_answer_without_sense(tmp_path: Path, says: bytes) -> None:
    with pytest.raises(HelperError):
        ask(ASKED, [(stand_in(tmp_path, says), True)])


def test_the_next_interpreter_is_asked(tmp_path: Path) -> None:
    bad = stand_in(tmp_path, b"garbage")
    good = tmp_path / "good"
    good.mkdir()
    said = stand_in(good, b'{"by": "symbols", "names": [["x", null, null]]}')
    assert ask(ASKED, [(bad, True), (said, False)]).names == [["x", None, None]]


def test_troubles_are_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad = stand_in(tmp_path, b"garbage")
    monkeypatch.setattr("tracer.stacks.names.interpreters", lambda: [(bad, True)])
    said: list[str] = []
    found: list[Names] = []
    namer = Namer(found.append, said.append)
    slow = told(samples(0, (2, 0, 16)))
    for _ in range(3):
        namer.name(slow, Fixed())
    namer.close()
    assert namer._thread is not None
    namer._thread.join(20)
    assert found == []
    assert len(said) == 1 and "makes no sense" in said[0]


# --- the helper itself -----------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ELF file with two functions, made by hand."""
    path = tmp_path_factory.mktemp("elf") / "lib.so"
    path.write_bytes(elf({b"first": (0x1000, 0x10), b"_ZN1a1bEv": (0x1010, 0x10)}))
    return path


def elf(functions: dict[bytes, tuple[int, int]]) -> bytes:
    """Headers, one segment that lies at 0x1000 both ways, one symbol table."""
    strings, table = b"\0", b""
    for name, (value, size) in functions.items():
        table += struct.pack("<IBBHQQ", len(strings), 2, 0, 1, value, size)
        strings += name + b"\0"
    at = 64 + 56
    sections_at = at + len(table) + len(strings)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, sections_at, 0, 64, 56, 1,
        64, 3, 0,
    )  # fmt: skip
    load = struct.pack("<IIQQQQQQ", 1, 5, 0x1000, 0x1000, 0, 0x1000, 0x1000, 0x1000)
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 0, entry)
        for kind, offset, size, link, entry in (
            (0, 0, 0, 0, 0),
            (11, at, len(table), 2, 24),
            (3, at + len(table), len(strings), 0, 0),
        )
    )
    return head + load + table + strings + sections


def names_in(path: Path, *offsets: int) -> list[str | None]:
    fd = os.open(path, os.O_RDONLY)
    try:
        found = symbols.Symbols(fd)
    finally:
        os.close(fd)
    return [found.name(offset) for offset in offsets]


def test_names_by_symbols(program: Path) -> None:
    assert names_in(program, 0x1000, 0x100F, 0x1010, 0x1020, 0x900, 1 << 40) == [
        "first", "first", "a::b", None, None, None,
    ]  # fmt: skip


@given(st.data())
def test_damaged_files(data: st.DataObject) -> None:
    raw = bytearray(elf({b"first": (0x1000, 0x10)}))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    fd = os.memfd_create("damaged")
    try:
        os.write(fd, raw[: data.draw(st.integers(0, len(raw)))])
        found = symbols.Symbols(fd).name(0x1004)
        assert found is None or isinstance(found, str)
    except symbols.Unreadable:
        pass
    finally:
        os.close(fd)


def test_the_helper_as_a_program(program: Path) -> None:
    """Of a process that is gone: the file is still there."""
    inode = program.stat().st_ino
    asked = [
        Process(
            2**22 + 1,
            [(str(program), inode), (str(program), inode + 1), ("/dev/zero", 1)],
            [(0, 0, 0x1004), (0, 1, 0x1004), (0, 2, 0)],
        )
    ]
    said = ask(asked, [(PYTHON, False)])
    assert said == Answer(by="symbols", names=[["first", None, None]])


@pytest.mark.parametrize("text", [b"", b"{}", b"null", b"x" * (helper.QUESTION_MAX + 2)])
def test_the_helper_asked_nonsense(text: bytes) -> None:
    done = subprocess.run(
        [PYTHON, "-I", helper.__file__], input=text, capture_output=True, check=False, timeout=30
    )
    assert done.returncode != 0
    assert done.stdout == b""


def test_what_the_helper_may_not() -> None:
    """Of root's rights only those to look are left, and it can write nothing."""
    program = (
        f"import sys; sys.path.insert(0, {str(Path(helper.__file__).parent)!r})\n"
        "import helper, json, resource\n"
        "helper.give_up_rights()\n"
        "status = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
        "print(json.dumps([int(status['CapEff'], 16), status['NoNewPrivs'].strip(),"
        " resource.getrlimit(resource.RLIMIT_FSIZE)]))\n"
    )
    done = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True)
    effective, no_new, file_size = json.loads(done.stdout)
    assert effective & ~(1 << 19 | 1 << 2) == 0
    assert (no_new, file_size) == ("1", [0, 0])


def test_the_question_fits_what_the_helper_takes() -> None:
    most = [Process(7, [("/" + "x" * 511, 2**40)] * 200, [(2**47, 199, 2**40)] * 4096)]
    assert len(msgspec.json.encode(most)) < helper.QUESTION_MAX
