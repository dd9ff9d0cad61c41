"""A library that is had by its path, as the service's user has it, is the one that is mapped.

Whatever its process mounts; and in whatever a container lies.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.bpf.libraries import Scene, scene
from tests.workloads.hanging_fs import HangingFs
from tests.workloads.library_calls import Caller, make_caller, make_library
from tracer.host import files, mounts, reach
from tracer.kernel.loader import Kernel
from tracer.libs import mappings
from tracer.libs.calls import Catalogue, shipped

pytestmark = pytest.mark.kernel

NAME = "libcuda.so.1"
TRUE, FALSE = b"what is mapped", b"what is not"
CODE = """
import mmap, subprocess, sys
kept = []
for line in sys.stdin:
    what, _, rest = line.rstrip("\\n").partition(" ")
    if what == "map":
        with open(rest, "rb") as file:
            kept.append(mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | 4))
    else:
        subprocess.run(["sh", "-ec", rest], check=True)
    print("done", flush=True)
"""


class Contained:
    """A process in mounts of its own."""

    def __enter__(self) -> Self:
        argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", CODE]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{what}\n".encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"done\n"

    def mapped(self) -> mappings.Mapped:
        (found,) = (m for m in mappings.executable(self.process.pid) or [] if m.name == NAME)
        return found

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def contained() -> Iterator[Contained]:
    with Contained() as process:
        yield process


@pytest.fixture
def by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CAP_CHECKPOINT_RESTORE."""
    real = os.open

    def refuse(path: str | bytes, flags: int, **more: Any) -> int:
        if b"/map_files/" in os.fsencode(path):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return real(path, flags, **more)

    monkeypatch.setattr(os, "open", refuse)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folders `true` and `false` with a file each, and empty ones."""
    for name, content in (("true", TRUE), ("false", FALSE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / NAME).write_bytes(content.ljust(4096, b"\0"))
    for name in ("at", "disk", "other"):
        (tmp_path / name).mkdir()
    with open(tmp_path / "image", "wb") as image:
        image.truncate(4 << 20)
    subprocess.run(["mkfs.ext4", "-q", tmp_path / "image"], check=True)
    return tmp_path


OVERLAY = "mount -t overlay o at -o lowerdir=disk/low,upperdir={up}/up,workdir={up}/work"
LAYERS = (
    "mount -o loop image other; mkdir disk/low disk/up disk/work other/up other/work;"
    f" touch disk/low/filler; cp true/{NAME} disk/low; "
)
#: How a container may have its files; each has the true one in `at`.
CONTAINERS = {
    "the host's": f"cp true/{NAME} at",
    "a mount of the host's": "mount --bind true at",
    "a file of the host's": f"touch at/{NAME}; mount --bind true/{NAME} at/{NAME}",
    "a disk of its own": f"mount -t tmpfs t at; cp true/{NAME} at",
    "a part of a disk": f"mount -t tmpfs t disk; mkdir disk/x; cp true/{NAME} disk/x; "
    "mount --bind disk/x at; umount -l disk",
    "a layer": LAYERS + OVERLAY.format(up="disk"),
    "a layer of another disk": LAYERS + OVERLAY.format(up="other"),
    "a layer, changed": LAYERS + OVERLAY.format(up="disk") + f"; chmod 700 at/{NAME}",
    "a layer of another disk, changed": LAYERS
    + OVERLAY.format(up="other")
    + f"; chmod 700 at/{NAME}",
    "layers with numbers of their own": LAYERS + OVERLAY.format(up="other") + ",xino=on",
    "a new layer": LAYERS + OVERLAY.format(up="other") + f"; rm at/{NAME}; cp true/{NAME} at",
    "layers that are nowhere else": LAYERS
    + OVERLAY.format(up="other")
    + f"; chmod 700 at/{NAME}; umount -l other",
}


def content(fd: int) -> bytes:
    try:
        return os.read(fd, 4096).rstrip(b"\0")
    finally:
        os.close(fd)


@pytest.mark.parametrize("way", ["by_path", "by the mapping"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_in_every_container_it_is_had(
    request: pytest.FixtureRequest, folder: Path, contained: Contained, container: str, way: str
) -> None:
    if way == "by_path":
        request.getfixturevalue(way)
    contained.tell(f"sh cd {folder}; {CONTAINERS[container]}")
    contained.tell(f"map {folder}/at/{NAME}")
    assert content(mappings.open_mapped(contained.mapped())) == TRUE


def test_layers_over_what_a_process_serves_are_refused(
    tmp_path_factory: pytest.TempPathFactory, folder: Path
) -> None:
    """By the mapping itself: an overlay tells nothing of what is below it."""
    served = tmp_path_factory.mktemp("served") / "fs"
    with HangingFs(served, {NAME: FALSE.ljust(4096, b"\0")}), Contained() as contained:
        contained.tell(f"sh cd {folder}; mount -t overlay o at -o lowerdir={served}:other")
        contained.tell(f"map {folder}/at/{NAME}")
        with pytest.raises(OSError) as caught:
            mappings.open_mapped(contained.mapped())
        assert caught.value.errno == errno.EREMOTE


def test_layers_that_the_host_itself_has_mounted_may_be_of_anything(folder: Path) -> None:
    """A live system: memory has no extents either."""
    layers = ["mount", "-t", "overlay", "o", "at", "-o", "lowerdir=disk:other"]
    for command in (
        ["mount", "-t", "tmpfs", "t", "disk"], ["cp", f"true/{NAME}", "disk"], layers,
    ):  # fmt: skip
        subprocess.run(command, cwd=folder, check=True)
    try:
        with Contained() as contained:
            contained.tell(f"map {folder}/at/{NAME}")
            assert content(mappings.open_mapped(contained.mapped())) == TRUE
    finally:
        subprocess.run(["umount", "-l", "at", "disk"], cwd=folder, check=True)


#: What a process may put at the path of what it maps, with the number that this has.
DECOYS = {
    "another disk": f"mount -t tmpfs t at; cp false/{NAME} at",
    "a layer": f"mount -t tmpfs t disk; mkdir other/up other/work; cp false/{NAME} disk; "
    "mount -t overlay o at -o lowerdir=disk:other/up",
    "a file alone": f"mount -t tmpfs t disk; cp false/{NAME} disk; "
    f"mount --bind disk/{NAME} at/{NAME}",
}


@pytest.mark.usefixtures("by_path")
@pytest.mark.parametrize("decoy", DECOYS)
def test_another_file_of_that_number_is_refused(
    folder: Path, contained: Contained, decoy: str
) -> None:
    contained.tell(f"sh cd {folder}; mount -t tmpfs t at; cp true/{NAME} at")
    contained.tell(f"map {folder}/at/{NAME}")
    mapped = contained.mapped()
    assert content(mappings.open_mapped(mapped)) == TRUE
    contained.tell(f"sh cd {folder}; {DECOYS[decoy]}")
    assert contained.mapped() == mapped
    named = reach.place(mapped.tgid, mapped.path)
    assert os.fstat(named).st_ino == mapped.inode[1], "else this shows nothing"
    os.close(named)
    with pytest.raises(FileNotFoundError):
        mappings.open_mapped(mapped)


@pytest.mark.usefixtures("by_path")
@pytest.mark.parametrize("hangs", [False, True])
def test_one_that_a_process_serves_is_not_even_opened(
    tmp_path_factory: pytest.TempPathFactory, folder: Path, hangs: bool
) -> None:
    served = tmp_path_factory.mktemp("served") / "fs"
    with HangingFs(served, {NAME: FALSE.ljust(4096, b"\0")}) as fs, Contained() as contained:
        contained.tell(f"sh cd {folder}; mount -t tmpfs t at; cp true/{NAME} at")
        contained.tell(f"map {folder}/at/{NAME}")
        mapped = contained.mapped()
        contained.tell(f"sh mount --bind {served} {folder}/at")
        if hangs:
            fs.hang()
        else:
            named = reach.place(mapped.tgid, mapped.path)
            assert os.fstat(named).st_ino == mapped.inode[1], "else this shows nothing"
            assert (
                files.mount_of(mounts.read(mapped.tgid), named) or mounts.Mount("", "")
            ).fs == "fuse"
            os.close(named)
        with pytest.raises(OSError) as caught:
            mappings.open_mapped(mapped)
        assert caught.value.errno == (errno.ETIMEDOUT if hangs else errno.EREMOTE)


@pytest.mark.usefixtures("by_path")
def test_what_one_process_does_to_its_path_keeps_no_other_from_being_seen(
    built: Path, tmp_path: Path
) -> None:
    """A library that the first of its users hides is probed for the second, and for both."""
    catalogue = Catalogue(shipped())
    (library,) = (x for x in catalogue.libraries if x.name == "cuda")
    true = make_library(tmp_path / "true", NAME, library.symbols)
    program = make_caller(tmp_path)
    script = f"mkdir {tmp_path}/mine; mount --bind {tmp_path}/true {tmp_path}/mine; exec {program}"
    with Kernel.open(off=("sockets", "files", "faults"), path=built) as kernel:
        stage: Scene = scene(kernel, catalogue)
        try:
            with Caller("unshare", "--mount", "sh", "-c", script) as first:
                first.tell(f"open {tmp_path}/mine/{NAME}")
                hide = ["nsenter", "-t", str(first.pid), "-m", "umount", "-l", f"{tmp_path}/mine"]
                subprocess.run(hide, check=True)
                stage.adopt(first)
                stage.hears("the hidden one to be named")
                assert [line.split(" (")[0] for line in stage.said] == [
                    f"{NAME} cannot be probed: it is gone"
                ]
                with Caller(program) as second:
                    second.tell(f"open {true}")
                    stage.adopt(second)
                    stage.probed(second, "cuda")
                    stage.probed(first, "cuda")
                    second.tell("call cuInit 3 0")
                    first.tell("call cuInit 4 0")
                    assert stage.total("cuInit")[0] == 7
        finally:
            stage.watch.close()
