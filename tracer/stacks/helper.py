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


def _symbols() -> Any:
    """The neighbour of this file, which is no package here."""
    path = Path(__file__).with_name("symbols.py")
    spec = importlib.util.spec_from_file_location("ttft_symbols", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def open_file(tgid: int, path: str, inode: int) -> int | None:
    """The file that a process has, or had, mapped; None where it is not to be had."""
    if not path.startswith("/"):
        return None
    for place in (f"/proc/{tgid}/root{path}", path):
        try:
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        info = os.fstat(fd)
        if stat.S_ISREG(info.st_mode) and info.st_ino == inode:
            return fd
        os.close(fd)
    return None


def by_symbols(process: dict[str, Any], wanted: list[int]) -> dict[int, str]:
    """Names of places (by their number) from the files themselves."""
    module = _symbols()
    found: dict[int, str] = {}
    for number, (path, inode) in enumerate(process["files"]):
        mine = [n for n in wanted if process["places"][n][1] == number]
        fd = open_file(process["tgid"], path, inode) if mine else None
        if fd is None:
            continue
        try:
            symbols = module.Symbols(fd)
        except (module.Unreadable, OSError, ValueError):
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
    for process in question["processes"]:
        places = process["places"]
        known = by_bcc(process["tgid"], [p[0] for p in places]) if question["use_bcc"] else None
        if known is not None:
            by = "bcc"
        found = known or [None] * len(places)
        missing = [n for n, name in enumerate(found) if name is None]
        for n, name in by_symbols(process, missing).items():
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
