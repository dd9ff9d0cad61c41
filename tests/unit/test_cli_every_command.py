"""Every command in every bad situation: exit code, what happened, a hint; never a traceback."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import orjson
import pytest

from tests.unit.cli_runs import Ran, Runner
from tests.unit.fake_daemon import serving
from tests.unit.test_cli_bad_input import answering, as_nobody
from tracer import cli

ARGUMENTS = {
    "status": [], "requests": [], "spikes": [], "show": ["1"], "models": [], "watch": [],
    "report": ["-o", "{folder}/report.html"], "export": ["1", "-o", "{folder}/trace.json"],
    "record": ["-o", "{folder}/new.ttft", "--for", "1s"], "replay": ["{folder}/none.ttft"],
    "explain": ["load.disc"], "doctor": ["--btf", "{folder}/none"], "completion": ["tcsh"],
    "service": ["begin"],
}  # fmt: skip
"""Of each command; of those that ask no daemon something that is wrong by itself."""
ALONE = {
    "replay": (1, "none.ttft: No such file"), "explain": (1, "load.disc"),
    "completion": (2, "tcsh"), "service": (2, "begin"),
}  # fmt: skip
"""What these say whoever answers."""
ASKING = [name for name in ARGUMENTS if name not in (*ALONE, "doctor")]
OLDER = orjson.dumps({"schema": 1, "error": "not found", "hint": "there is: /v0"})


@contextmanager
def nobody(folder: Path) -> Iterator[Path]:
    yield folder / "none.sock"


@contextmanager
def a_folder(folder: Path) -> Iterator[Path]:
    yield folder


@contextmanager
def a_file(folder: Path) -> Iterator[Path]:
    (folder / "file").write_text("")
    yield folder / "file"


@contextmanager
def nothing_yet(folder: Path) -> Iterator[Path]:
    (folder / "empty").mkdir()
    with serving(folder / "empty", requests=()) as running:
        yield running.socket


def says(status: int, body: bytes) -> Callable[[Path], AbstractContextManager[Path]]:
    return lambda folder: answering(folder, status, body)


RESTART, UPDATE = "systemctl restart ttftd", "update ttft"
NOT_OURS = "is another program listening"
SITUATIONS: dict[str, tuple[Callable[[Path], AbstractContextManager[Path]], int, str, str]] = {
    "no daemon": (nobody, 3, "no daemon answers", "is this the daemon's socket"),
    "a folder": (a_folder, 3, "no daemon answers", "is this the daemon's socket"),
    "a file": (a_file, 3, "no daemon answers", "is this the daemon's socket"),
    "an older daemon": (says(404, OLDER), 1, "it is older than ttft", RESTART),
    "an older schema": (says(200, b'[{"schema":0}]'), 1, "ttftd is older than ttft", UPDATE),
    "a newer schema": (says(200, b'[{"schema":2}]'), 1, "ttft is older than ttftd", UPDATE),
    "a later error": (says(500, b"<html>"), 1, "", ""),
    "not JSON": (says(200, b"hello"), 1, "", NOT_OURS),
    "other JSON": (says(200, b'{"a":1}'), 1, "", NOT_OURS),
}
"""Who is asked, the exit code, what is said, the hint."""


def refused(ran: Ran, code: int, said: str, hint: str) -> None:
    assert (ran.code, ran.out) == (code, ""), ran.err
    *_, message, last = ran.err.strip().split("\n")
    assert message.startswith("ttft: ")
    assert last.startswith("hint: ")
    assert said in message
    assert hint in last
    assert "Traceback" not in ran.err
    assert len(ran.err) < 600


def arguments_of(name: str, folder: Path) -> list[str]:
    return [name, *(one.format(folder=folder) for one in ARGUMENTS[name])]


def test_every_command_is_tried() -> None:
    assert set(ARGUMENTS) == set(cli.COMMANDS)


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_whoever_is_asked(run: Runner, tmp_path: Path, name: str, situation: str) -> None:
    who, code, said, hint = SITUATIONS[situation]
    with who(tmp_path) as path:
        before = sorted(tmp_path.iterdir())
        refused(run("--socket", str(path), *arguments_of(name, tmp_path)), code, said, hint)
        assert sorted(tmp_path.iterdir()) == before, "a file of nothing is none"


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("situation", ["no daemon", "an older daemon", "a newer schema"])
def test_what_asks_nobody(run: Runner, tmp_path: Path, name: str, situation: str) -> None:
    who, code, said, _ = SITUATIONS[situation]
    code, said = ALONE[name]
    with who(tmp_path) as path:
        refused(run("--socket", str(path), *arguments_of(name, tmp_path)), code, said, "")


@pytest.mark.parametrize("situation", SITUATIONS)
def test_doctor_looks_itself_where_nobody_answers(
    run: Runner, tmp_path: Path, situation: str
) -> None:
    who, *_ = SITUATIONS[situation]
    with who(tmp_path) as path:
        ran = run("--socket", str(path), *arguments_of("doctor", tmp_path), "--json")
    assert ran.json["daemon"] is False
    assert (ran.code, ran.json["ok"]) == (1, False)
    assert "Traceback" not in ran.err


EMPTY: dict[str, tuple[int, str]] = {
    "status": (0, "ttftd"), "requests": (0, "No requests."), "spikes": (0, "No requests"),
    "models": (0, ""), "show": (1, "no request 1"), "export": (1, "no request 1"),
    "report": (1, "there are no requests yet"),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_happened_yet(run: Runner, tmp_path: Path, name: str) -> None:
    code, said = EMPTY[name]
    with nothing_yet(tmp_path) as path:
        ran = run("--socket", str(path), *arguments_of(name, tmp_path))
    if code:
        refused(ran, code, said, "")
    else:
        assert (ran.code, ran.err) == (0, "")
        assert said in ran.out


@pytest.mark.parametrize("name", ASKING)
def test_somebody_outside_the_group(name: str) -> None:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        folder.chmod(0o755)
        with serving(folder) as running:
            running.socket.chmod(0o660 if os.geteuid() == 0 else 0)
            ran = as_nobody("--socket", str(running.socket), *arguments_of(name, folder))
    refused(ran, 1, "no permission to use", "usermod -aG ttft")


SINCE = ("", "0s", "-1h", "1e9d", "99999999d", "9" * 400 + "d", "yesterday", "\u0661h", "nan")


@pytest.mark.parametrize("since", SINCE)
@pytest.mark.parametrize("name", ["requests", "spikes", "export", "report", "record"])
def test_an_absurd_time(ask: Runner, tmp_path: Path, name: str, since: str) -> None:
    option = "--for" if name == "record" else "--since"
    output = [] if name in ("requests", "spikes") else ["-o", str(tmp_path / "x")]
    refused(ask(name, option, since, *output), 2, "ms, s, m, h or d", "ttft")


@pytest.mark.parametrize("name", ["report", "export", "record"])
@pytest.mark.parametrize("where", ["{folder}", "{folder}/no/x", "/proc/none/x", "/dev/full"])
def test_an_output_that_cannot_be_written(
    ask: Runner, tmp_path: Path, name: str, where: str
) -> None:
    arguments = arguments_of(name, tmp_path)
    arguments[arguments.index("-o") + 1] = where.format(folder=tmp_path)
    if name == "export":
        arguments[1] = "17"
    if name == "report":
        arguments += ["--since", "36500d"]
    refused(ask(*arguments), 1, "", "")
    assert list(tmp_path.iterdir()) == []
