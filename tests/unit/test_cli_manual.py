"""Man pages and completion scripts hold what the commands hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.unit.answer_cases import ARRIVAL, MS, spike, warm
from tests.unit.cli_runs import MAIN, ROOT, Runner
from tests.unit.fake_daemon import FakeDaemon, serving
from tests.unit.test_docs import commands
from tracer import cli
from tracer.commands import completion, manual
from tracer.config import SECTIONS


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    with serving(tmp_path_factory.mktemp("cli")) as running:
        running.backend.store.put([spike(19, ARRIVAL + 9000 * MS), warm(20)])
        yield running


def page(name: str) -> str:
    """The text of a man page, its escapes undone."""
    return (
        manual.files(cli.ttft, cli.ttftd)[name]
        .replace("\\-", "-")
        .replace("\\&", "")
        .replace("\\(dq", '"')
    )


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_and_option_has_its_place(name: str) -> None:
    text = page("share/man/man8/ttftd.8" if name == "ttftd run" else "share/man/man1/ttft.1")
    section = text if name == "ttft" else text.partition(f'.SS "{name}"\n')[2].partition("\n.S")[0]
    assert section
    for parameter in commands()[name].params:
        for option in () if getattr(parameter, "hidden", False) else parameter.opts:
            assert option in section or not option.startswith("-")


def test_hidden_commands_are_left_out() -> None:
    assert '"ttft manual"' not in page("share/man/man1/ttft.1")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_configuration_key_has_its_place(section: str) -> None:
    text = page("share/man/man5/ttft.toml.5")
    for key in SECTIONS[section].__struct_fields__:
        assert re.search(rf"\b{key}\b", text)


def test_roff_has_nothing_to_say_about_them(tmp_path: Path) -> None:
    groff = shutil.which("groff")
    for name, text in manual.files(cli.ttft, cli.ttftd).items():
        if "/man/" not in name:
            continue
        lines = text.splitlines()
        assert lines[0].startswith(".TH")
        known = (".TH", ".SH", ".SS", ".TP", ".PP", ".nf", ".fi")
        assert [at for at in lines if at[:1] in (".", "'") and at[:3] not in known] == []
        if groff is not None:
            ran = subprocess.run(
                [groff, "-man", "-ww", "-z", "-Tutf8"], input=text, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert (ran.returncode, ran.stderr) == (0, "")


def test_they_are_written_under_a_prefix(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert Runner(capfdbinary)("manual", str(tmp_path)).code == 0
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert there == set(manual.files(cli.ttft, cli.ttftd))
    (tmp_path / "share/man/man1/other.1").write_text("")
    assert Runner(capfdbinary)("manual", "--remove", str(tmp_path)).code == 0
    left = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert left == ["share/man/man1/other.1"]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_command_prints_the_script(
    capfdbinary: pytest.CaptureFixture[bytes], shell: str
) -> None:
    ran = Runner(capfdbinary)("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert f"_TTFT_COMPLETE={shell}_complete" in ran.out
    assert Runner(capfdbinary)("completion", "csh").code == 2


def complete(daemon: FakeDaemon, words: str, shell: str = "fish") -> list[str]:
    """What a shell is offered after these words; the last one is being typed."""
    given = words.split(" ")
    at = {"fish": given[-1], "bash": str(len(given) - 1)}[shell]
    ran = subprocess.run(
        [sys.executable, "-c", MAIN],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "TTFT_SOCKET": str(daemon.socket),
            "_TTFT_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": at,
        },
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.splitlines()


def test_words_are_completed(daemon: FakeDaemon) -> None:
    assert complete(daemon, "ttft sho", "bash") == ["plain,show"]
    assert complete(daemon, "ttft explain load.d", "bash") == ["plain,load.disk"]


def test_what_the_daemon_knows_is_offered(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_PATIENCE_S", 20.0)
    context = click.Context(cli.ttft)
    context.params["socket"] = str(daemon.socket)
    nothing = click.Option(["--model"])
    ids = completion.ids(context, nothing, "1")
    assert [(item.value, item.help) for item in ids] == [
        ("19", "beta 1.91 s load.disk"), ("17", "beta 1.91 s load.disk"),
    ]  # fmt: skip
    assert completion.ids(context, nothing, "9") == []
    assert [item.value for item in completion.models(context, nothing, "b")] == ["beta"]


def test_what_a_shell_would_obey_is_not_offered(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["good:7b", "$(reboot)", "a;b", "a\nb", "`x`", "-", "\u202e"]
    seen = [{"schema": 1, "model": name} for name in names]
    monkeypatch.setattr(completion, "_ask", lambda *_: seen)
    offered = completion.models(None, None, "")  # type: ignore[arg-type]
    assert [item.value for item in offered] == ["-", "good:7b"]


def test_nobody_to_ask_is_no_error(tmp_path: Path) -> None:
    nobody = FakeDaemon(tmp_path / "none", None, None)  # type: ignore[arg-type]
    assert complete(nobody, "ttft show ", "bash") == [""]
