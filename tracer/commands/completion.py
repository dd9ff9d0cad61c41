"""`ttft completion`: the script that a shell needs to complete our commands, and what it offers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from tracer.commands.shared import client, decode, write
from tracer.errors import TtftError
from tracer.render_units import duration, fit

if TYPE_CHECKING:
    from tracer.render import Json

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ("ttft", "ttftd")

_PATIENCE_S = 0.5
_OFFERED = 30
# Whoever sends requests names models: only what no shell would read as more than a word.
_WORD = re.compile(r"[A-Za-z0-9_.:/@+-]{1,200}")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--program", type=click.Choice(PROGRAMS), default="ttft", help="For which program.")
def completion(shell: str, program: str) -> None:
    """The script that lets a shell complete commands, options, ids and models.

    A package installs it for all; these lines do it for one user.

    \b
    Examples:
      bash  echo 'eval "$(ttft completion bash)"' >> ~/.bashrc
      zsh   echo 'eval "$(ttft completion zsh)"' >> ~/.zshrc
      fish  ttft completion fish > ~/.config/fish/completions/ttft.fish
    """
    write(script(shell, program).encode())


def script(shell: str, program: str) -> str:
    """The completion script of one program for one shell."""
    found = get_completion_class(shell)
    assert found is not None
    made = found(click.Command(program), {}, program, f"_{program.upper()}_COMPLETE")
    # `source()` would run the bash that is here, which need not be the one that reads it.
    return str(made.source_template % made.source_vars()) + "\n"


def ids(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    """Numbers of requests that were slow, the newest first."""
    return [
        CompletionItem(str(answer["id"]), help=_about(answer))
        for answer in reversed(_ask(context, "/v1/spikes", {"last": _OFFERED}))
        if str(answer["id"]).startswith(typed)
    ]


def _about(answer: Json) -> str:
    cause = answer["spike"]["cause"] or "unknown"
    return fit(f"{answer['model'] or '-'} {duration(answer['ttft_ms'])} {cause}", 60)


def models(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    """Names of models that were seen."""
    names = {str(answer["model"]) for answer in _ask(context, "/v1/models")}
    return [
        CompletionItem(name)
        for name in sorted(names)
        if name.startswith(typed) and _WORD.fullmatch(name)
    ]


def _ask(context: click.Context, path: str, query: dict[str, int] | None = None) -> list[Any]:
    """An answer, or nothing: who presses a key wants no error."""
    try:
        found = decode(client(context, _PATIENCE_S).get(path, query))
    except TtftError:
        return []
    return found if isinstance(found, list) else []
