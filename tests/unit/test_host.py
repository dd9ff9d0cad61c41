"""What is read of real processes, files and sockets on this machine."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.host import files, proc, sockets
from tracer.records import Command, File

SERVER = """
import mmap, socket, sys
from pathlib import Path
weights = open(sys.argv[1], "rb")
mapped = mmap.mmap(weights.fileno(), 0, access=mmap.ACCESS_READ)
mapped[0]
listener = socket.create_server(("127.0.0.1", 0))
hop = socket.create_connection(listener.getsockname())
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


class Running:
    """A process that calls itself `name`: a file mapped, a port, a connection to itself."""

    def __init__(self, folder: Path, name: str = "llama-server") -> None:
        self.weights = folder / "beta model.gguf"
        self.weights.write_bytes(b"GGUF" + bytes((3 << 20) - 4))
        argv = [name, "-c", SERVER, str(self.weights), "--models-dir", str(folder)]
        self.process = subprocess.Popen(
            argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def stop(self) -> None:
        self.process.communicate(b"")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    server = Running(tmp_path)
    yield server
    server.stop()


def test_a_process_is_read_whole(running: Running) -> None:
    tgid = running.process.pid
    record = proc.process_record(tgid, 5, child=False)
    assert record is not None
    assert (record.ts_ns, record.tgid, record.ppid) == (5, tgid, os.getpid())
    assert record.command == Command(
        program="llama-server", role="front", options=("ctx-size=" + SERVER[:64],)
    )
    assert abs(record.start_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) < 60e9
    assert tgid in proc.descendants(os.getpid())
    assert (proc.rss_bytes(tgid) or 0) > 1 << 20


def test_a_process_that_is_gone_is_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert proc.process_record(child.pid, 0, child=False) is None
    assert proc.argv(child.pid) == []
    assert proc.descendants(child.pid) == []
    assert proc.netns(child.pid) == 0


def test_mapped_weights_are_found_with_their_share_in_the_cache(running: Running) -> None:
    info = running.weights.stat()
    (found,) = (f for f in files.already_open(running.process.pid, 7) if f.ino == info.st_ino)
    assert found == File(
        ts_ns=7, dev=files.kernel_dev(info.st_dev), ino=info.st_ino, size=3 << 20,
        path=str(running.weights), fmt="gguf", fs=found.fs, device=found.device,
    )  # fmt: skip
    assert found.fs is not None
    share = files.cached_bytes(running.process.pid, found)
    assert share is None or 0 <= share <= 3 << 20


def test_listening_and_established_sockets_are_seen(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        (space,) = sockets.namespaces([running.process.pid, os.getpid()])
        assert space.netns == proc.netns(os.getpid())
        seen = {(s.state, s.local_port, s.remote_port) for s in space.tcp}
        assert (10, running.port, 0) in seen
        assert (1, client.getsockname()[1], running.port) in seen
    owners = proc.socket_owners([running.process.pid])
    (listener,) = (s for s in space.tcp if s.state == 10 and s.local_port == running.port)
    assert owners[listener.inode] == running.process.pid


def test_sockets_of_a_process_that_is_gone_are_none() -> None:
    assert sockets.namespaces([4194305]) == []
    assert sockets.namespaces([]) == []


def test_addresses_of_both_families_and_listening_unix_sockets(tmp_path: Path) -> None:
    """A name with a line end in it hides no socket."""
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection(("127.0.0.1", server.getsockname()[1])) as client,
        server.accept()[0] as accepted,
        socket.socket(socket.AF_UNIX) as odd,
        socket.socket(socket.AF_UNIX) as quiet,
    ):
        odd.bind(str(tmp_path / "a\n0: b"))
        odd.listen()
        quiet.bind(str(tmp_path / "c"))
        inodes = [os.fstat(each.fileno()).st_ino for each in (client, accepted, odd, quiet)]
        (space,) = sockets.namespaces([os.getpid()])
        port, other = server.getsockname()[1], client.getsockname()[1]
    by_inode = {sock.inode: sock for sock in space.tcp}
    assert by_inode[inodes[0]] == sockets.TcpSocket(
        inodes[0], 1, "127.0.0.1", other, "127.0.0.1", port
    )
    assert by_inode[inodes[1]] == sockets.TcpSocket(
        inodes[1], 1, "::ffff:127.0.0.1", port, "::ffff:127.0.0.1", other
    )
    assert inodes[2] in space.unix
    assert inodes[3] not in space.unix


def test_weights_are_told_by_content() -> None:
    assert files.format_of_magic(b"GGUF\x03\0\0\0") == "gguf"
    assert files.format_of_magic((420).to_bytes(8, "little") + b'{"a":') == "safetensors"
    assert files.format_of_magic(b"\x7fELF\x02\x01\x01\0\0\0\0\0") is None
    assert files.format_of_magic(b"") is None


def test_identity_of_an_opened_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(bytes(2 << 20))
    with path.open("rb") as file:
        info = os.fstat(file.fileno())
        dev = files.kernel_dev(info.st_dev)
        got = files.identify(
            ts_ns=1, tgid=os.getpid(), dev=dev, ino=info.st_ino, size=2 << 20,
            fd=file.fileno(), name="other",
        )  # fmt: skip
        assert (got.path, got.fmt) == (str(path), "safetensors")
        moved = files.identify(
            ts_ns=1, tgid=os.getpid(), dev=dev, ino=info.st_ino + 1, size=2 << 20,
            fd=file.fileno(), name="rel.gguf",
        )  # fmt: skip
        assert moved.path == str(Path.cwd() / "rel.gguf")


@given(st.binary(max_size=32))
def test_any_first_bytes_are_survived(first: bytes) -> None:
    assert files.format_of_magic(first) in (None, "gguf", "safetensors", "ggml")


ODD_NAMES = [
    b"caf\xe9.gguf",
    b"a\x0bb c:d 5 6.gguf",
    "x\u2028 0 1 2 3 4.gguf".encode(),
    b"\x85 1.gguf",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_of_any_bytes_are_text_that_can_be_written(tmp_path: Path, name: bytes) -> None:
    """Neither the bytes of a name nor the locale may end the daemon or its recordings."""
    path = os.path.join(os.fsencode(tmp_path), name)
    with open(path, "wb+") as file:
        file.write(b"GGUF" + bytes(2 << 20))
        file.flush()
        info = os.fstat(file.fileno())
        dev = files.kernel_dev(info.st_dev)
        seen = files.identify(
            ts_ns=1, tgid=os.getpid(), dev=dev, ino=info.st_ino, size=info.st_size,
            fd=file.fileno(), name="",
        )  # fmt: skip
        assert seen.path == path.decode("utf-8", "replace")
        assert msgspec.json.decode(msgspec.json.encode(seen), type=File) == seen
        with mmap.mmap(file.fileno(), 0):
            mapped = {f.ino for f in files.already_open(os.getpid(), 1)}
            assert (info.st_ino in mapped) == ("\ufffd" not in seen.path)
        if "\ufffd" in seen.path:
            assert files.cached_bytes(os.getpid(), seen) is None


def test_the_locale_of_the_daemon_does_not_matter(tmp_path: Path) -> None:
    """In a Latin-1 locale Python cannot name most files by text."""
    code = (
        "import sys; from tracer.host import files; from tracer.records import File;"
        "print(sys.getfilesystemencoding(), files.cached_bytes(1, "
        "File(ts_ns=1, dev=1, ino=2, size=3, path='/\\ufffd', fs='ext4')))"
    )
    env = os.environ | {"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout.split()[1:], ran.stderr) == (0, ["None"], "")


def test_an_executable_with_a_name_of_any_bytes_is_readable(tmp_path: Path) -> None:
    program = os.path.join(os.fsencode(tmp_path), b"llama\xff-server")
    shutil.copy(b"/bin/sleep", program)
    child = subprocess.Popen([program, "60"])
    try:
        record = proc.process_record(child.pid, 1, child=False)
        assert record is not None
        assert record.exe == program.decode("utf-8", "replace")
        assert msgspec.json.encode(record)
    finally:
        child.kill()
        child.wait()


@pytest.mark.kernel
def test_sockets_of_another_network_namespace_are_seen() -> None:
    code = "import socket, sys; s = socket.create_server(('0.0.0.0', 0)); "
    code += "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    argv = ["unshare", "--net", sys.executable, "-c", code]
    inside = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert inside.stdout is not None
        port = int(inside.stdout.readline())
        spaces = sockets.namespaces([os.getpid(), inside.pid])
        (other,) = (s for s in spaces if s.netns != proc.netns(os.getpid()))
        assert [s.local_port for s in other.tcp] == [port]
    finally:
        inside.communicate(b"")


def heaps(tmp_path: Path, before: str) -> int:
    """How many heaps four threads make that allocate at once."""
    out = tmp_path / "heaps.xml"
    code = f"""
import ctypes, threading
from tracer.host.own import one_arena
{before}
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
gate = threading.Barrier(4)
def work():
    gate.wait()
    libc.malloc(1000)
    gate.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
file = ctypes.c_void_p(libc.fopen({str(out).encode()!r}, b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    return out.read_text().count("<heap ")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc")
def test_threads_share_one_heap(tmp_path: Path) -> None:
    assert heaps(tmp_path, "") > 1
    assert heaps(tmp_path, "one_arena()") == 1


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_what_a_burst_left_is_given_back() -> None:
    """One block above keeps the whole heap, until it is asked for."""
    code = """
import ctypes
from tracer.host.own import give_back, pss_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = [libc.malloc(4000) for _ in range(16000)]
for block in blocks: ctypes.memset(block, 1, 4000)
for block in blocks[:-1]: libc.free(ctypes.c_void_p(block))
before = pss_bytes()
give_back()
print(before - pss_bytes())
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(ran.stdout) > 40 << 20
