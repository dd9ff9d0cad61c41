"""Kernels, root file systems and Python libraries for guests; nothing here boots anything."""

from __future__ import annotations

import compileall
import inspect
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.vm import cache, initrd, packages
from tests.vm.cache import BuildError, run
from tests.vm.catalogue import ROOT, KernelSpec, UserlandSpec
from tests.vm.packages import Package, Suite

#: Files that are put into each root.
ADDED = Path(__file__).parent / "guest" / "root"
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_GLIBC_MINORS = (17, 24, 26, 27, 28, 31, 34, 35, 36)
#: Packages that a root needs and `extract` does not bring by itself.
_ESSENTIAL = (
    "base-files", "base-passwd", "bash", "coreutils", "dash", "diffutils", "findutils", "grep",
    "gzip", "hostname", "libc-bin", "login", "mount", "ncurses-base", "perl-base", "sed", "tar",
    "util-linux",
)  # fmt: skip


@dataclass(frozen=True)
class KernelImage:
    """A kernel ready to boot. `modules`: the tree that holds lib/modules."""

    version: str
    arch: str
    folder: Path

    @property
    def vmlinuz(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd"

    @property
    def modules(self) -> Path:
        return self.folder / "tree" / "usr" / "lib" / "modules"

    @property
    def config(self) -> Path:
        return self.folder / "config"


def kernel(spec: KernelSpec) -> KernelImage:
    """The newest kernel that the suite offers (asked once a day)."""
    suite = Suite(spec.suite, spec.arch)
    parts, [tools] = suite.kernel(spec.package), suite.find("busybox-static")
    recipe = [initrd.INIT.read_text(), inspect.getsource(initrd), inspect.getsource(_build_kernel)]
    named = [[part.name, part.version] for part in [*parts, tools]]
    name = f"kernel-{spec.suite}-{spec.arch}-{cache.digest(named, recipe)}"
    folder = cache.built(name, lambda folder: _build_kernel(folder, suite, parts, tools))
    return KernelImage((folder / "version").read_text(), spec.arch, folder)


def _build_kernel(folder: Path, suite: Suite, parts: list[Package], tools: Package) -> None:
    tree = _merged(folder / "tree")
    for deb in suite.download(parts, folder / "debs"):
        packages.unpack(deb, tree)
    version = _kernel_version(tree)
    run("depmod", "-b", tree, version)
    for what in ("vmlinuz", "config"):
        places = (tree / f"boot/{what}-{version}", tree / f"lib/modules/{version}/{what}")
        found = next((place for place in places if place.exists()), None)
        if found is None:
            raise BuildError(f"kernel {version} of {suite.suite} has no {what}")
        shutil.copy(found, folder / what)
    busybox = _busybox(suite, tools, folder / "tools")
    (folder / "initrd").write_bytes(initrd.make(tree, version, busybox))
    (folder / "version").write_text(version)
    for used in ("debs", "tools", "tree/boot", "tree/usr/share"):
        shutil.rmtree(folder / used, ignore_errors=True)


def _merged(tree: Path) -> Path:
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")
    return tree


def _kernel_version(tree: Path) -> str:
    versions = [path.name for path in (tree / "lib/modules").iterdir()]
    if len(versions) != 1:
        raise BuildError(f"expected the modules of one kernel, found {versions}")
    return versions[0]


def _busybox(suite: Suite, package: Package, folder: Path) -> Path:
    tree = _merged(folder / "tree")
    for deb in suite.download([package], folder):
        packages.unpack(deb, tree)
    return tree / "bin" / "busybox"


def userland(spec: UserlandSpec, arch: str) -> Path:
    """A root file system as a disk image (ext4); use it by snapshot only."""
    added = [
        [str(path.relative_to(ADDED)), path.read_text()]
        for path in sorted(ADDED.rglob("*"))
        if path.is_file()
    ]
    recipe = [added, _ESSENTIAL, inspect.getsource(_build_root)]
    name = f"root-{spec.suite}-{arch}-{cache.digest(msgspec.to_builtins(spec), recipe)}"
    return cache.built(name, lambda folder: _build_root(folder, spec, arch)) / "root.img"


def _build_root(folder: Path, spec: UserlandSpec, arch: str) -> None:
    if os.geteuid() != 0:
        raise BuildError("a root file system is built by root only: run this as root once")
    tree = folder / "tree"
    included = spec.packages
    variant = ["--variant=minbase"]
    if arch != run("dpkg", "--print-architecture").strip():
        # Its programs cannot run here: unpacked, not configured.
        variant = ["--variant=extract", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"]
        included = [*_ESSENTIAL, *included]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
        settings.write(_apt_settings())
        settings.flush()
        run(
            "mmdebstrap", "--mode=root", "--format=directory", f"--architectures={arch}",
            *variant, f"--include={','.join(included)}",
            f"--aptopt={settings.name}", '--aptopt=Acquire::Languages "none"',
            *(f"--dpkgopt=path-exclude=/usr/share/{what}/*" for what in ("doc", "man", "locale")),
            spec.suite, tree, packages.mirror().line(spec.suite),
        )  # fmt: skip
    shutil.copytree(ADDED, tree, dirs_exist_ok=True, symlinks=True)
    (tree / "etc/apt/apt.conf.d/99mmdebstrap").unlink(missing_ok=True)
    for place in ("mnt/checkout", "mnt/control", "mnt/out", "opt/libs"):
        (tree / place).mkdir(parents=True, exist_ok=True)
    _disk(tree, folder / "root.img", "2G")


def extracted(tree: Path, suite: str, included: Sequence[str]) -> None:
    """Unpacks packages of a suite, with all that they depend on, into a new folder."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
        settings.write(_apt_settings())
        settings.flush()
        run(
            "mmdebstrap", "--mode=root", "--format=directory", "--variant=extract",
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", f"--include={','.join(included)}",
            f"--aptopt={settings.name}", '--aptopt=Acquire::Languages "none"',
            suite, tree, packages.mirror().line(suite),
        )  # fmt: skip


def _disk(tree: Path, image: Path, size: str) -> None:
    run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", tree, image, size)
    shutil.rmtree(tree)


def _apt_settings() -> str:
    """The machine's own way to its mirror (proxies, certificates, lists of any age)."""
    lines = run("apt-config", "dump", "Acquire").splitlines()
    wanted = ("Acquire::http", "Acquire::https", "Acquire::Check-Valid-Until")
    kept = [line for line in lines if line.startswith(wanted)]
    return "".join(f"{line}\n" for line in kept if '"' in line)


def libraries(spec: UserlandSpec, arch: str) -> Path:
    """What the project needs at run time, for the guest's Python, as a disk image (ext4)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"]
    recipe = [wanted, _same_python(spec.python), _GLIBC_MINORS, inspect.getsource(_build_libraries)]
    name = f"libs-{spec.python}-{arch}-{cache.digest(recipe)}"
    folder = cache.built(name, lambda folder: _build_libraries(folder, wanted, spec.python, arch))
    return folder / "libs.img"


def _same_python(version: str) -> bool:
    """Whether what this Python compiles is good for the guest's, which is slow at it."""
    return version == f"{sys.version_info.major}.{sys.version_info.minor}"


def compile_checkout(spec: UserlandSpec) -> None:
    """Spares the guest the compiling of the project's own modules, where this Python can."""
    if _same_python(spec.python):
        for folder in ("tracer", "tests"):
            compileall.compile_dir(ROOT / folder, quiet=2)


def _build_libraries(folder: Path, wanted: list[str], python: str, arch: str) -> None:
    machine = _MACHINES[arch]
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
    platforms += [f"manylinux2014_{machine}", f"linux_{machine}"]
    tree = folder / "tree"
    run(
        sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check",
        "--only-binary=:all:", *([] if _same_python(python) else ["--no-compile"]),
        "--target", tree,
        "--python-version", python, "--implementation", "cp",
        *(f"--platform={name}" for name in platforms), *wanted,
    )  # fmt: skip
    _disk(tree, folder / "libs.img", "96M")
