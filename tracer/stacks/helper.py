"""Gives names to addresses: one question as JSON on stdin, one answer on stdout, then it ends.

Run as a program by names.py, under the system's Python, which may have bcc (LLVM then never sits in
the daemon), or under any other without. Standard library alone, Python 3.9 and later. What it reads
was made by others: it gives up most rights, and has little time and memory.

Question: {"use_bcc": bool, "processes": [{"tgid": n, "files": [[path, inode], ...],
"places": [[address, file, offset], ...]}]}. Answer: {"by": "bcc" | "symbols", "names": [[...]]}.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import resource
import signal
import stat
import sys
from pathlib import Path
from typing import Any

QUESTION_MAX = 4 << 20
NAME_MAX = 4096
CPU_S = 10
MEMORY = 1 << 31
_CAPSET_V3 = 0x20080522
#: To look at what other users' processes run.
_SYS_PTRACE, _DAC_READ_SEARCH = 19, 2
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _CLEAR_ALL = 38, 47, 4


def give_up_rights() -> None:
    """Nothing new, little time and memory, of root's rights only those to look. It ends with us."""
    for what, most in (
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (limit, limit))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    status = Path("/proc/self/status").read_text()
    permitted = next(int(s.split()[1], 16) for s in status.splitlines() if s.startswith("CapPrm:"))
    kept = permitted & (1 << _SYS_PTRACE | 1 << _DAC_READ_SEARCH)
    header = (ctypes.c_uint32 * 2)(_CAPSET_V3, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0))
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def bcc_cache(tgid: int) -> Any:
    """bcc's symbol cache of a process that runs, or None."""
    if not os.path.isdir(f"/proc/{tgid}"):
        return None
    try:
        from bcc import SymbolCache  # type: ignore[import-not-found,unused-ignore]
    except (ImportError, OSError, AttributeError):  # another package has the same name
        return None
    return SymbolCache(tgid)


def by_bcc(tgid: int, addresses: list[int]) -> list[str | None] | None:
    """Names by bcc; None where there is none."""
    cache = bcc_cache(tgid)
    if cache is None:
        return None
    found: list[str | None] = []
    for address in addresses:
        name = cache.resolve(address, True)[0]
        found.append(name.decode("utf-8", "replace")[:NAME_MAX] if name else None)
    return found


def _load(*place: str) -> Any:
    """A file of this package, which is no package here."""
    path = Path(__file__).parents[1].joinpath(*place)
    spec = importlib.util.spec_from_file_location(f"ttft_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def open_file(walk: Any, tgid: int, path: str, inode: int) -> int | None:
    """The file that a process has, or had, mapped; None where it is not to be had.

    Its path is its own making, and below its root: nothing but that file is opened.
    """
    if not path.startswith("/"):
        return None
    for root in (f"/proc/{tgid}/root", "/"):  # it may have ended
        try:
            found: int = walk.read_regular(walk.below(root, path), inode)
        except OSError:
            continue
        return found
    return None


def may_be_followed(walk: Any, process: dict[str, Any]) -> bool:
    """Whether bcc, which opens by itself what it finds, meets files or nothing: where the process
    has code from, and where a just-in-time compiler would have written names."""
    tgid = process["tgid"]
    try:
        with open(f"/proc/{tgid}/status", encoding="ascii", errors="replace") as status:
            numbers = next((line.split()[1:] for line in status if line.startswith("NSpid:")), [])
    except OSError:
        return False
    paths = [path for path, _ in process["files"]]
    paths += [f"/tmp/perf-{number}.map" for number in {str(tgid), *numbers}]  # noqa: S108
    return all(_file_or_nothing(walk, f"/proc/{tgid}/root", path) for path in paths) and all(
        _file_or_nothing(walk, "/", path) for path in paths
    )


def _file_or_nothing(walk: Any, root: str, path: str) -> bool:
    try:
        named = walk.below(root, path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(named).st_mode)
    finally:
        os.close(named)


def by_symbols(walk: Any, process: dict[str, Any], wanted: list[int]) -> dict[int, str]:
    """Names of places (by their number) from the files themselves."""
    module = _load("stacks", "symbols.py")
    found: dict[int, str] = {}
    for number, (path, inode) in enumerate(process["files"]):
        mine = [n for n in wanted if process["places"][n][1] == number]
        fd = open_file(walk, process["tgid"], path, inode) if mine else None
        if fd is None:
            continue
        try:
            symbols = module.Symbols(fd)
        except (module.Unreadable, OSError, ValueError, MemoryError):
            continue
        finally:
            os.close(fd)
        for n in mine:
            name = symbols.name(process["places"][n][2])
            if name:
                found[n] = name[:NAME_MAX]
    return found


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Names for each place of each process, null where there is none."""
    by, names = "symbols", []
    walk = _load("host", "walk.py")
    for process in question["processes"]:
        places = process["places"]
        use_bcc = question["use_bcc"] and may_be_followed(walk, process)
        known = by_bcc(process["tgid"], [p[0] for p in places]) if use_bcc else None
        if known is not None:
            by = "bcc"
        found = known or [None] * len(places)
        missing = [n for n, name in enumerate(found) if name is None]
        for n, name in by_symbols(walk, process, missing).items():
            found[n] = name
        names.append(found)
    return {"by": by, "names": names}


def main() -> int:
    """One question, one answer."""
    if sys.argv[1:] == ["--has-bcc"]:
        spec = importlib.util.find_spec("bcc")
        places = spec.submodule_search_locations if spec is not None else None
        return 0 if any(os.path.exists(f"{p}/libbcc.py") for p in places or ()) else 1
    text = sys.stdin.buffer.read(QUESTION_MAX + 1)
    if len(text) > QUESTION_MAX:
        return 2
    give_up_rights()
    sys.stdout.write(json.dumps(answer(json.loads(text))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
