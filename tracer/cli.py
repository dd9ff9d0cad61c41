"""The two programs: `ttft`, the client, and `ttftd`, the daemon."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click

from tracer import __version__
from tracer.commands import shared
from tracer.errors import TtftError
from tracer.host.tls import without_tls

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 80}

COMMANDS = {
    "status": "listing",
    "requests": "listing",
    "spikes": "spikes",
    "show": "listing",
    "models": "listing",
    "watch": "watch",
    "report": "report",
    "export": "files",
    "record": "files",
    "replay": "files",
    "explain": "explain",
    "doctor": "doctor",
    "completion": "completion",
    "service": "service",
}
"""Each command of `ttft` and the module under tracer/commands that has it."""


class _Lazy(click.Group):
    """Imports a command's module only when that command is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        commands = importlib.import_module(f"tracer.commands.{module}")
        found = getattr(commands, f"{cmd_name}_command", None) or getattr(commands, cmd_name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx))
            if near:
                ctx.fail(f"No such command '{args[0]}'; did you mean {' or '.join(near)}?")
        return super().resolve_command(ctx, args)


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"{context.info_name} {__version__}")
        context.exit()


_version_option = click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Print the version.",
)


@click.group(cls=_Lazy, context_settings=SETTINGS)
@click.option(
    "--socket",
    metavar="PATH",
    envvar="TTFT_SOCKET",
    help=f"The daemon's socket  [default: {shared.DEFAULT_SOCKET}]",
)
@_version_option
def ttft(socket: str | None) -> None:
    """Why was the first token slow?

    ttft explains slow first tokens of local AI servers: it asks ttftd, which watches them
    from the kernel.

    \b
    Begin with:
      ttft status      is everything watched?
      ttft spikes      what was slow, why, and what to do
      ttft show 17     one request in detail
    """
    if socket is not None and not socket.strip():
        raise TtftError("--socket is empty", f"leave it out for {shared.DEFAULT_SOCKET}", 2)


@ttft.command(hidden=True)
@click.argument("prefix", type=click.Path(path_type=Path))
@click.option("--remove", is_flag=True, help="Remove them instead.")
def manual(prefix: Path, remove: bool) -> None:
    """Write man pages and completion scripts under PREFIX, as in /usr: for packages.

    \b
    Example:
      ttft manual debian/tmp/usr
    """
    from tracer.commands import manual as pages

    (pages.remove if remove else pages.install)(prefix, ttft, ttftd)


@click.group(context_settings=SETTINGS)
@_version_option
def ttftd() -> None:
    """The daemon of ttft: watches local AI servers from the kernel. Needs root."""


@ttftd.command()
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(),
    help="Configuration  [default: /etc/ttft/config.toml, if there]",
)
@click.option("--socket", metavar="PATH", help="Where to answer; goes before the configuration.")
@click.option("--state", metavar="DIR", help="Where to keep the history.")
@click.option("--btf", metavar="FILE", help="Kernel types (BTF), where the kernel has none.")
def run(config: str | None, socket: str | None, state: str | None, btf: str | None) -> None:
    """Watch, in the foreground; systemd runs this.

    \b
    Examples:
      sudo ttftd run
      sudo ttftd run --config my.toml --socket /tmp/ttft.sock --state /tmp/ttft
    """
    from tracer.commands.daemon import start

    start(config, socket, state, btf)


def main() -> None:
    """Entry point of `ttft`."""
    without_tls()
    sys.exit(shared.run(ttft, "ttft"))


def daemon_main() -> None:
    """Entry point of `ttftd`."""
    without_tls()
    sys.exit(shared.run(ttftd, "ttftd"))
