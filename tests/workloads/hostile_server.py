"""The stand-in server (`stub_server`), as somebody would write it who wants the daemon to fail.

Each option does one thing before it serves. What it does stays in effect.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import mmap
import os
import resource
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.workloads.served import Served, Word
from tests.workloads.stub_server import Counts, Stub

_SET_NAME, _SET_MM = 15, 35
_MM_MAP = 14
_PAGE = 4096
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_kept: list[object] = []


def _map(path: bytes, protection: int) -> int:
    """Address of the whole file, mapped for good."""
    fd = os.open(path, os.O_RDONLY)
    _kept.append(fd)
    size = max(_PAGE, os.fstat(fd).st_size)
    address = _libc.mmap(None, min(size, 1 << 40), protection, mmap.MAP_PRIVATE, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap", path)
    return int(address)


def _read(path: bytes) -> None:
    """Its first bytes, by the calls that tell what kind of file it is; it stays open."""
    fd = os.open(path, os.O_RDONLY)
    _kept.append(fd)
    os.read(fd, 1 << 20)


def _exec(path: bytes) -> None:
    """A child runs that program: files that were read are closed with it."""
    if os.fork() == 0:
        os.execv(path, [path])


def _arguments_in(path: bytes) -> None:
    """What /proc/PID/cmdline shows is a file from now on (struct prctl_mm_map)."""
    address = _map(path, mmap.PROT_READ)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    code, end_code, stack = (int(fields[n]) for n in (23, 24, 25))
    data, end_data, heap, _, _, env, end_env = (int(fields[n]) for n in range(42, 49))
    _libc.sbrk.restype = ctypes.c_void_p
    places = (code, end_code, data, end_data, heap, _libc.sbrk(0), stack,
              address, address + _PAGE, env, end_env, 0)  # fmt: skip
    wanted = struct.pack("<12QIi", *places, 0, -1)
    where = ctypes.create_string_buffer(wanted, len(wanted))
    if _libc.prctl(_SET_MM, _MM_MAP, where, ctypes.c_ulong(len(wanted)), 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _many_mappings(count: int) -> None:
    """Mappings that the kernel cannot join."""
    page = _map(b"/proc/self/exe", mmap.PROT_READ)
    with open("/proc/self/exe", "rb") as file:
        for _ in range(count):
            _libc.mmap(None, _PAGE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE,
                       file.fileno(), 0)  # fmt: skip
    _kept.append(page)


def _many_descriptors(count: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    null = os.open("/dev/null", os.O_RDONLY)
    _kept.extend(os.dup(null) for _ in range(min(count, most - 100)))


def _many_ports(count: int) -> None:
    for _ in range(count):
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        one.listen()
        _kept.append(one)


class HostileServer(Served):
    """The server as a process of its own; `argv` comes after what is needed."""

    def __init__(self, *options: Word, argv: Sequence[Word] = ()) -> None:
        super().__init__(
            [sys.executable, "-m", "tests.workloads.hostile_server", *options, "--", *argv]
        )

    def do(self, what: str, path: Path) -> None:
        """Do one thing more, `read`, `map` or `exec`; does not wait for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {path}\n".encode())
        self.process.stdin.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        """Not waited for: one that waits for a file system ends with that."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--map", type=os.fsencode, action="append", default=[])
    parser.add_argument("--run", type=os.fsencode, action="append", default=[])
    parser.add_argument("--read", type=os.fsencode, action="append", default=[])
    parser.add_argument("--arguments-in", type=os.fsencode)
    parser.add_argument("--name", type=os.fsencode)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--mappings", type=int, default=0)
    parser.add_argument("--descriptors", type=int, default=0)
    parser.add_argument("--ports", type=int, default=0)
    parser.add_argument("rest", nargs="*")
    given = parser.parse_args()
    for path in given.map:
        _map(path, mmap.PROT_READ)
    for path in given.run:
        _map(path, mmap.PROT_READ | mmap.PROT_EXEC)
    for path in given.read:
        _read(path)
    if given.name is not None:
        _libc.prctl(_SET_NAME, ctypes.c_char_p(given.name), 0, 0, 0)
    if given.arguments_in is not None:
        _arguments_in(given.arguments_in)
    _many_mappings(given.mappings)
    _many_descriptors(given.descriptors)
    _many_ports(given.ports)
    asyncio.run(_serve(given.root))


async def _serve(root: Path | None) -> None:
    """Until standard input ends; each line of it is one thing more to do."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def obey() -> None:
        lines = os.read(0, 65536).decode().splitlines()
        for what, _, path in (line.partition(" ") for line in lines):
            work = {"read": _read, "map": lambda one: _map(one, mmap.PROT_READ), "exec": _exec}[
                what
            ]
            loop.run_in_executor(None, work, os.fsencode(path))
        if not lines:
            over.set()

    loop.add_reader(0, obey)
    counts = Counts()
    server = await loop.create_server(lambda: Stub(2, 0.0, counts), "127.0.0.1", 0)
    if root is not None:
        os.chroot(root)
        os.chdir("/")
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await over.wait()


if __name__ == "__main__":
    main()
