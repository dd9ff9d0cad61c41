"""Built things on disk, named by the content they are made from."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: What was not used for so long is not worth its room, seconds.
_KEEP_S = 7 * 24 * 3600


class BuildError(Exception):
    """Why something cannot be built, in words for whoever ran the tests."""


def root() -> Path:
    """Where built things are kept: $TTFT_VM_CACHE, else ~/.cache/ttft-vm."""
    given = os.environ.get("TTFT_VM_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "ttft-vm"


def digest(*parts: object) -> str:
    """A name for what these parts make."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def lock(name: str) -> Iterator[None]:
    """One at a time among all processes; the kernel lets go when the holder dies."""
    folder = root() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def built(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name`, KIND-DIGEST; made by `build(empty folder)` if it is not there yet.

    It appears whole or not at all, and is made once however many ask. Others of its kind that
    were not used for a week go.
    """
    final = root() / name
    with lock(name):
        if not final.exists():
            for left in root().glob(f"{name}.tmp*"):  # of a build that was aborted
                shutil.rmtree(left)
            _build(final, build)
            _forget(final)
        os.utime(final)
    return final


def _build(final: Path, build: Callable[[Path], None]) -> None:
    work = Path(tempfile.mkdtemp(prefix=f"{final.name}.tmp", dir=root()))
    try:
        work.chmod(0o755)
        say(f"building {final.name}")
        build(work)
        work.rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _forget(new: Path) -> None:
    kind = new.name.rpartition("-")[0]
    for other in root().glob(f"{kind}-*"):
        if other.name.rpartition("-")[0] == kind and time.time() - other.stat().st_mtime > _KEEP_S:
            shutil.rmtree(other)


def write(path: Path, text: str) -> None:
    """Writes a file that others see whole or not at all."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).replace(path)


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Output of a tool; BuildError with its last words when it fails."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise BuildError(f"{Path(command[0]).name} failed ({done.returncode}):\n{tail}")
    return done.stdout


def say(what: str) -> None:
    """Progress, for people."""
    print(f"vm: {what}", file=sys.stderr, flush=True)
