"""A disk with a real llama-server: Debian's own, with all it needs, and two tiny models.

Other builds are made for one kind of processor, which an emulated one need not be; Debian's
takes what is there. It is a root file system of its own, so it runs on any guest.
"""

from __future__ import annotations

import inspect
import os
import shutil
from pathlib import Path

from tests.service import tiny
from tests.vm import cache
from tests.vm.cache import run
from tests.vm.packages import Package, Suite, unpack

SUITE, ARCH = "sid", "amd64"
PACKAGES = (
    "llama.cpp-tools", "libllama0", "libggml0", "libgomp1", "libstdc++6", "libgcc-s1", "libc6",
    "libssl3t64", "zlib1g", "libzstd1",
)  # fmt: skip
MODELS = ("alpha", "beta")
#: The server's user in the guest; nobody else may enter the models' folder.
_OWNER = 65534


def disk() -> Path:
    """The image (ext4), made once for each version of the server."""
    suite = Suite(SUITE, ARCH)
    parts = suite.find(*PACKAGES)
    recipe = [inspect.getsource(tiny), inspect.getsource(_build)]
    named = [[part.name, part.version] for part in parts]
    name = f"server-{SUITE}-{ARCH}-{cache.digest(named, recipe)}"
    return cache.built(name, lambda folder: _build(folder, suite, parts)) / "server.img"


def _build(folder: Path, suite: Suite, parts: list[Package]) -> None:
    tree = folder / "tree"
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")
    for deb in suite.download(parts, folder / "debs"):
        unpack(deb, tree)
    for place in ("proc", "sys", "dev", "run", "tmp", "var/tmp"):
        (tree / place).mkdir(parents=True)
    models = tree / "models"
    models.mkdir()
    for name in MODELS:
        tiny.write(models / f"{name}.gguf")
        os.chown(models / f"{name}.gguf", _OWNER, _OWNER)
    os.chown(models, _OWNER, _OWNER)
    models.chmod(0o700)
    image = folder / "server.img"
    run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", tree, image, "128M")
    for used in (tree, folder / "debs"):
        shutil.rmtree(used)
