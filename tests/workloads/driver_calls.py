"""A process that calls into drivers as it is told, and says how often and for how long.

Run as a program it takes a line of JSON for each thing to do: `[NAME, ARGUMENTS...]`; it answers
with a line of JSON: what came of it.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_NOWHERE = ctypes.c_void_p(-1).value
_libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)


class Drivers:
    """The other process. `pid`; everything else is asked of it."""

    def __init__(self, *prefix: str) -> None:
        command = [*prefix, sys.executable, "-m", "tests.workloads.driver_calls"]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.pid = int(self.ask("pid"))

    def ask(self, *what: object) -> Any:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(what) + "\n")
        self._child.stdin.flush()
        return json.loads(self._child.stdout.readline())

    def end(self) -> None:
        """All is closed by the end of the process, not by calls."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(10)
        self._child.stdout.close()

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self.end()


def _open(path: str, flags: int = os.O_RDWR) -> list[int]:
    began = time.monotonic_ns()
    fd = os.open(path, flags)
    return [fd, time.monotonic_ns() - began]


def _ioctl(fd: int, number: int, count: int, argument: str = "", pointed: str = "") -> list[int]:
    """So many of them; results and the time of all. `argument`: bytes in hex; where these are `p`
    eight times, the address of `pointed` stands."""
    there = ctypes.create_string_buffer(bytes.fromhex(pointed), max(1, len(pointed) // 2))
    data = argument.replace("pp" * 8, ctypes.addressof(there).to_bytes(8, "little").hex())
    buffer = ctypes.create_string_buffer(bytes.fromhex(data), max(1, len(data) // 2))
    good, call, address = 0, _libc.ioctl, ctypes.addressof(buffer)
    began = time.monotonic_ns()
    for _ in range(count):
        good += call(fd, number, address) >= 0
    return [good, time.monotonic_ns() - began]


def _threads(fd: int, number: int, count: int, threads: int) -> list[int]:
    made = [threading.Thread(target=_ioctl, args=(fd, number, count)) for _ in range(threads)]
    for one in made:
        one.start()
    for one in made:
        one.join()
    return [0, 0]


def _poll(fds: list[int], timeout_ms: int, count: int = 1) -> list[int]:
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLPRI)
    began = time.monotonic_ns()
    for _ in range(count):
        poller.poll(timeout_ms)
    return [0, time.monotonic_ns() - began]


def _mmap(fd: int, size: int) -> list[int]:
    began = time.monotonic_ns()
    at = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, fd, 0)
    return [int(at != _NOWHERE), time.monotonic_ns() - began]


def _close(fd: int) -> list[int]:
    began = time.monotonic_ns()
    os.close(fd)
    return [0, time.monotonic_ns() - began]


def _node(path: str, major: int, minor: int) -> list[int]:
    os.mknod(path, 0o20600, os.makedev(major, minor))
    return [0, 0]


def _for_ever(fd: int, number: int) -> None:
    """Never answers again."""
    print(json.dumps(0), flush=True)
    while True:
        _libc.ioctl(fd, number, None)


_DO: dict[str, Callable[..., Any]] = {
    "pid": os.getpid, "open": _open, "ioctl": _ioctl, "threads": _threads, "poll": _poll,
    "mmap": _mmap, "close": _close, "node": _node, "for_ever": _for_ever,
}  # fmt: skip


def main() -> None:
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(_DO[name](*arguments)), flush=True)


if __name__ == "__main__":
    main()
