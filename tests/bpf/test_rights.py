"""The unit's six capabilities: with them all is seen as by root, and each is needed."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracer.errors import KernelError
from tracer.host import files, proc, sockets
from tracer.kernel.loader import Kernel
from tracer.kernel.modtypes import without_module_types
from tracer.records import File

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]
UNIT = (ROOT / "systemd" / "ttftd.service").read_text()
NUMBERS = {
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_FOWNER": 3,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_PTRACE": 19,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
NOBODY = 65534
_KEEP, _VERSION = 8, 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)
#: What the daemon sees of others, and which of it each capability gives.
GIVES = {
    "CAP_BPF": {"programs"},
    "CAP_PERFMON": {"programs"},
    "CAP_NET_ADMIN": {"programs"},
    "CAP_SYS_PTRACE": {"executable", "sockets", "weights", "cached"},
    "CAP_DAC_READ_SEARCH": {"sockets", "weights", "cached"},
    "CAP_FOWNER": {"cached"},
}


def asked_for(key: str) -> list[str]:
    (line,) = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    return sorted(line.split())


class Server:
    """A process of root's with a listening socket and weights mapped from a closed folder."""

    def __init__(self, folder: Path) -> None:
        closed = folder / "closed"
        closed.mkdir(mode=0o700)
        self.weights = closed / "model.gguf"
        self.weights.write_bytes(b"GGUF" + bytes((2 << 20) - 4))
        code = (
            "import mmap, socket, sys\n"
            "file = open(sys.argv[1], 'rb')\n"
            "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
            "mapped[0]\n"
            "listener = socket.create_server(('127.0.0.1', 0))\n"
            "print(listener.getsockname()[1], flush=True)\n"
            "sys.stdin.read()\n"
        )
        argv = [sys.executable, "-c", code, str(self.weights)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def seen(self, object_file: Path) -> dict[str, bool]:
        """What the calling process learns of it."""
        tgid = self.process.pid
        found = [file for file in files.already_open(tgid, 1) if file.fmt == "gguf"]
        owners = proc.socket_owners([tgid])
        listening = {
            sock.local_port
            for space in sockets.namespaces([tgid])
            for sock in space.tcp
            if sock.inode in owners
        }
        return {
            "executable": proc.exe(tgid) is not None,
            "sockets": self.port in listening,
            "weights": bool(found),
            "cached": any(_cached(tgid, file) for file in found),
            "programs": _loads(object_file),
        }


def _cached(tgid: int, file: File) -> bool:
    return files.cached_bytes(tgid, file) is not None


def _loads(path: Path) -> bool:
    try:
        Kernel.open(path=path).close()
    except KernelError:
        return False
    return True


def become(names: list[str]) -> None:
    """A user of no account with just these capabilities, as the unit's user has them."""
    mask = sum(1 << NUMBERS[name] for name in names)
    os.setgroups([])
    _libc.prctl(_KEEP, 1, 0, 0, 0)
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = (ctypes.c_uint32 * 6)(low, low, low, high, high, high)
    if _libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    without_module_types()


def seen_with(server: Server, object_file: Path, names: list[str]) -> dict[str, bool]:
    """What a child with these capabilities sees."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(names)
            os.write(write, json.dumps(server.seen(object_file)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    found: dict[str, bool] = json.loads(text)
    return found


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where everybody may look, unlike pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="ttft-rights-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def object_file(folder: Path, built: Path) -> Path:
    return Path(shutil.copy(built, folder))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    started = Server(folder)
    yield started
    started.process.communicate(b"")


def test_the_unit_gives_and_keeps_the_same() -> None:
    assert asked_for("AmbientCapabilities") == asked_for("CapabilityBoundingSet")
    assert asked_for("AmbientCapabilities") == sorted(GIVES)


def test_with_all_of_them_it_sees_as_much_as_root(server: Server, object_file: Path) -> None:
    assert seen_with(server, object_file, list(GIVES)) == server.seen(object_file)


@pytest.mark.parametrize("missing", GIVES)
def test_each_is_needed(server: Server, object_file: Path, missing: str) -> None:
    whole = server.seen(object_file)
    found = seen_with(server, object_file, [name for name in GIVES if name != missing])
    lost = {what for what, there in whole.items() if there and not found[what]}
    # A kernel before 6.5 tells nobody what is cached.
    assert lost == {what for what in GIVES[missing] if whole[what]}
    assert lost or missing == "CAP_FOWNER"


def test_listening_needs_no_right(folder: Path) -> None:
    """The socket belongs to the unit's own user and group: nothing is to be given away."""
    place = folder / "run"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            become([])
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(place / "ttft.sock"))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
