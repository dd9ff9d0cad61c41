"""The daemon as its unit runs it: its own user, six capabilities, and systemd told of it all."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.workloads.ttftd import DAEMON, ROOT, ttft
from tracer import daemon
from tracer.client import Client
from tracer.config import Config
from tracer.errors import TtftError

pytestmark = pytest.mark.kernel

NOBODY, OUTSIDER = 65534, 65533
UNIT = (ROOT / "systemd" / "ttftd.service").read_text()
WATCHDOG_S = 1.5
TIMEOUT_S = 30.0


def capabilities() -> str:
    """The unit's, as setpriv writes them."""
    (line,) = re.findall(r"^AmbientCapabilities=(.*)$", UNIT, re.MULTILINE)
    return ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in line.split())])


class Service:
    """Stands in for systemd: starts the daemon as the unit does and reads what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.config.write_text("")
        self.socket = folder / "ttft.sock"
        self.log = folder / "log"
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind(str(folder / "notify"))
        self._manager.settimeout(TIMEOUT_S)
        for path in (folder, folder / "notify"):
            os.chown(path, NOBODY, NOBODY)
        given = capabilities()
        user = ("--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--no-new-privs")
        rights = (f"--inh-caps={given}", f"--ambient-caps={given}", f"--bounding-set={given}")
        where = ("--config", self.config, "--socket", self.socket, "--state", folder / "state")
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(folder / "notify"),
            "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["setpriv", *user, *rights, *DAEMON, "run", *map(str, where)],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def until(self, first: str) -> list[str]:
        """Its messages up to the one that begins so."""
        seen: list[str] = []
        while not seen or not seen[-1].startswith(first):
            try:
                seen.append(self._manager.recv(4096).decode())
            except TimeoutError:
                raise AssertionError(f"{first} did not come: {self.log.read_text()}") from None
        return seen

    def stop(self) -> int:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        status = self.process.wait(TIMEOUT_S)
        self._manager.close()
        return status


@pytest.fixture
def service() -> Iterator[Service]:
    folder = Path(tempfile.mkdtemp(prefix="ttft-service-"))
    folder.chmod(0o755)
    started = Service(folder)
    yield started
    if started.process.poll() is None:
        started.stop()
    shutil.rmtree(folder)


def test_from_start_to_stop(service: Service) -> None:
    """Ready once all is attached, alive while it lives, reloading, stopping."""
    assert service.until("READY=1") == [f"READY=1\nSTATUS=watching {watched(service)}"], (
        service.log.read_text()
    )
    status = Client(str(service.socket)).get("/v1/status")
    assert b'"attached":true' in status
    info = service.socket.stat()
    assert (info.st_uid, info.st_mode & 0o777) == (NOBODY, 0o660)
    assert {message.partition("\n")[0] for message in service.until("WATCHDOG=1")} <= {
        "WATCHDOG=1",
        f"STATUS=watching {watched(service)}",
    }

    service.config.write_text("[spike]\nmin_ms = 7.0\n")
    service.process.send_signal(signal.SIGHUP)
    assert service.until("RELOADING=1")[-1].startswith("RELOADING=1\nMONOTONIC_USEC=")
    service.until("READY=1")
    service.config.write_text("[spike]\nmin_ms = 'x'\n")
    service.process.send_signal(signal.SIGHUP)
    service.until("READY=1\nSTATUS=configuration not taken")
    log = service.log.read_text()
    assert "ttftd: configuration read again: spike changed\n" in log
    assert f"ttftd: configuration not taken, all stays as it was: {service.config}, line 2" in log

    service.process.terminate()
    service.until("STOPPING=1")
    assert service.process.wait(TIMEOUT_S) == 0
    assert not service.socket.exists()


def watched(service: Service) -> str:
    """As the status line counts servers: others may run on this machine."""
    servers = len(re.findall(rb'"port"', Client(str(service.socket)).get("/v1/status")))
    return f"{servers} server{'' if servers == 1 else 's'}"


def test_a_daemon_that_hangs_says_nothing(service: Service) -> None:
    service.until("WATCHDOG=1")
    service.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, service.process.pid, os.WSTOPPED)
    service._manager.settimeout(2 * WATCHDOG_S)
    with pytest.raises(AssertionError, match="did not come"):
        while True:  # what it had said before it hung
            service.until("WATCHDOG=1")
    service._manager.settimeout(TIMEOUT_S)
    service.process.send_signal(signal.SIGCONT)
    service.until("WATCHDOG=1")


def as_outsider(work: Callable[[], object]) -> str:
    """The error that `work` ends with in a child of another user, without any right."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(OUTSIDER, OUTSIDER, OUTSIDER)
            os.setresuid(OUTSIDER, OUTSIDER, OUTSIDER)
            work()
        except TtftError as error:
            os.write(write, f"{error.message}\n{error.hint}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text


def test_whoever_has_no_rights_is_told() -> None:
    said = as_outsider(lambda: daemon.run(Config()))
    assert said == "ttftd must run as root\nstart it with sudo, or as the ttftd service"


def test_an_outsider_is_told_how_to_get_in(service: Service) -> None:
    service.until("READY=1")
    assert ttft("status", socket=service.socket).returncode == 0, "root may"
    said = as_outsider(lambda: Client(str(service.socket)).get("/v1/status"))
    assert said.startswith(f"no permission to use {service.socket}\n")
    assert "usermod -aG ttft" in said
