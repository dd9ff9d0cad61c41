"""A file system served by a process that can stop answering (FUSE, by hand).

`with HangingFs(folder, {"a.gguf": data}) as fs: ... fs.hang()`; from then on whoever asks it for
anything waits, until the end of the block. The first two reads of a file named STUMBLES fail, and
with the third it hangs by itself: a page fault that failed (ahead, then by itself) is tried once
more, and then the kernel keeps the memory map locked. Spoken by hand, so no library is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.workloads.ttftd import ROOT

_HEADER = struct.Struct("<IIQQIIII")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS = 1, 2, 3, 14, 15, 17
_RELEASE, _FLUSH, _INIT, _OPENDIR, _RELEASEDIR, _ACCESS, _INTERRUPT = 18, 25, 26, 27, 29, 34, 36
_BATCH_FORGET = 42
_EMPTY = (_RELEASE, _FLUSH, _RELEASEDIR, _ACCESS)
_SILENT = (_FORGET, _BATCH_FORGET, _INTERRUPT)
_NODEV, _DETACH = 4, 2
_NOT_FOUND, _BROKEN, _NOT_HERE = -2, -5, -38
_STOP = 19
STUMBLES = "stumbles"
#: How long the kernel may go by what it was told: not at all, so that every look asks again.
_VALID_S = 0
_libc = ctypes.CDLL(None, use_errno=True)


def _attributes(number: int, size: int | None) -> bytes:
    mode = 0o40755 if size is None else 0o100755
    return struct.pack("<6Q10I", number, size or 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class _Server:
    def __init__(self, fd: int, files: list[tuple[str, bytes]]) -> None:
        self._fd = fd
        self._files = files
        self._stumbled = 0

    def serve(self) -> None:
        """Until the file system is gone."""
        while True:
            try:
                data = os.read(self._fd, 1 << 18)
            except OSError:
                return
            _, opcode, unique, node, *_ = _HEADER.unpack_from(data)
            if opcode in _SILENT:
                continue
            answer = self._answer(opcode, node, data[_HEADER.size :])
            error, body = (answer, b"") if isinstance(answer, int) else (0, answer)
            os.write(self._fd, struct.pack("<IiQ", 16 + len(body), error, unique) + body)

    def _size(self, node: int) -> int | None:
        return None if node == 1 else len(self._files[node - 2][1])

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes | int:
        if opcode == _INIT:
            return struct.pack("<IIIIHHII", 7, 31, 1 << 17, 0, 16, 12, 1 << 17, 1) + bytes(36)
        if opcode == _LOOKUP:
            name = body.rstrip(b"\0").decode()
            names = [one for one, _ in self._files]
            if name not in names:
                return _NOT_FOUND
            number = names.index(name) + 2
            head = struct.pack("<QQQQII", number, 0, _VALID_S, _VALID_S, 0, 0)
            return head + _attributes(number, self._size(number))
        if opcode == _GETATTR:
            return struct.pack("<QII", _VALID_S, 0, 0) + _attributes(node, self._size(node))
        if opcode in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if opcode == _READ:
            offset, size = struct.unpack_from("<QI", body, 8)
            if self._files[node - 2][0] == STUMBLES:
                self._stumbled += 1
                if self._stumbled > 2:
                    os.kill(os.getpid(), _STOP)
                return _BROKEN
            return self._files[node - 2][1][offset : offset + size]
        if opcode == _STATFS:
            return bytes(80)
        return b"" if opcode in _EMPTY else _NOT_HERE


class HangingFs:
    """The file system as a process of its own."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.folder = folder
        self._files = files
        self._process: subprocess.Popen[bytes] | None = None

    def hang(self) -> None:
        """From now on nothing is answered."""
        assert self._process is not None
        self._process.send_signal(_STOP)

    def __enter__(self) -> Self:
        self.folder.mkdir()
        kept = self.folder.with_name(self.folder.name + "-files")
        kept.mkdir()
        for name, data in self._files.items():
            (kept / name).write_bytes(data)
        command: list[str | Path] = [
            sys.executable, "-m", "tests.workloads.hanging_fs", self.folder, kept,
        ]  # fmt: skip
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"mounted\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        assert self._process is not None
        self._process.kill()  # who waits is told that the server is gone
        self._process.communicate()
        _libc.umount2(os.fsencode(self.folder), _DETACH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=Path)
    given = parser.parse_args()
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % fd
    if _libc.mount(b"hanging", os.fsencode(given.folder), b"fuse", _NODEV, options) < 0:
        raise OSError(ctypes.get_errno(), "mount")
    print("mounted", flush=True)
    files = [(path.name, path.read_bytes()) for path in sorted(given.files.iterdir())]
    _Server(fd, files).serve()


if __name__ == "__main__":
    main()
