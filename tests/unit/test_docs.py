"""README.md and docs/ tell of everything a user can type, set or be told."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tracer import api, cli
from tracer.codes import TABLE
from tracer.config import SECTIONS
from tracer.derived import PHASES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LISTED = (ROOT / "docs" / "causes" / "README.md").read_text()
API = (ROOT / "docs" / "api.md").read_text()
WORDS = set(re.findall(r"-{0,2}[a-z_]+(?:-[a-z]+)*", README))


def commands() -> dict[str, click.Command]:
    """Every command by what is typed."""
    return below("ttft", cli.ttft) | {"ttftd run": cli.run, "ttft": cli.ttft}


def below(typed: str, group: click.Group) -> dict[str, click.Command]:
    """The commands of a group and of the groups in it."""
    context = click.Context(group)
    found: dict[str, click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        whole = f"{typed} {name}"
        found |= below(whole, command) if isinstance(command, click.Group) else {whole: command}
    return found


@pytest.mark.parametrize("name", commands())
def test_every_command_is_documented(name: str) -> None:
    assert f"`{name}" in README or f"    {name}" in README


@pytest.mark.parametrize("name", commands())
def test_every_option_is_documented(name: str) -> None:
    options = [
        option
        for parameter in commands()[name].params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
    ]
    assert [option for option in options if option not in WORDS] == []


def test_documented_options_exist() -> None:
    known = {
        option for command in commands().values() for item in command.params for option in item.opts
    } | {"--help"}
    rows = re.findall(r"^\| `(ttftd? [^`]*)`", README, re.MULTILINE)
    assert len(rows) == len(commands()) - 1
    for row in rows:
        assert set(re.findall(r"--[a-z-]+", row)) <= known, row


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_is_documented(phase: str) -> None:
    assert f"| `{phase}` | " in README


@pytest.mark.parametrize("code", [code.code for code in TABLE if code.what != "phase"])
def test_every_code_is_documented(code: str) -> None:
    assert f"[`{code}`]({code}.md)" in LISTED


def test_documented_codes_exist() -> None:
    known = {code.code for code in TABLE}
    named = set(re.findall(r"`((?:[a-z]+\.)[a-z_0-9]+)`", README.partition("## Phases")[2]))
    assert named - known - {"span.half"} == set()


@pytest.mark.parametrize("section", SECTIONS)
def test_every_configuration_key_is_documented(section: str) -> None:
    fields = SECTIONS[section].__struct_fields__
    header = f"[[{section}]]" if section in ("server", "library") else f"[{section}]"
    assert not section or header in README.split()
    assert [field for field in fields if field not in WORDS] == []


@pytest.mark.parametrize("path", api.ROUTES)
def test_every_path_is_documented(path: str) -> None:
    assert f"`{path}" in API


def test_no_link_leads_nowhere() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", README)
    assert [
        link for link in links if not link.startswith("https://") and not (ROOT / link).exists()
    ] == []
