"""Control groups of version 2 for tests and benchmark: made, entered, removed."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.workloads.waiting import wait_for
from tracer.kernel import cgroup


class Cgroup:
    """One below the root or `parent`; `with` makes it, and removes it once it is empty."""

    def __init__(self, name: str, parent: Cgroup | None = None) -> None:
        root = cgroup.mounted()
        if root is None:
            raise FileNotFoundError("the cgroup v2 hierarchy is not mounted")
        above = Path(root) if parent is None else parent.folder
        self.folder: Path = above / (name if parent else f"{name}-{os.getpid()}")
        self.path = "/" + str(self.folder.relative_to(root))

    @property
    def inode(self) -> int:
        return self.folder.stat().st_ino

    @property
    def prefix(self) -> tuple[str, ...]:
        """Before a command: it is started inside, as by systemd or a container's runtime."""
        return ("sh", "-c", f'echo $$ >{self.folder}/cgroup.procs; exec "$@"', "sh")

    def occupied(self) -> bool:
        """Whether a process is in it."""
        return bool((self.folder / "cgroup.procs").read_text())

    def add(self, pid: int) -> None:
        """Moves a process in; its later children are born inside."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This process is in it meanwhile, and so is what it starts, for good."""
        above = self.folder.parent
        self.add(os.getpid())
        try:
            yield
        finally:
            (above / "cgroup.procs").write_text(str(os.getpid()))

    def run(self, *command: str) -> None:
        """A command inside, to its end."""
        subprocess.run([*self.prefix, *command], check=True)

    def __enter__(self) -> Self:
        self.folder.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        wait_for(lambda: not self.occupied(), 10, f"{self.folder} to empty")
        self.folder.rmdir()
