"""Opening the SQLite file of the history: pragmas, one owner, damage moved aside."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tracer.errors import StoreError
from tracer.store import reader
from tracer.store.migrations import DamageError, migrate, refuse_newer

MODE = 0o640
"""Of the history and of what lies beside it: the state folder may be open to all."""
#: The last: its tables are not those that were made, as all that we ask is right.
DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
#: The disk takes nothing now, but may later.
_REFUSES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR}
_REFUSING = {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO}

Warn = Callable[[str], None]


class UnwritableError(StoreError):
    """The disk takes nothing now: full, read-only or failing."""


def refuses(error: OSError) -> bool:
    """Whether it is the disk that takes nothing now, rather than a wrong path or right."""
    return error.errno in _REFUSING


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is broken, rather than the disk full or not writable."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE


@contextlib.contextmanager
def damage_told() -> Iterator[None]:
    """SQLite's own words hold parts of the file, and Python wants to read them as text."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DamageError("its description is damaged") from error


def _text(column: bytes) -> str | bytes:
    """Text as it should be, else what is there, which rows.py refuses: the others are kept."""
    try:
        return column.decode()
    except UnicodeDecodeError:
        return column


def identity(file: Path | int) -> tuple[int, int] | None:
    """(device, inode) of a path or descriptor; None where nothing is there."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def lock_of(path: Path) -> Path:
    """The file beside a history whose lock says that it is owned."""
    return path.with_name(path.name + ".lock")


def trouble(path: Path, error: sqlite3.Error | StoreError) -> StoreError:
    """The error to show for one of SQLite's."""
    if isinstance(error, StoreError):
        return error
    hints = {
        sqlite3.SQLITE_FULL: "free space on that file system, or lower [history] max_mb",
        sqlite3.SQLITE_READONLY: "make the state folder writable for the user running ttftd",
        sqlite3.SQLITE_CANTOPEN: "the state folder must exist and be writable",
        sqlite3.SQLITE_IOERR: "check the disk (dmesg), and that it has space",
        sqlite3.SQLITE_BUSY: "another program holds the history open; close it",
    }
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    kind = UnwritableError if code in _REFUSES else StoreError
    return kind(f"{path}: {error}", hints.get(code, "check the state folder and its disk"))


def own(path: Path) -> int:
    """Take the history for this process; the lock goes with the process, however it ends."""
    lock_path = lock_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
    except OSError as error:
        kind = UnwritableError if refuses(error) else StoreError
        raise kind(
            f"{lock_path}: {error.strerror}",
            "make room on that disk, or give another state folder with --state"
            if refuses(error)
            else "give a state folder this user may write with --state, or run as root",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StoreError(
            f"{path.parent}: another ttftd keeps its history here",
            "stop it first, or give this one its own folder with --state",
        ) from error
    return lock


def spare(path: Path) -> sqlite3.Connection:
    """To be read while the disk takes nothing: the history as it lies there, else an empty one."""
    # With the log beside it, where the file that goes with the log can be used; else without, as
    # SQLite wants to make that file even to read.
    for how in ("mode=ro", "immutable=1") if path.exists() else ():
        with contextlib.suppress(sqlite3.Error):
            found = sqlite3.connect(
                f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None,
                check_same_thread=False,
            )  # fmt: skip
            found.text_factory = _text
            try:
                found.execute("SELECT max(id) FROM requests").fetchone()
            except sqlite3.Error:
                found.close()
                raise
            return found
    empty = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    migrate(empty, time.time_ns())
    return empty


def set_aside(path: Path) -> list[str]:
    """Damaged histories that were kept, by name; whoever does not want them removes them."""
    try:
        names = os.listdir(path.parent)
    except OSError:
        return []
    beginning = f"{path.name}.damaged-"
    return sorted(n for n in names if n.startswith(beginning) and not n.endswith(("-wal", "-shm")))


def connect(path: Path, warn: Warn) -> sqlite3.Connection:
    """Open, or create, and bring up to date; a damaged file is kept under another name."""
    try:
        with damage_told():
            return _connect(path)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise trouble(path, error) from error
        move_aside(path, error, warn)
    try:
        return _connect(path)
    except sqlite3.Error as error:
        raise trouble(path, error) from error


def _only_for_us(path: Path) -> None:
    """Before SQLite has it: the files beside a history get the mode that it has then."""
    # What the disk refuses here SQLite is refused as well, and says it better.
    with contextlib.suppress(OSError):
        if not path.exists():  # closing one that is there gives up locks that SQLite has on it
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE))
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            path.with_name(path.name + suffix).chmod(MODE)


def _refuse_other_format(path: Path) -> None:
    """SQLite would only read a file of a format to come: ours never is of one."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:  # SQLite says it better
        return
    if head.startswith(b"SQLite format 3\0") and not set(head[18:]) <= {1, 2}:
        raise DamageError("its format is none that there is")


def _connect(path: Path) -> sqlite3.Connection:
    _only_for_us(path)
    _refuse_other_format(path)
    connection = sqlite3.connect(path, timeout=2.0, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    try:
        # Before anything that could change a file of another layout.
        refuse_newer(connection)
        # Must come before the first table: it decides the layout of the file.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        # In WAL mode this survives kill -9 whole; a power cut may cost the last seconds.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 4194304")
        connection.execute("PRAGMA cache_size = -1024")
        migrate(connection, time.time_ns())
        reader.all_there(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def move_aside(path: Path, error: sqlite3.Error, warn: Warn) -> None:
    """Rename the damaged history, so that nothing of it is lost, and say so."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    try:
        for suffix in ("-wal", "-shm", ""):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(kept.with_name(kept.name + suffix))
    except OSError as failed:
        raise StoreError(
            f"{path} is damaged ({error}) and cannot be moved aside: {failed.strerror}",
            "make the state folder writable for the user running ttftd",
        ) from failed
    warn(f"the history was damaged ({error}); kept as {kept}, a new one begins")
