"""The documents name every command, option, code, key and path there is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from msgspec.structs import replace

from tracer import codes, config
from tracer.api import ROUTES
from tracer.cli import COMMANDS, ttft, ttftd

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def options(group: click.Command) -> Iterator[str]:
    """Long options of a command and of those under it."""
    for parameter in group.params:
        if isinstance(parameter, click.Option):
            yield from (name for name in parameter.opts if name.startswith("--"))
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from options(command)


@pytest.mark.parametrize("name", COMMANDS)
def test_command(name: str) -> None:
    assert re.search(rf"^\| `ttft {name}\b", README, re.MULTILINE)


@pytest.mark.parametrize("option", sorted({*options(ttft), *options(ttftd)}))
def test_option(option: str) -> None:
    assert re.search(rf"{option}\b", README)


@pytest.mark.parametrize("code", codes.TABLE, ids=lambda code: f"{code.what} {code.code}")
def test_code(code: codes.Code) -> None:
    mark = "**" if code.what == "phase" else ""
    assert f"| {mark}`{code.code}`{mark} | {code.meaning} |" in README


def test_configuration() -> None:
    block = README.split("```toml\n", 1)[1].split("```", 1)[0]
    text = re.sub(r"^# (\w+ = )", r"\1", block, flags=re.MULTILINE)
    parsed = config.parse(text.encode(), "README.md")
    given = tomllib.loads(text)
    named = {key for key in given if key not in config.SECTIONS}
    for section in config.SECTIONS.keys() & given.keys():
        table = given[section][0] if section == "server" else given[section]
        named |= {section, *(f"{section}.{field}" for field in table)}
    assert named == set(config.keys())
    # What is shown is the default, but for the server and the ring sizes, which have none.
    default = config.Config()
    rings = {"ring_kb": None, "packet_ring_kb": None}
    assert replace(parsed, server=(), probes=replace(parsed.probes, **rings)) == default


@pytest.mark.parametrize("path", ROUTES)
def test_path(path: str) -> None:
    assert f"`{path}`" in README


def test_links_lead_somewhere() -> None:
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
            assert (ROOT / target).exists(), f"{document.name}: {target}"
