"""The daemon under test, with a socket and a history of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.workloads.waiting import prefer, wait_for
from tracer.client import Client
from tracer.errors import TtftError

Json = dict[str, Any]

START_S = 15.0
STOP_S = 15.0
ROOT = Path(__file__).parents[2]
DAEMON = (sys.executable, "-c", "from tracer.cli import daemon_main; daemon_main()")
UNIT_NICE = 0  # as systemd/ttftd.service has it
CLIENT = (sys.executable, "-c", "from tracer.cli import main; main()")


def ttft(*args: str, socket: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command `ttft`, against one daemon's socket where it needs one."""
    env = os.environ | ({} if socket is None else {"TTFT_SOCKET": str(socket)})
    return subprocess.run(
        [*CLIENT, *args], cwd=ROOT, env=env, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


class Ttftd:
    """A running daemon; `with` starts it, waits until it answers, and ends it."""

    def __init__(self, folder: Path, config: str = "", nice: int = 0) -> None:
        """`folder` gets socket, state, configuration and log."""
        self._nice = nice
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.socket = folder / "ttft.sock"
        self.state = folder / "state"
        self.log = folder / "ttftd.log"
        self._config = folder / "config.toml"
        self._config.write_text(config)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def command(self) -> list[str]:
        """How it is started."""
        where = ("--config", self._config, "--socket", self.socket, "--state", self.state)
        return [*DAEMON, "run", *map(str, where)]

    def start(self) -> None:
        """Starts it and waits until its socket answers and its probes are attached."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        if self._nice:
            prefer(self.pid, self._nice)
        wait_for(self._ready, START_S, f"ttftd; see {self.log}")

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"ttftd ended: {self.log.read_text()}")
        try:
            probes = self.get("/v1/status")["probes"]
        except TtftError:
            return False
        return all(probe["attached"] for probe in probes if probe["required"])

    def get(self, path: str, **query: object) -> Any:
        """The JSON that the socket answers."""
        return json.loads(Client(str(self.socket)).get(path, query))

    def requests(self, last: int = 10_000) -> list[Json]:
        """Requests, oldest first, each once (a slow answer is first listed open)."""
        return sorted(self.get("/v1/requests", last=last), key=lambda item: int(item["id"]))

    def explained(self, sent: Sequence[SentTo], timeout_s: float = 15.0) -> list[Json]:
        """The answer for each of these requests, once all of them are over."""
        found: list[Json] = []

        def all_over() -> bool:
            found[:] = [item for item in matched(self.requests(), sent) if item is not None]
            return len(found) == len(sent) and all(one["outcome"] != "open" for one in found)

        wait_for(all_over, timeout_s, f"{len(sent)} explained requests", 0.05)
        return found

    def wait_server(self, port: int, timeout_s: float = 15.0) -> None:
        """Waits until the server on this port is watched."""

        def watched() -> bool:
            return any(one["port"] == port for one in self.get("/v1/status")["servers"])

        wait_for(watched, timeout_s, f"the server on port {port} to be watched")

    @contextlib.contextmanager
    def recording(self, path: Path) -> Iterator[None]:
        """Records all that happens inside the block to a file."""
        command = [*CLIENT, "--socket", str(self.socket), "record", "-o", str(path)]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
        try:
            began = path_has_bytes(path)
            wait_for(began, START_S, f"{path} to begin")
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_S)

    def stop(self) -> None:
        """Asks it to end and waits; kills it if it does not."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            self._process = None

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def __enter__(self) -> Ttftd:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def path_has_bytes(path: Path) -> Callable[[], bool]:
    """A condition: the file is there and not empty."""
    return lambda: path.exists() and path.stat().st_size > 0


class SentTo(Protocol):
    """A request as its client knows it: when it was sent, and to which port."""

    @property
    def sent_ns(self) -> int: ...
    @property
    def port(self) -> int: ...


def matched(
    requests: Sequence[Json], sent: Sequence[SentTo], slack_ns: int = 5_000_000
) -> list[Json | None]:
    """The answer for each request: the first that arrived there after it was sent.

    Arrival and sending are on one clock; `slack_ns` allows for what is between the two.
    Other servers of the machine are watched too, so the port has to be right.
    """
    ordered = sorted(requests, key=lambda item: int(item["at_ns"]["arrival"]))

    def first(one: SentTo) -> Json | None:
        return next(
            (
                item
                for item in ordered
                if item["server"].endswith(f":{one.port}")
                and 0 <= item["at_ns"]["arrival"] - one.sent_ns <= slack_ns
            ),
            None,
        )

    return [first(one) for one in sent]
