"""The large files that watched processes have taken up."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from tracer.host import files
from tracer.kernel.wire import RawFile, RawMagic
from tracer.records import AnyRecord, File

_LIMIT = 4096


class Opened:
    """By device and inode, the latest of so many. `track`: the kernel side is to tell of it."""

    def __init__(self, track: Callable[[int, int], None]) -> None:
        self._track = track
        self._files: dict[tuple[int, int], File] = {}

    def all(self) -> Iterable[File]:
        return self._files.values()

    def held(self, tgid: int, now_ns: int) -> list[AnyRecord]:
        """What a process has open or mapped that was not known yet."""
        named = {key for key, file in self._files.items() if file.path is not None}
        fresh = [f for f in files.already_open(tgid, now_ns) if (f.dev, f.ino) not in named]
        for file in fresh:
            self._remember(file)
            self._track(file.dev, file.ino)
        return list(fresh)

    def file(self, raw: RawFile) -> list[AnyRecord]:
        file = files.identify(
            ts_ns=raw.ts_ns, tgid=raw.tgid, dev=raw.dev, ino=raw.ino, size=raw.size,
            fd=raw.fd, name=raw.name,
        )  # fmt: skip
        known = self._files.get((raw.dev, raw.ino))
        if file.path is None and known is not None:  # its descriptor is closed by now
            file = msgspec.structs.replace(known, ts_ns=raw.ts_ns, size=raw.size)
        self._remember(file)
        return [file]

    def magic(self, raw: RawMagic) -> list[AnyRecord]:
        """Content beats the name: a `.gguf` that is none is no weights file."""
        file = self._files.get((raw.dev, raw.ino))
        if file is None:
            return []
        fmt = files.format_of_magic(raw.data)
        if fmt == file.fmt or (fmt is None and file.fmt == "torch"):
            return []
        changed = msgspec.structs.replace(file, ts_ns=raw.ts_ns, fmt=fmt)
        self._remember(changed)
        return [changed]

    def _remember(self, file: File) -> None:
        self._files.pop((file.dev, file.ino), None)
        self._files[file.dev, file.ino] = file
        while len(self._files) > _LIMIT:
            del self._files[next(iter(self._files))]
