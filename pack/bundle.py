"""The bundle: a folder that needs nothing of the system but a kernel, /bin/sh and systemd.

It brings Debian's own Python with the C library it was built for, run by that library's own
loader, so that neither the system's Python nor its libraries matter.
"""

from __future__ import annotations

import compileall
import py_compile
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from pack import wheels
from pack.wheels import ROOT, PackError
from tests.vm.packages import Suite, unpack
from tracer import __version__

SUITE, PYTHON = "bookworm", "3.11"
PACKAGES = (
    "libc6", "libgcc-s1", "zlib1g", "libexpat1", "libffi8", "libsqlite3-0", "libbpf1", "libelf1",
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib",
)  # fmt: skip
LIBRARIES = (
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1",
    "libgcc_s.so.1", "libz.so.1", "libexpat.so.1", "libffi.so.8", "libsqlite3.so.0",
    "libbpf.so.1", "libelf.so.1",
)  # fmt: skip
LOADERS = {"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}
#: Parts of the standard library that nothing here uses, and modules that need other libraries.
_LEFT_OUT = (
    "test", "idlelib", "tkinter", "turtledemo", "ensurepip", "distutils", "lib2to3", "pydoc_data",
    "venv", "curses", "dbm", "sqlite3/test", "unittest/test", "config-*", "EXTERNALLY-MANAGED",
    "lib-dynload/_ssl*", "lib-dynload/_hashlib*", "lib-dynload/_curses*", "lib-dynload/readline*",
    "lib-dynload/_dbm*", "lib-dynload/_gdbm*", "lib-dynload/_tkinter*", "lib-dynload/_lzma*",
    "lib-dynload/_bz2*", "lib-dynload/_uuid*", "lib-dynload/_crypt*", "lib-dynload/nis*",
    "lib-dynload/_test*", "lib-dynload/ossaudiodev*",
)  # fmt: skip
_SCRIPTS = Path(__file__).parent / "bundle_files"


def make(wheel: Path, arch: str, machine: str, into: Path) -> Path:
    """The archive for `arch` (Debian's word) and `machine` (the kernel's)."""
    name = f"ttft-{__version__}-{arch}"
    with tempfile.TemporaryDirectory(prefix="ttft-bundle-") as work:
        system, folder = Path(work) / "system", Path(work) / name
        _system(system, arch, Path(work) / "debs")
        _python(system, folder)
        _loader(system, folder, arch, f"{machine}-linux-gnu")
        _project(wheel, machine, folder / "site", Path(work) / "wheels")
        _terms(system, folder / "licences")
        for script in _SCRIPTS.iterdir():
            target = folder / ("bin" if script.name.startswith("ttft") else "") / script.name
            target.parent.mkdir(exist_ok=True)
            shutil.copy(script, target)
        _compile(folder)
        made = into / f"{name}.tar.gz"
        with tarfile.open(made, "w:gz", compresslevel=6) as archive:
            archive.add(folder, name, filter=_roots)
    return made


def _system(tree: Path, arch: str, debs: Path) -> None:
    """Debian's packages of that architecture, unpacked."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")
    suite = Suite(SUITE, arch)
    for deb in suite.download(suite.find(*PACKAGES), debs):
        unpack(deb, tree)


def _python(system: Path, folder: Path) -> None:
    home = folder / "python"
    (home / "bin").mkdir(parents=True)
    shutil.copy(system / f"usr/bin/python{PYTHON}", home / "bin")
    library = home / f"lib/python{PYTHON}"
    shutil.copytree(system / f"usr/lib/python{PYTHON}", library, symlinks=False)
    for pattern in _LEFT_OUT:
        for path in library.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _loader(system: Path, folder: Path, arch: str, triplet: str) -> None:
    (folder / "lib").mkdir()
    places = [system / "usr/lib" / triplet, system / "usr/lib", system / "usr/lib64"]
    for name in (*LIBRARIES, LOADERS[arch]):
        found = next((place / name for place in places if (place / name).exists()), None)
        if found is None:
            raise PackError(f"{SUITE} has no {name} in {', '.join(PACKAGES)}")
        # One name for all architectures: the launchers are the same.
        shutil.copy(found.resolve(), folder / "lib" / name.replace(LOADERS[arch], "loader"))


def _project(wheel: Path, machine: str, site: Path, work: Path) -> None:
    wheels.unpack([wheel, *wheels.needed(wheel, PYTHON, machine, work)], site)
    shutil.rmtree(site / "tracer/kernel/libs", ignore_errors=True)


def _terms(system: Path, into: Path) -> None:
    """The licence of each package that it brings."""
    into.mkdir()
    for name in PACKAGES:
        found = system / "usr/share/doc" / name / "copyright"
        if found.exists():
            shutil.copy(found, into / f"{name}.copyright")
    shutil.copy(ROOT / "LICENSE", into / "ttft.LICENSE")


def _compile(folder: Path) -> None:
    """Where it lies may be read-only. Another version's compiled files would be of no use."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON:
        return
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for part in ("python/lib", "site"):
        compileall.compile_dir(
            folder / part, quiet=2, invalidation_mode=mode, stripdir=str(folder), workers=1
        )


def _roots(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
