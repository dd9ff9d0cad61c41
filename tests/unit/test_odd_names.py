"""Names of any bytes, wherever a host has names: each record made of them can be written.

Text with lone surrogates cannot: it would end whoever writes records, for everybody.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_discovery import Noted, about
from tracer.devices import nodes
from tracer.devices.table import table
from tracer.host import proc
from tracer.host.discovery import Discovery
from tracer.host.place import place_in, place_of
from tracer.host.recognise import Rule
from tracer.kernel import cgroup, features
from tracer.kernel.grouptree import Group
from tracer.kernel.wire import RawExec, RawFile
from tracer.libs import mappings
from tracer.libs.caches import Folders, folders, folders_of
from tracer.records import AnyRecord, Cached, Exec, File, Process
from tracer.stacks.mapped import parse

CODE = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None)
libc.prctl(15, os.fsencode(sys.argv[1]))
weights = os.open(b"weights", os.O_RDWR)
libc.mmap.restype = ctypes.c_void_p
libc.mmap(None, 4096, 5, 2, weights, ctypes.c_long(0))
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""
ODD = [b"caf\xe9", b"\xed\xa0\x80", b"\xf4\x90\x80\x80 \x80", b"\xff\x1b[1m\n\r\x85"]


class Table:
    """Stands for one of the kernel's."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.keys.append(key)


def written(record: object) -> bytes:
    """Raises where it cannot be."""
    json.loads(msgspec.json.encode(record))
    return msgspec.msgpack.encode(record)


@pytest.fixture(params=ODD)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, int, Path]]:
    """A server that has such names wherever it can: its process, port and folder."""
    name: bytes = request.param
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(folder)
    with open(os.path.join(folder, b"weights"), "wb") as file:
        file.write(b"GGUF" + bytes(2 << 20))
    program = os.path.join(folder, b"llama-server" + name)
    shutil.copy(os.fsencode(os.path.realpath(sys.executable)), program)
    home = {
        b"HOME": folder,
        b"CUDA_CACHE_PATH": folder,
        b"PYTHONHOME": os.fsencode(sys.base_prefix),
    }
    child = subprocess.Popen(
        [b"llama-server", "-c", CODE, name, b"--models-dir", folder, b"--alias", name],
        executable=program, cwd=folder, env=os.environb | home,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    yield child.pid, int(child.stdout.readline()), Path(os.fsdecode(folder))
    child.communicate(b"")


def test_all_that_is_told_of_a_process_can_be_written(odd: tuple[int, int, Path]) -> None:
    tgid, port, folder = odd
    discovery = Discovery(Noted(), [Rule(name="mine", port=port)])
    records = about(discovery.start(1), tgid)
    info = (folder / "weights").stat()
    opened = RawFile(
        ts_ns=2, tgid=tgid, dev=info.st_dev, ino=info.st_ino, size=2 << 20, fd=-1, name="weights"
    )
    records += discovery.translate(opened)
    records += discovery.translate(RawExec(ts_ns=3, tgid=tgid, comm="x", filename="/x"))
    records += [*discovery.files()]
    assert {type(record) for record in records} >= {Process, File, Exec}
    for record in records:
        written(record)
    for told in (proc.argv(tgid), proc.link(tgid, "cwd"), place_of(tgid)):
        written(told)
    for mapped in mappings.executable(tgid) or ():
        written(mapped.path)
    for code in parse(Path(f"/proc/{tgid}/maps").read_bytes()):
        written(code.module)


def test_its_compile_caches_can_be_written_and_are_found(odd: tuple[int, int, Path]) -> None:
    """The kernel side compares bytes, as they are."""
    tgid, _, folder = odd
    keys = Table()
    known = Folders(keys)
    known.add(folders_of(tgid))
    assert any(os.fsencode(folder)[:100] in key for key in keys.keys)
    names = {known.name(number) for number in range(len(keys.keys) + 1)}
    assert os.fsencode(folder).decode("utf-8", "replace") + "/.nv/ComputeCache" in names
    for name in names:
        written(Cached(ts_ns=1, tgid=tgid, tid=tgid, folder=name, stem=1, write=False))


@given(name=st.binary(min_size=1, max_size=300))
def test_any_bytes_at_all(name: bytes) -> None:
    known = Folders(Table())
    known.add(folders({b"HOME": b"/" + name, b"CUDA_CACHE_PATH": name}, name))
    group = Group(1, os.fsdecode(b"/" + name))
    lines = f"0::{group.path}\n0::{group.shown}/docker-{'3f' * 32}.scope\n"
    record: AnyRecord = Cached(ts_ns=1, tgid=1, tid=1, folder=known.name(0), stem=1, write=True)
    for told in (record, group.shown, place_in(lines, lambda _: None), known.name(1)):
        written(told)


def test_where_the_groups_are_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "mounted", lambda: os.fsdecode(b"/mnt/caf\xe9"))
    told = features._cgroup().value
    assert written(told) and told == "/mnt/caf\ufffd"


@pytest.mark.kernel
@pytest.mark.parametrize("name", ODD)
def test_devices_that_the_configuration_names(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "dev").mkdir()
    node = os.path.join(os.fsencode(tmp_path), b"dev", b"odd" + name)
    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(240, 7))
    names = [node.name for node in nodes.find(table(), ["/dev/odd*"], tmp_path).nodes.values()]
    assert written(names) and names == [(b"odd" + name).decode("utf-8", "replace")]
