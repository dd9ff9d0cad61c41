"""The commands, run as a user runs them, against a real socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.answer_cases import spike
from tests.unit.cli_runs import MAIN, ROOT, Runner
from tests.unit.fake_daemon import REQUESTS, FakeDaemon
from tracer import answers, cli

DAEMON = "from tracer.cli import daemon_main; daemon_main()"


def whole(index: int) -> Any:
    item = REQUESTS[index]
    return orjson.loads(answers.dumps({**answers.answer(item), **answers.detail(item)}))


def test_requests(ask: Runner) -> None:
    ran = ask("requests", "--json")
    expected = [orjson.loads(answers.dumps(answers.answer(item))) for item in REQUESTS]
    assert (ran.code, ran.json, ran.err) == (0, expected, "")
    assert [item["id"] for item in ask("requests", "--last", "1", "--json").json] == [18]
    none = "No requests for none. ttft status says what is watched.\n"
    assert ask("requests", "--model", "none").out == none
    assert [text.split()[0] for text in ask("requests").out.splitlines()[2:]] == ["16", "17", "18"]


def test_spikes(ask: Runner) -> None:
    assert [item["id"] for item in ask("spikes", "--json").json] == [17]
    assert "load.disk; caused by the switch from alpha" in ask("spikes", "--since", "36500d").out


def test_show(ask: Runner) -> None:
    assert ask("show", "17", "--json").json == whole(1)
    assert "cause         load.disk; more: ttft explain load.disk" in ask("show", "17").out
    assert ask("show", "#17").out == ask("show", "17").out
    assert ask("export", "#17", "-o", "-").out == ask("export", "17", "-o", "-").out
    ran = ask("show", "99")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "ttft: no request 99\nhint: ttft requests lists those that are kept\n"


def test_status_and_models(ask: Runner) -> None:
    assert ask("status", "--json").json["lost"] == {"span": 0, "packet": 3}
    assert "llama-server:8080" in ask("status").out
    assert [item["model"] for item in ask("models", "--json").json] == ["beta", "alpha"]
    assert "held by process 102" in ask("models").out


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["requests"],
        ["spikes"],
        ["show", "1"],
        ["models"],
        ["watch"],
        ["spikes", "--summary"],
        ["export", "1", "-o", "-"],
        ["record", "-o", "x"],
    ],
)
def test_without_a_daemon(tmp_path: Path, run: Runner, arguments: list[str]) -> None:
    path = tmp_path / "none.sock"
    ran = run("--socket", str(path), *arguments)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == (
        f"ttft: no daemon answers on {path}\n"
        "hint: is this the daemon's socket? It is named by --socket or TTFT_SOCKET\n"
    )


def test_without_the_daemon_that_nobody_named(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TTFT_SOCKET", raising=False)
    monkeypatch.setattr("tracer.commands.shared.DEFAULT_SOCKET", "/no/such.sock")
    for named in ((), ("--socket", "/no/such.sock")):
        assert run(*named, "status").err == (
            "ttft: no daemon answers on /no/such.sock\n"
            "hint: start it with: sudo systemctl start ttftd (or: sudo ttftd run)\n"
        )
    monkeypatch.setenv("TTFT_SOCKET", "/no/other.sock")
    assert "hint: is this the daemon's socket?" in run("status").err


def test_a_daemon_that_does_not_answer(
    tmp_path: Path, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracer.client.TIMEOUT_S", 0.2)
    monkeypatch.setattr("tracer.commands.shared.client.__defaults__", (0.2,))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        ran = run("--socket", str(tmp_path / "s"), "status")
    assert ran.code == 3
    assert "did not answer" in ran.err


@pytest.mark.parametrize(
    "reply", [b"SSH-2.0-x\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{]"]
)
def test_another_program_on_the_socket(tmp_path: Path, run: Runner, reply: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        pid = os.fork()
        if pid == 0:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(reply)
            connection.close()
            os._exit(0)
        ran = run("--socket", str(tmp_path / "s"), "status")
        os.waitpid(pid, 0)
    assert (ran.code, ran.out) == (1, "")
    assert "\nhint: " in ran.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["show"], "Missing argument 'ID'"),
        (["show", "x"], "Invalid value for 'ID'"),
        (["requests", "--last", "0"], "Invalid value for '--last'"),
        (["requests", "--since", "3"], "not a duration: '3'; give a number with ms, s, m, h or d"),
        (["export", "-o", "x"], "give an ID or --since, one of them"),
        (["export", "1", "--since", "1h", "-o", "x"], "give an ID or --since, one of them"),
        (["export", "1"], "Missing option '--output'"),
        (["status", "--nope"], "No such option"),
        (["show", "abc"], "'abc' is not a valid number."),
        (["show", "##8"], "'#8' is not a valid number."),
        (["requests", "--last", "x"], "'x' is not a valid number."),
        (["completion"], "Choose from: bash, zsh, fish\n"),
        (["spike"], "No such command 'spike'; did you mean spikes?"),
        (["modles"], "did you mean models?"),
    ],
)
def test_wrong_usage(run: Runner, arguments: list[str], error: str) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert error in ran.err
    assert "\nhint: see: ttft" in ran.err


@pytest.mark.parametrize("command", [["status"], ["show", "1"], ["service", "status"]])
def test_where_the_socket_is_named(run: Runner, command: list[str]) -> None:
    ran = run(*command, "--socket", "/x")
    assert (ran.code, ran.out) == (2, "")
    name = " ".join(word for word in command if word != "1")
    assert f"hint: --socket goes before the command: ttft --socket PATH {name}\n" in ran.err


@pytest.mark.parametrize("socket", ["", " "])
@pytest.mark.parametrize("command", ["status", "doctor", "explain"])
def test_an_empty_name_of_a_socket_is_no_socket(run: Runner, command: str, socket: str) -> None:
    ran = run("--socket", socket, command)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("ttft: --socket is empty\nhint: leave it out")


@pytest.mark.parametrize("name", [None, *cli.COMMANDS])
def test_help_fits_and_has_examples(run: Runner, name: str | None) -> None:
    ran = run(*([name] if name else []), "--help")
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "Example" in ran.out or name is None


def test_alone_it_prints_help_and_is_wrong_usage(run: Runner) -> None:
    ran = run()
    assert ran.code == 2
    assert "Why was the first token slow?" in ran.err


def test_every_listing_takes_json() -> None:
    for name in ("status", "requests", "spikes", "show", "models", "replay", "doctor"):
        command = cli.ttft.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        assert "as_json" in {parameter.name for parameter in command.params}


def test_doctor_needs_no_daemon(run: Runner, tmp_path: Path) -> None:
    ran = run("--socket", str(tmp_path / "none"), "doctor", "--json")
    found = {fact["name"]: fact for fact in ran.json["facts"]}
    assert ran.json["daemon"] is False
    assert found["daemon"]["ok"] is None
    assert "kernel" in found
    assert ran.code == (0 if ran.json["ok"] else 1)
    assert all(len(text) <= 80 for text in run("doctor").out.splitlines())


def test_doctor_asked_about_a_file_that_is_not_there(run: Runner, tmp_path: Path) -> None:
    ran = run("--socket", str(tmp_path / "none"), "doctor", "--btf", "/nope", "--json")
    found = {fact["name"]: fact for fact in ran.json["facts"]}["BTF"]
    assert (ran.code, found["ok"], found["value"]) == (1, False, "no /nope")
    assert found["advice"] == "give a file that holds the types of this kernel, or leave --btf out"


def test_doctor_takes_the_daemons_word_first(ask: Runner) -> None:
    ran = ask("doctor", "--json")
    found = {fact["name"]: fact for fact in ran.json["facts"]}
    assert (ran.code, ran.json["daemon"], ran.json["ok"]) == (1, True, False)
    assert found["kernel"]["value"] == "6.18.0"
    assert found["daemon"]["ok"] is True


def test_a_closed_pipe_is_quiet(daemon: FakeDaemon) -> None:
    command = f"{sys.executable} -c '{MAIN}' --socket {daemon.socket} show 17 --json | head -1"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (ran.stdout, ran.stderr) == ("{\n", "")


def test_an_ascii_terminal_gets_ascii(daemon: FakeDaemon) -> None:
    daemon.backend.store.put([spike(30)])
    ran = subprocess.run(
        [sys.executable, "-c", MAIN, "--socket", daemon.socket, "show", "30"],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert ran.returncode == 0
    assert b"####" in ran.stdout


def test_spikes_imports_little() -> None:
    program = (
        "import sys\n"
        "from tracer.cli import ttft\n"
        "from tracer.commands import shared\n"
        "shared.run(ttft, 'ttft', ['--socket', '/none', 'spikes'])\n"
        "print(*sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    loaded = {name.partition(".")[0] for name in ran.stdout.split()}
    assert not loaded & {"msgspec", "asyncio", "starlette", "uvicorn", "sqlite3", "rich", "anyio"}


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["run", "--config", "/no/such.toml"], 1, "ttftd: /no/such.toml: no such file"),
        (["run", "--socket", "/" + "x" * 200], 1, "longer than the 107 bytes"),
        (["run", "--socket", ""], 1, "--socket is empty"),
        (["run", "--state", " "], 1, "--state is empty"),
        (["run", "--config", ""], 1, "--config is empty"),
        (["run", "--config", "/dev/zero"], 1, "longer than 1048576 bytes"),
        (["run", "--nope"], 2, "No such option"),
    ],
)
def test_the_daemons_options(arguments: list[str], code: int, error: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DAEMON, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (code, "")
    assert error in ran.stderr
    assert "Traceback" not in ran.stderr
