"""What is handed out, made from small wheels: no network, no compiler."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from pack import deb, wheels
from tracer import __version__

PACK = Path(__file__).parents[2] / "pack"
SCRIPTS = [
    *(PACK / "debian" / name for name in ("postinst", "prerm", "postrm")),
    *(PACK / "bundle_files" / name for name in ("ttft", "ttftd", "install", "uninstall")),
]


def wheel(folder: Path, name: str, *files: str) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.writestr(file, f"# {file}\n")
    return path


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("orjson-3.13.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("psutil-7.2.2-cp36-abi3-manylinux2010_x86_64.whl", False),
        ("click-8.5.1-py3-none-any.whl", False),
    ],
)
def test_what_is_bound_to_one_python(name: str, bound: bool) -> None:
    assert wheels.is_bound(Path(name)) is bound


def test_unpacked_without_scripts(tmp_path: Path) -> None:
    made = wheel(
        tmp_path, "a-1-py3-none-any.whl",
        "a/x.py", "a-1.data/scripts/a", "a-1.dist-info/METADATA", "a-1.dist-info/entry_points.txt",
    )  # fmt: skip
    wheels.unpack([made], tmp_path / "out")
    out = tmp_path / "out"
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found == {"a/x.py", "a-1.dist-info/METADATA"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_posix_shell(script: Path) -> None:
    assert script.read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", str(script)], check=True)


def test_scripts_of_the_bundle_can_be_run() -> None:
    assert [path for path in SCRIPTS if path.parent.name == "bundle_files"] == [
        path for path in SCRIPTS[3:] if path.stat().st_mode & 0o111
    ]
    both = {(PACK / "bundle_files" / name).read_text() for name in ("ttft", "ttftd")}
    assert len(both) == 1, "one launcher, two names"


def test_the_debian_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here")

    def needed(_: Path, python: str, machine: str, folder: Path) -> list[Path]:
        tag = f"cp{python.replace('.', '')}"
        folder.mkdir()
        return [
            wheel(folder, f"fast-1-{tag}-{tag}-manylinux_2_17_{machine}.whl", f"fast/{tag}.so"),
            wheel(folder, "pure-1-py3-none-any.whl", "pure/x.py"),
        ]

    monkeypatch.setattr(wheels, "needed", needed)
    ours = wheel(
        tmp_path, "ttft-0-py3-none-any.whl",
        "tracer/cli.py", "tracer/kernel/libs/x86_64/libbpf.so.1",
    )  # fmt: skip
    made = deb.make(ours, "arm64", "aarch64", tmp_path)
    assert made.name == f"ttft_{__version__}_arm64.deb"
    listed = subprocess.run(["dpkg-deb", "-c", made], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines() if not line.startswith("d")]
    assert {row[1] for row in rows} == {"root/root"}
    modes = {row[5]: row[0] for row in rows}
    assert {name for name in modes if name.startswith("./usr/lib")} == {
        "./usr/lib/systemd/system/ttftd.service",
        "./usr/lib/sysusers.d/ttft.conf",
        "./usr/lib/ttft/common/tracer/cli.py",
        "./usr/lib/ttft/common/pure/x.py",
        "./usr/lib/ttft/py3.11/fast/cp311.so",
        "./usr/lib/ttft/py3.12/fast/cp312.so",
        "./usr/lib/ttft/py3.13/fast/cp313.so",
    }
    assert modes["./usr/bin/ttft"] == modes["./usr/bin/ttftd"] == "-rwxr-xr-x"
    assert modes["./etc/ttft/config.toml"] == "-rw-r--r--"
    assert "./usr/share/man/man8/ttftd.8.gz" in modes
    asked = ["dpkg-deb", "-f", str(made), "Package", "Version", "Architecture", "Depends"]
    fields = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert fields.splitlines() == [
        "Package: ttft",
        f"Version: {__version__}",
        "Architecture: arm64",
        "Depends: python3 (>= 3.11), libbpf1, systemd",
    ]
