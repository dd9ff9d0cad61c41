"""Set-ups of a host, each made in a process of its own from what the guest booted with.

Processes are forked from one that has imported all: Python starts slowly under emulation.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.workloads.waiting import wait_for
from tracer import cli

OUT = Path(os.environ.get("OUT", "/tmp"))
_libc = ctypes.CDLL(None, use_errno=True)
_NEW = {"mnt": 0x20000, "cgroup": 0x2000000, "user": 0x10000000, "pid": 0x20000000,
        "net": 0x40000000}  # fmt: skip
_CAPABILITY_VERSION = 0x20080522
#: Those of systemd/ttftd.service: BPF, PERFMON, NET_ADMIN, SYS_PTRACE, DAC_READ_SEARCH, FOWNER.
SERVICE_RIGHTS = (39, 38, 12, 19, 2, 3)
ALL_RIGHTS = tuple(range(41))
CAP_SYS_RESOURCE = 24
_WATCHING = "watching; answers at"
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Setup:
    """`host`: done to the host before, and undone by `after`; `prepare`: in a mount namespace of
    the set-up's own, after the namespaces of `new` were left. `rights`: capabilities kept;
    `memlock`: bytes that may be locked.
    `ttftd`: options it is tried with; None: only the doctor is asked.
    """

    name: str
    prepare: str = ""
    host: str = ""
    after: str = ""
    new: tuple[str, ...] = ()
    rights: tuple[int, ...] | None = None
    memlock: int | None = None
    doctor: tuple[str, ...] = ()
    ttftd: tuple[str, ...] | None = None


def shell(script: str) -> None:
    """Runs it; SystemExit with its words where it fails."""
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{script}: {done.returncode}\n{done.stdout}{done.stderr}")


def check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def keep_rights(kept: tuple[int, ...]) -> None:
    """Gives up all other capabilities, of this process."""
    mask = sum(1 << bit for bit in kept)
    sets = struct.pack("<6I", *(mask & 0xFFFFFFFF,) * 2, 0, *(mask >> 32,) * 2, 0)
    check(_libc.capset(struct.pack("<Ii", _CAPABILITY_VERSION, 0), sets))


def enter(netns: str) -> None:
    """Goes into a network namespace that `ip netns` made."""
    with open(f"/run/netns/{netns}", "rb") as file:
        check(_libc.setns(file.fileno(), _NEW["net"]))


def _leave(new: tuple[str, ...]) -> None:
    uid = os.geteuid()
    check(_libc.unshare(sum(_NEW[kind] for kind in {*new, "mnt"})))
    if "user" in new:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {uid} 1")
    if "pid" in new:
        child = os.fork()
        if child:
            signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    shell("mount --make-rprivate /")
    if "pid" in new:
        shell("mount -t proc proc /proc")


def fork(work: Callable[[], None], said: Path, setup: Setup | None = None) -> int:
    """Its process id; what it prints goes to `said`."""
    with said.open("wb") as file:
        pid = os.fork()
        if pid:
            return pid
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    status = 1
    try:
        if setup is not None:
            _leave(setup.new)
            if setup.prepare:
                shell(setup.prepare)
            if setup.memlock is not None:
                resource.setrlimit(resource.RLIMIT_MEMLOCK, (setup.memlock, setup.memlock))
            if setup.rights is not None:
                keep_rights(setup.rights)
        work()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
        if isinstance(ended.code, str):
            print(ended.code)
    except OSError as error:
        print(f"{setup}: {error}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(pid: int) -> int:
    """Its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def command(main: Callable[[], None], *words: str) -> Callable[[], None]:
    """A command of ours as it is when typed."""

    def run() -> None:
        sys.argv = [main.__name__, *words]
        main()

    return run


def ttft(*words: str) -> Callable[[], None]:
    return command(cli.main, *words)


def ttftd(name: str, *words: str) -> Callable[[], None]:
    place = ("--socket", f"/run/{name}.sock", "--state", f"/run/{name}")
    return command(cli.daemon_main, "run", *place, *words)


def settled(pid: int, said: Path) -> int | None:
    """None once it watches, or the exit status of one that did not come to it."""
    found: list[int] = []

    def there() -> bool:
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            found.append(os.waitstatus_to_exitcode(status))
        return bool(found) or _WATCHING in said.read_text()

    wait_for(there, _PATIENCE_S, f"the daemon: {said}", poll_s=0.1)
    return found[0] if found else None


def stop(pid: int) -> int:
    """Ends a daemon; its exit status."""
    os.kill(pid, signal.SIGTERM)
    return ended(pid)


def try_out(setup: Setup) -> None:
    """Leaves $OUT/NAME.doctor.json, and NAME.ttftd: its exit status, `runs` or what it said."""
    try:
        if setup.host:
            shell(setup.host)
        answer = OUT / f"{setup.name}.doctor.json"
        status = ended(fork(ttft("doctor", "--json", *setup.doctor), answer, setup))
        if status not in (0, 1):
            raise SystemExit(f"{setup.name}: ttft doctor ended with {status}: {answer.read_text()}")
        if setup.ttftd is not None:
            said = OUT / f"{setup.name}.said"
            pid = fork(ttftd(setup.name, *setup.ttftd), said, setup)
            failed = settled(pid, said)
            word = f"runs, {stop(pid)}" if failed is None else str(failed)
            (OUT / f"{setup.name}.ttftd").write_text(f"{word}\n{said.read_text()}")
    finally:
        if setup.after:
            shell(setup.after)
