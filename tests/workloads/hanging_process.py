"""A process that hangs in the kernel, and lets whoever looks at it wait for as long as it likes.

`with HangingProcess("exec", fs) as process`: in the middle of an exec, where a file of `fs` is
closed. `"memory"`: its memory map is locked by a page fault on a file of `fs`, and another of its
threads waits to change it. Both in the file system of the files FILES, which hangs then.

Nothing is to be started meanwhile that puts probes into files which such a process maps too: the
kernel waits for its memory map then, and lets nobody on the host fork.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tests.workloads.hanging_fs import STUMBLES, HangingFs
from tests.workloads.ttftd import ROOT
from tests.workloads.waiting import wait_for

Way = Literal["exec", "memory"]
FILES = {"closed": b"x", STUMBLES: bytes(mmap.PAGESIZE)}
#: What of it keeps its reader waiting.
_TOLD_BY = {"exec": "io", "memory": "cmdline"}
#: It does not hang for longer, however a test goes.
_AT_MOST_S = 30.0


class HangingProcess:
    """`pid`. It ends when it is killed and the file system is gone."""

    def __init__(self, way: Way, fs: HangingFs) -> None:
        self._way = way
        self._fs = fs

    def __enter__(self) -> Self:
        path = self._fs.folder / ("closed" if self._way == "exec" else STUMBLES)
        argv = [sys.executable, "-m", "tests.workloads.hanging_process", self._way, str(path)]
        self._process = subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self._process.pid
        self._end = threading.Timer(_AT_MOST_S, self._process.kill)
        self._end.daemon = True
        self._end.start()
        assert self._process.stdin is not None and self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        if self._way == "exec":
            self._fs.hang()
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()
        wait_for(self._hangs, 20, "it to hang")
        return self

    def _hangs(self) -> bool:
        def read() -> None:
            with suppress(OSError):
                Path(f"/proc/{self.pid}/{_TOLD_BY[self._way]}").read_bytes()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(0.2)
        return reader.is_alive()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._end.cancel()
        self._process.kill()  # not waited for: it waits for the file system
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def main() -> None:
    way, path = sys.argv[1:]
    fd = os.open(path, os.O_RDONLY)  # an exec closes it
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    at = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    if way == "exec":
        os.execv("/bin/sleep", ["sleep", "1000"])
    touch = (ctypes.c_void_p(at), b"x", 1)
    threading.Thread(target=libc.memcmp, args=touch, daemon=True).start()
    while True:  # until the map is locked
        libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, private, -1, 0)


if __name__ == "__main__":
    main()
