"""A small initrd: busybox, the modules that a root disk and 9p need, and our own init.

Debian's own takes most of a guest's start under emulation: it holds all drivers, compressed.
"""

from __future__ import annotations

import lzma
import os
import stat
from pathlib import Path

from tests.vm.cache import BuildError, run

#: What must be there before the root is. Those that are built into a kernel are passed over.
MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "9pnet_virtio", "9p")
INIT = Path(__file__).parent / "guest" / "initrd.sh"


class Archive:
    """A cpio archive in the format that the kernel reads."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._count = 0

    def add(
        self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)
    ) -> None:
        """One file, folder (no data) or device."""
        self._count += 1
        raw = name.encode() + b"\0"
        fields = [self._count, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(raw), 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields)
        self._parts += [_padded(head + raw), _padded(data)]

    def done(self) -> bytes:
        """The whole archive."""
        self.add("TRAILER!!!", 0)
        return b"".join(self._parts)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def make(tree: Path, version: str, busybox: Path) -> bytes:
    """The initrd of the kernel whose modules lie in `tree`/lib/modules/`version`."""
    archive = Archive()
    for folder in ("bin", "dev", "proc", "sys", "new", "modules"):
        archive.add(folder, stat.S_IFDIR | 0o755)
    archive.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    archive.add("bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes())
    archive.add("init", stat.S_IFREG | 0o755, INIT.read_bytes())
    names = []
    for path in _modules(tree, version):
        data = path.read_bytes()
        data = lzma.decompress(data) if path.suffix == ".xz" else data
        names.append(path.name.partition(".")[0])
        archive.add(f"modules/{names[-1]}.ko", stat.S_IFREG | 0o644, data)
    archive.add("modules/order", stat.S_IFREG | 0o644, "".join(f"{n}\n" for n in names).encode())
    return archive.done()


def _modules(tree: Path, version: str) -> list[Path]:
    """Files to load, in the order that they depend on each other."""
    wanted: dict[Path, None] = {}
    for module in MODULES:
        try:
            lines = run(
                "modprobe", "-d", tree, "-S", version, "-C", "/dev/null", "--show-depends", module
            ).splitlines()
        except BuildError:
            lines = []  # not of this version any more, or never a module
        for line in lines:
            verb, _, path = line.partition(" ")
            if verb == "insmod":
                wanted[Path(os.path.normpath(path.split()[0]))] = None
    if not any("virtio" in path.name for path in wanted) and not _built_in(tree, version):
        raise BuildError(f"kernel {version} has no drivers for a virtual disk")
    return list(wanted)


def _built_in(tree: Path, version: str) -> bool:
    text = (tree / "lib/modules" / version / "modules.builtin").read_text()
    return "virtio_blk" in text
