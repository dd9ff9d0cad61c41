"""Man pages and completion scripts, made from the commands' own help, for packages to install."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from tracer import __version__
from tracer.commands import completion
from tracer.commands.shared import say
from tracer.config import SECTIONS
from tracer.service.host import shipped

_EXITS = (
    ("0", "Fine."),
    ("1", "It failed; standard error says what happened and what to do."),
    ("2", "Wrong usage."),
    ("3", "No daemon answers."),
)
_FILES = (
    ("/run/ttft/ttft.sock", "where the daemon answers; root and the group ttft may ask"),
    ("/etc/ttft/config.toml", "the configuration, see ttft.toml(5)"),
    ("/var/lib/ttft/history.db", "the history"),
)
_ENVIRONMENT = (
    ("TTFT_SOCKET", "The daemon's socket, as --socket gives it."),
    ("NO_COLOR", "Set to anything: no colours on a terminal."),
)
_PLACES = {
    "bash": ("share/bash-completion/completions", "{}"),
    "zsh": ("share/zsh/site-functions", "_{}"),
    "fish": ("share/fish/vendor_completions.d", "{}.fish"),
}


def install(prefix: Path, ttft: click.Group, ttftd: click.Group) -> None:
    """Write every file below `prefix`."""
    for name, text in files(ttft, ttftd).items():
        path = prefix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        say(str(path))


def remove(prefix: Path, ttft: click.Group, ttftd: click.Group) -> None:
    """Remove what `install` wrote; the folders may be others', too."""
    for name in files(ttft, ttftd):
        (prefix / name).unlink(missing_ok=True)
        say(str(prefix / name))


def files(ttft: click.Group, ttftd: click.Group) -> dict[str, str]:
    """Every file, by its path below the prefix."""
    found = {
        "share/man/man1/ttft.1": program("ttft", 1, ttft, "why was the first token slow?"),
        "share/man/man8/ttftd.8": program("ttftd", 8, ttftd, "watches local AI servers"),
        "share/man/man5/ttft.toml.5": configuration(),
    }
    for shell, (place, name) in _PLACES.items():
        for of in completion.PROGRAMS:
            found[f"{place}/{name.format(of)}"] = completion.script(shell, of)
    return found


def program(name: str, section: int, group: click.Group, what: str) -> str:
    """The man page of a program with commands."""
    context = click.Context(group, info_name=name)
    lines = [
        *_head(name, section, what),
        ".SH SYNOPSIS",
        *_synopsis(context),
        ".SH DESCRIPTION",
        *_help(group),
        *_options(context),
        ".SH COMMANDS",
    ]
    for command in _commands(group, context):
        lines += _command(command)
    lines += [".SH ENVIRONMENT", *_terms(_ENVIRONMENT), ".SH EXIT STATUS", *_terms(_EXITS)]
    lines += [".SH FILES", *_terms(_FILES), ".SH SEE ALSO"]
    lines.append("ttft(1), ttftd(8), ttft.toml(5); ttft explain CODE tells of each cause.")
    return _text(lines)


def _head(name: str, section: int, what: str) -> list[str]:
    title = f'.TH "{name.upper()}" "{section}" "" "ttft {__version__}" "ttft"'
    return [title, ".SH NAME", f"{_escape(name)} \\- {_escape(what)}"]


def _commands(group: click.Group, context: click.Context) -> Iterator[click.Context]:
    """Every command that is not hidden, those of groups too."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)
        else:
            yield inner


def _command(context: click.Context) -> list[str]:
    return [
        f'.SS "{_escape(context.command_path)}"',
        *_synopsis(context),
        ".PP",
        *_help(context.command),
        *_options(context),
    ]


def _synopsis(context: click.Context) -> list[str]:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return [f"\\fB{_escape(context.command_path)}\\fR {_escape(pieces)}"]


def _help(command: click.Command) -> list[str]:
    """Paragraphs; those click is told not to wrap (after \\b) stay as they are."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            body = paragraph.removeprefix("\b").strip("\n").splitlines()
            lines += [".PP", ".nf", *map(_escape, body), ".fi"]
        else:
            lines += [".PP", *map(_escape, paragraph.splitlines())]
    return lines[1:] if lines[:1] == [".PP"] else lines


def _options(context: click.Context) -> list[str]:
    found = []
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            found.append(record)
    return _terms(found)


def _terms(rows: Iterable[tuple[str, str]]) -> list[str]:
    lines = []
    for term, text in rows:
        lines += [".TP", f"\\fB{_escape(term)}\\fR", _escape(" ".join(text.split()))]
    return lines


def configuration() -> str:
    """The man page of the configuration: what each section means, and the file as shipped."""
    lines = [
        *_head("ttft.toml", 5, "configuration of ttftd"),
        ".SH SYNOPSIS",
        "/etc/ttft/config.toml",
        ".SH DESCRIPTION",
        "One TOML file, read at the start and at systemctl reload ttftd. Everything has a",
        "working default, and known servers are found without it.",
        "A wrong file is refused with its line and what is accepted there.",
        ".SH SECTIONS",
    ]
    for name, struct in SECTIONS.items():
        label = {"": "at the top", "server": "[[server]]"}.get(name, f"[{name}]")
        lines.append(f'.SS "{_escape(label)}"')
        text = inspect.getdoc(struct) or ""
        for paragraph in text.split("\n\n"):
            lines += [".PP", *map(_escape, re.sub(r"`([^`]*)`", r"\1", paragraph).splitlines())]
        keys = ", ".join(key for key in struct.__struct_fields__ if key not in SECTIONS)
        lines += [".PP", _escape(f"Keys: {keys}.")]
    lines += [".SH EXAMPLE", ".nf", *map(_escape, shipped("config.toml").splitlines()), ".fi"]
    lines += [".SH SEE ALSO", "ttftd(8), ttft(1)"]
    return _text(lines)


def _escape(text: str) -> str:
    """Text that roff takes as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
