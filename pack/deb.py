"""The Debian package: one for each machine, for all Pythons that Debian 12 and 13 have.

It brings its Python libraries under /usr/lib/ttft: what is bound to one version of Python in a
folder of that version, the rest once.
"""

from __future__ import annotations

import gzip
import shutil
import sys
import tempfile
from pathlib import Path

from pack import wheels
from pack.wheels import ROOT, run
from tracer import __version__

#: Debian 12 has the first, Debian 13 the last.
PYTHONS = ("3.11", "3.12", "3.13")
_SCRIPTS = Path(__file__).parent / "debian"
_HOME = Path("usr/lib/ttft")


def make(wheel: Path, arch: str, machine: str, into: Path) -> Path:
    """The package of this wheel for `arch` (Debian's word) and `machine` (the kernel's)."""
    with tempfile.TemporaryDirectory(prefix="ttft-deb-") as name:
        tree = Path(name) / "tree"
        tree.mkdir(mode=0o755)
        _libraries(wheel, machine, tree / _HOME, Path(name))
        _programs(tree)
        _system_files(tree)
        _documents(tree)
        _control(tree, arch)
        made = into / f"ttft_{__version__}_{arch}.deb"
        run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, made)
    return made


def _libraries(wheel: Path, machine: str, home: Path, work: Path) -> None:
    wheels.unpack([wheel], home / "common")
    # The package depends on Debian's own.
    shutil.rmtree(home / "common/tracer/kernel/libs", ignore_errors=True)
    for python in PYTHONS:
        found = wheels.needed(wheel, python, machine, work / python)
        bound = [path for path in found if wheels.is_bound(path)]
        wheels.unpack(bound, home / f"py{python}")
        wheels.unpack((path for path in found if path not in bound), home / "common")


def _programs(tree: Path) -> None:
    template = (_SCRIPTS / "launcher.in").read_text()
    for name, entry in (("ttft", "main"), ("ttftd", "daemon_main")):
        _put(tree / "usr/bin" / name, template.replace("@ENTRY@", entry), 0o755)


def _system_files(tree: Path) -> None:
    units = ROOT / "systemd"
    for name, place in (
        ("ttftd.service", "usr/lib/systemd/system/ttftd.service"),
        ("ttft.sysusers.conf", "usr/lib/sysusers.d/ttft.conf"),
        ("config.toml", "etc/ttft/config.toml"),
    ):
        _put(tree / place, (units / name).read_text())
    run(
        sys.executable,
        "-c",
        "from tracer.cli import main; main()",
        "manual",
        tree / "usr",
        cwd=ROOT,
    )


def _documents(tree: Path) -> None:
    folder = tree / "usr/share/doc/ttft"
    _put(folder / "copyright", (_SCRIPTS / "copyright").read_text())
    with gzip.GzipFile(folder / "changelog.gz", "wb", mtime=0) as file:
        file.write((ROOT / "CHANGELOG.md").read_bytes())
    for page in sorted(tree.glob("usr/share/man/*/*.[0-9]")):
        with gzip.GzipFile(f"{page}.gz", "wb", mtime=0) as file:
            file.write(page.read_bytes())
        page.unlink()


def _control(tree: Path, arch: str) -> None:
    size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file()) // 1024
    text = (_SCRIPTS / "control").read_text()
    for key, value in (("VERSION", __version__), ("ARCH", arch), ("SIZE", str(size))):
        text = text.replace(f"@{key}@", value)
    control = tree / "DEBIAN"
    _put(control / "control", text)
    _put(control / "conffiles", "/etc/ttft/config.toml\n")
    for name in ("postinst", "prerm", "postrm"):
        _put(control / name, (_SCRIPTS / name).read_text(), 0o755)


def _put(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
