"""Whatever is typed and whoever answers: what happened, what to do, and the right exit code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from tests.unit.cli_runs import ROOT, Ran, Runner
from tests.unit.fake_daemon import FakeDaemon, serving
from tracer.store import Store

ASKING = [
    ["status"],
    ["requests"],
    ["spikes"],
    ["spikes", "--summary"],
    ["show", "1"],
    ["models"],
    ["watch"],
    ["export", "1", "-o", "-"],
]


def refused(ran: Ran, code: int, *words: str) -> None:
    """It failed with that code, and said what and a hint in a few lines."""
    assert (ran.code, ran.out) == (code, "")
    assert "\nhint: " in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err) < 600
    for word in words:
        assert word in ran.err


@pytest.mark.parametrize("number", ["99", "0", str(10**17), str(10**30)])
@pytest.mark.parametrize("command", [["show"], ["export", "-o", "-"]])
def test_an_id_that_is_not_there(ask: Runner, command: list[str], number: str) -> None:
    refused(ask(*command, number), 1)


@pytest.mark.parametrize("number", ["-1", "x", "1.5", "\uff11\uff12x", ""])
def test_what_is_no_id(ask: Runner, number: str) -> None:
    refused(ask("show", "--", number), 2, "Invalid value for 'ID'")


@pytest.mark.parametrize(
    "since", ["", "0s", "-1h", "1e9d", "99999999d", "9" * 400 + "d", "1h ", "\u0661h", "yesterday"]
)
@pytest.mark.parametrize("command", ["requests", "spikes", "export"])
def test_an_absurd_since(ask: Runner, command: str, since: str) -> None:
    output = ["-o", "-"] if command == "export" else []
    refused(ask(command, "--since", since, *output), 2, "ms, s, m, h or d")


@pytest.mark.parametrize("last", ["0", "-3", "10001", "x", "1e3"])
@pytest.mark.parametrize("command", ["requests", "spikes"])
def test_an_absurd_last(ask: Runner, command: str, last: str) -> None:
    refused(ask(command, "--last", last), 2, "--last")


def test_an_empty_history(tmp_path: Path, run: Runner) -> None:
    Store(tmp_path / "empty.db").close()
    with serving(tmp_path, requests=()) as running:
        ask = ["--socket", str(running.socket)]
        told = "No requests. ttft status says what is watched.\n"
        assert run(*ask, "requests").out == told
        assert run(*ask, "requests", "--json").json == []
        assert run(*ask, "spikes", "--json").json == []
        summed = run(*ask, "spikes", "--summary", "--json").json
        assert (summed["requests"], summed["by_cause"], summed["by_model"]) == (0, [], [])
        assert run(*ask, "spikes").out.startswith("No requests in the last 24h.")
        refused(run(*ask, "show", "1"), 1, "no request 1")
        refused(run(*ask, "export", "--since", "1h", "-o", "-"), 1, "no requests in the last 1h")


@pytest.mark.parametrize("arguments", ASKING, ids=" ".join)
def test_somebody_outside_the_group(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with serving(folder) as running:
            running.socket.chmod(0o660 if os.geteuid() == 0 else 0)
            ran = as_nobody("--socket", str(running.socket), *arguments)
    refused(ran, 1, "no permission to use", "usermod -aG ttft")


# The interpreter itself may lie where only root may look, so all is imported before.
AS_NOBODY = """
import difflib, importlib, os, http.client
from tracer import cli, client, recording, summary
for module in set(cli.COMMANDS.values()):
    importlib.import_module(f"tracer.commands.{module}")
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
cli.main()
"""


def as_nobody(*arguments: str) -> Ran:
    ran = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@contextmanager
def answering(folder: Path, status: int, body: bytes) -> Iterator[Path]:
    """A daemon of another version, which says this to everything."""
    path = folder / "other.sock"
    reply = b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    if not connection.recv(65536):
                        return
                    connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join()


@pytest.mark.parametrize("arguments", ASKING, ids=" ".join)
def test_an_older_daemon(tmp_path: Path, run: Runner, arguments: list[str]) -> None:
    body = orjson.dumps({"schema": 1, "error": "not found", "hint": "there is: /v0"})
    with answering(tmp_path, 404, body) as path:
        ran = run("--socket", str(path), *arguments)
    refused(ran, 1, "it is older than ttft", "systemctl restart ttftd")


@pytest.mark.parametrize("arguments", [a for a in ASKING if a[0] != "export"], ids=" ".join)
@pytest.mark.parametrize(
    ("schema", "words"), [(2, "ttft is older than ttftd"), (0, "ttftd is older than ttft")]
)
def test_another_schema(
    tmp_path: Path, run: Runner, arguments: list[str], schema: int, words: str
) -> None:
    body = orjson.dumps([{"schema": schema}])
    with answering(tmp_path, 200, body) as path:
        ran = run("--socket", str(path), *arguments)
    refused(ran, 1, words, "update ttft")


@pytest.mark.parametrize("body", [b"[1]", b"7", b'"x"', b"{}", b'[{"id": 1}]', b"null"])
def test_another_program(tmp_path: Path, run: Runner, body: bytes) -> None:
    with answering(tmp_path, 200, body) as path:
        refused(run("--socket", str(path), "status"), 1, "not one of ttftd")


def test_spikes_without_a_summary_still_lists(
    daemon: FakeDaemon, ask: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracer.client import Client, UnknownPath

    whole = Client.get

    def older(self: Client, path: str, query: dict[str, object] | None = None) -> bytes:
        if path == "/v1/summary":
            raise UnknownPath("this ttftd does not know /v1/summary: it is older than ttft")
        return whole(self, path, query)

    monkeypatch.setattr(Client, "get", older)
    ran = ask("spikes")
    assert (ran.code, ran.out.split()[0]) == (0, "#17")
    assert "no summary: this ttftd does not know" in ran.err


@pytest.mark.parametrize("place", ["/proc/none/x", "/none/x", "{folder}", "/dev/null/x"])
def test_output_that_cannot_be_written(ask: Runner, tmp_path: Path, place: str) -> None:
    ran = ask("export", "17", "-o", place.format(folder=tmp_path))
    refused(ran, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(ask: Runner) -> None:
    refused(ask("export", "17", "-o", "/dev/full"), 1, "No space left on device")
