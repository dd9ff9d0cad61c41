"""The Unix socket itself: one daemon per path, leftovers of a dead one removed."""

from __future__ import annotations

import contextlib
import grp
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from tracer.config import DEFAULT_GROUP
from tracer.errors import TtftError
from tracer.log import log

MODE = 0o660


@dataclass(frozen=True)
class Place:
    """A socket that is ours: `close` gives it up, unless another daemon took it meanwhile."""

    path: Path
    listener: socket.socket
    inode: int

    def close(self) -> None:
        self.listener.close()
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_ino == self.inode:
                self.path.unlink()


def claim(path: Path, group: str) -> Place:
    """`bind`, and remember what was bound."""
    listener = bind(path, group)
    return Place(path, listener, path.stat().st_ino)


def bind(path: Path, group: str) -> socket.socket:
    """Listen on `path`, mode 0660, for root and `group`; the default group may be missing."""
    gid = _gid(group)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        _clear(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            _bind(listener, path)
            if gid is not None:
                os.chown(path, -1, gid)
            listener.listen(64)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise TtftError(
            f"{path}: cannot listen there: {error.strerror or error}",
            "give a path you may write with --socket; the service may write only in /run/ttft, "
            "and give the socket only to groups in its SupplementaryGroups=",
        ) from error
    listener.setblocking(False)
    return listener


def _bind(listener: socket.socket, path: Path) -> None:
    # The mode must never be wider, not even between bind and chmod.
    before = os.umask(0o777 & ~MODE)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        if group == DEFAULT_GROUP:
            log(
                f"there is no group {group}: only root may ask. groupadd --system {group} and a "
                "restart let its members ask; or name another `group` in the configuration"
            )
            return None
        raise TtftError(
            f"there is no group {group}", f"groupadd --system {group}, or correct `group`"
        ) from None


def _clear(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise TtftError(
            f"{path} is there and is not a socket", "remove it, or give another path with --socket"
        )
    if _answers(path):
        raise TtftError(
            f"another ttftd already answers on {path}",
            "stop it first (systemctl stop ttftd), or give this one --socket and --state",
        )
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except (TimeoutError, BlockingIOError):
            # Its queue is full: busy, but alive.
            return True
    return True
