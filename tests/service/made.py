"""What is brought into guests besides what is handed out: the same, as older versions."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from tests.vm.cache import run
from tracer import __version__

OLDER = "0.0.9"
_VERSION_LINE = f'__version__ = "{__version__}"'


def older_wheel(wheel: Path, folder: Path) -> Path:
    """The same program, as if it were an earlier version."""
    made = folder / wheel.name.replace(__version__, OLDER)
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(made, "w") as target:
        names = []
        for item in source.infolist():
            data = source.read(item)
            name = item.filename.replace(f"ttft-{__version__}.", f"ttft-{OLDER}.")
            if name.endswith("/RECORD"):
                record = name
                continue
            if name == "tracer/__init__.py":
                data = _older(data.decode()).encode()
            if name.endswith("/METADATA"):
                data = data.replace(_field(__version__), _field(OLDER), 1)
            target.writestr(name, data)
            names.append(name)
        target.writestr(record, "".join(f"{name},,\n" for name in [*names, record]))
    return made


def older_package(package: Path, folder: Path) -> Path:
    """The same Debian package, as if it were an earlier version."""
    tree = folder / "tree"
    run("dpkg-deb", "-R", package, tree)
    control = tree / "DEBIAN/control"
    control.write_bytes(control.read_bytes().replace(_field(__version__), _field(OLDER), 1))
    module = tree / "usr/lib/ttft/common/tracer/__init__.py"
    module.write_text(_older(module.read_text()))
    made = folder / package.name.replace(__version__, OLDER)
    run("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, made)
    shutil.rmtree(tree)
    return made


def _field(version: str) -> bytes:
    return f"\nVersion: {version}\n".encode()


def _older(text: str) -> str:
    assert _VERSION_LINE in text
    return text.replace(_VERSION_LINE, f'__version__ = "{OLDER}"')
