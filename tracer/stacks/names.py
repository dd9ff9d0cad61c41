"""Asks the helper program for names, in a thread of its own, and trusts nothing that it says."""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tracer.evidence import Evidence
from tracer.kernel.features import Fact
from tracer.records import Names
from tracer.stacks.fold import places
from tracer.stacks.mapped import MADE, Mapping, Mappings
from tracer.stacks.words import shown

HELPER = Path(__file__).with_name("helper.py")
#: Where a distribution's package puts bcc for.
SYSTEM_PYTHON = "/usr/bin/python3"
PLACES_MAX = 4096
LIMIT_S = 20.0
ANSWER_MAX = 4 << 20
ADVICE = "apt-get install python3-bpfcc"
_WAITING_MAX = 4
_CHECK_S = 5.0
_PIECE = 1 << 16
_DYING_S = 2.0


@dataclass
class Process:
    """What is asked of one process. `files`: path and inode; `places`: address, file, offset."""

    tgid: int
    files: list[tuple[str, int]] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the helper says. `by`: `bcc` or `symbols`."""

    by: str
    names: list[list[str | None]]


class HelperError(Exception):
    """The helper gave no answer; says why."""


def question(evidence: Evidence, mappings: Mappings) -> list[Process]:
    """What to ask about the code that ran; nothing where nothing could be told."""
    maps: dict[int, list[Mapping]] = {}
    asked: dict[int, Process] = {}
    for tgid, module, offset in places(evidence)[:PLACES_MAX]:
        if module == MADE:
            continue
        if tgid not in maps:
            maps[tgid] = mappings.of(tgid)
        found = _mapping(maps[tgid], module, offset)
        if found is None:
            continue
        process = asked.setdefault(tgid, Process(tgid))
        file = (module, int(found.file.rpartition(" ")[2] or 0))
        if file not in process.files:
            process.files.append(file)
        address = found.start + offset - found.offset
        process.places.append((address, process.files.index(file), offset))
    return list(asked.values())


def _mapping(mappings: Sequence[Mapping], module: str, offset: int) -> Mapping | None:
    for one in mappings:
        if one.module == module and 0 <= offset - one.offset < one.end - one.start:
            return one
    return None


def record(id_: int, asked: Sequence[Process], answer: Answer, now_ns: int) -> Names | None:
    """The names as a record; None where there is none. HelperError where they do not fit."""
    if [len(names) for names in answer.names] != [len(p.places) for p in asked]:
        raise HelperError("it answered something else than was asked")
    modules: dict[str, int] = {}
    functions: dict[str, int] = {}
    at: dict[tuple[int, int], int] = {}
    for process, names in zip(asked, answer.names, strict=True):
        for (_, file, offset), name in zip(process.places, names, strict=True):
            if name and (text := shown(name)):
                module = modules.setdefault(process.files[file][0], len(modules))
                at[module, offset] = functions.setdefault(text, len(functions))
    if not at:
        return None
    return Names(
        ts_ns=now_ns,
        id=id_,
        modules=tuple(modules),
        functions=tuple(functions),
        at=tuple((module, offset, function) for (module, offset), function in at.items()),
    )


def ask(asked: Sequence[Process], pythons: Sequence[tuple[str, bool]]) -> Answer:
    """The answer of the first of these interpreters (path, whether it may have bcc) that gives one.

    HelperError where none does.
    """
    trouble = "there is no Python to run it"
    for python, use_bcc in pythons:
        text = msgspec.json.encode({"use_bcc": use_bcc, "processes": list(asked)})
        try:
            return msgspec.json.decode(
                run([python, "-I", str(HELPER)], text, LIMIT_S, ANSWER_MAX), type=Answer
            )
        except HelperError as error:
            trouble = str(error)
        except (msgspec.DecodeError, UnicodeDecodeError):
            trouble = "its answer makes no sense"
    raise HelperError(trouble)


def run(argv: Sequence[str], text: bytes, limit_s: float, most: int) -> bytes:
    """What a program says when given `text`; HelperError when it fails, hangs or says too much."""
    try:
        child = subprocess.Popen(  # noqa: S603
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
    except OSError as error:
        raise HelperError(f"{argv[0]}: {error.strerror}") from None
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, child.pid, 19)
    try:
        said = _talk(child, text, time.monotonic() + limit_s, most)
        code = child.wait(_DYING_S)
    except subprocess.TimeoutExpired:
        raise HelperError("it does not end") from None
    finally:
        _end(child)
    if code:
        raise HelperError(f"it ended with {code}")
    return said


def _talk(child: subprocess.Popen[bytes], text: bytes, deadline: float, most: int) -> bytes:
    assert child.stdin is not None and child.stdout is not None
    said, rest = bytearray(), memoryview(text)
    os.set_blocking(child.stdin.fileno(), False)
    with selectors.DefaultSelector() as ready:
        ready.register(child.stdin, selectors.EVENT_WRITE)
        ready.register(child.stdout, selectors.EVENT_READ)
        while ready.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise HelperError("it took too long")
            for key, _ in ready.select(left):
                if key.fileobj is child.stdin:
                    rest = _write(child.stdin.fileno(), rest)
                    if not rest:
                        ready.unregister(child.stdin)
                        with contextlib.suppress(BrokenPipeError):
                            child.stdin.close()
                    continue
                piece = os.read(child.stdout.fileno(), _PIECE)
                if not piece:
                    return bytes(said)
                said += piece
                if len(said) > most:
                    raise HelperError("it says too much")
    return bytes(said)


def _write(fd: int, rest: memoryview) -> memoryview:
    try:
        return rest[os.write(fd, rest[:_PIECE]) :]
    except BlockingIOError:
        return rest
    except OSError:
        return rest[len(rest) :]  # it went away: its exit code says more


def _end(child: subprocess.Popen[bytes]) -> None:
    """It and what it started is gone, or will be when the kernel lets go of it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, 9)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_DYING_S)


def interpreters() -> list[tuple[str, bool]]:
    """Those that may run the helper, and whether bcc may be there for it."""
    found = [(SYSTEM_PYTHON, True)] if os.access(SYSTEM_PYTHON, os.X_OK) else []
    return [*found, (sys.executable, False)]


def has_bcc() -> bool:
    """Whether the system's Python has bcc."""
    if not os.access(SYSTEM_PYTHON, os.X_OK):
        return False
    try:
        run([SYSTEM_PYTHON, "-I", str(HELPER), "--has-bcc"], b"", _CHECK_S, 1)
    except HelperError:
        return False
    return True


def fact() -> Fact:
    """For `ttft doctor`: how functions get their names."""
    name = "function names"
    if has_bcc():
        return Fact(name, "by bcc, which is installed", True)
    unseen = "names of functions that only debug symbols or a just-in-time compiler tell"
    return Fact(name, "by symbol tables alone, bcc is not installed", None, unseen, ADVICE)


class Namer:
    """`name()` returns at once; `tell` gets the record later, from the thread that asked.

    `say`: the daemon's own words, once for each trouble.
    """

    def __init__(self, tell: Callable[[Names], object], say: Callable[[str], None]) -> None:
        self._tell = tell
        self._say = say
        self._troubles: set[str] = set()
        self._waiting: queue.Queue[tuple[int, list[Process]] | None] = queue.Queue(_WAITING_MAX)
        self._thread: threading.Thread | None = None

    def name(self, evidence: Evidence, mappings: Mappings) -> None:
        """Of a request that is over; left out where too many wait already."""
        asked = question(evidence, mappings)
        if not asked:
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait((evidence.id, asked))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ttft-names", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """No more; one that is being asked is not waited for."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            id_, asked = item
            try:
                named = record(id_, asked, ask(asked, interpreters()), time.monotonic_ns())
            except HelperError as error:
                if str(error) not in self._troubles:
                    self._troubles.add(str(error))
                    self._say(f"names of functions: the helper failed: {error}")
                continue
            if named is not None:
                self._tell(named)
