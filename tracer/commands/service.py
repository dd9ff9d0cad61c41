"""`ttft service`: the daemon as a service of systemd."""

from __future__ import annotations

import grp
import os
import pwd
import sys
from pathlib import Path

import click

from tracer import __version__
from tracer.commands.shared import DEFAULT_SOCKET, json_option, print_json, print_lines
from tracer.errors import TtftError
from tracer.render_units import clean
from tracer.service import host, plan, state

NOT_RUNNING = 3
#: The unit's temporary folders are its own, too.
_PASSING = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/")  # noqa: S108 - to be refused
_NO_GROUP = f"cannot ask: there is no group {plan.USER}; only root may"

_dry = click.option("--dry-run", is_flag=True, help="Only say what would be done.")
_packaged = click.option(
    "--packaged", is_flag=True, hidden=True, help="A package manager owns the files."
)


@click.group()
def service() -> None:
    """Install, look at, or remove the daemon as a systemd service.

    \b
    Examples:
      sudo ttft service install
      ttft service status
      sudo ttft service uninstall
    """


@service.command()
@_dry
@_packaged
def install(dry_run: bool, packaged: bool) -> None:
    """Install and start the service; again after an upgrade.

    Makes the user and group ttft, a configuration with every default in a comment, and the
    unit; starts it now and at each boot. What is there already stays as it is: history,
    configuration, and a unit's drop-ins.

    \b
    Examples:
      ttft service install --dry-run
      sudo ttft service install
    """
    if not packaged:
        _needs_systemd()
    _needs_root("install", dry_run)
    _needs_to_last(host.program())
    _needs_to_be_open(Path(host.program()))
    now = host.look(packaged=packaged)
    if now.lasting and not now.user and now.users_by is None:
        raise TtftError(
            "no program here makes users: neither systemd-sysusers nor useradd",
            f"make a user and a group {plan.USER} in this system's own way, then again",
        )
    host.carry_out(plan.install(now, host.texts()), _tell, dry=dry_run)


@service.command()
@click.option("--purge", is_flag=True, help="Remove history, configuration, user and group too.")
@_dry
@_packaged
def uninstall(purge: bool, dry_run: bool, packaged: bool) -> None:
    """Stop and remove the service; history and configuration stay.

    \b
    Examples:
      sudo ttft service uninstall
      sudo ttft service uninstall --purge --dry-run
    """
    if not packaged:
        _needs_systemd()
        _not_a_package()
    _needs_root("uninstall", dry_run)
    now = host.look(packaged=packaged)
    host.carry_out(plan.uninstall(now, purge=purge), _tell, dry=dry_run)


@service.command()
@json_option
@click.pass_context
def status(context: click.Context, as_json: bool) -> None:
    """Whether the service runs, since when, who may ask it.

    Exit code 3 when it does not run. `ttft status` tells what it watches.

    \b
    Examples:
      ttft service status
      ttft service status --json
    """
    _needs_systemd()
    shown = host.properties(*state.PROPERTIES)
    path = context.find_root().params.get("socket") or DEFAULT_SOCKET
    running = host.running_version()
    log = host.last_words() if shown.get("ActiveState") != "active" else []
    answer = state.answer(shown, _access(path), __version__, running, log)
    if as_json:
        print_json(answer)
    else:
        print_lines(state.lines(answer))
    context.exit(0 if answer["state"] == "active" else NOT_RUNNING)


def _tell(text: str) -> None:
    print_lines([clean(text)])


def _access(path: str) -> state.Access:
    try:
        group = grp.getgrnam(plan.USER)
    except KeyError:
        return state.Access(path, plan.USER, None, os.geteuid() == 0, why_not=_NO_GROUP)
    allowed = os.geteuid() == 0 or group.gr_gid in (os.getegid(), *os.getgroups())
    name = pwd.getpwuid(os.getuid()).pw_name
    why_not = f"cannot ask: sudo usermod -aG {plan.USER} {name}, then log out and in again"
    if name in group.gr_mem:
        why_not = "cannot ask in this session, which is older than the membership: log in again"
    return state.Access(path, plan.USER, tuple(group.gr_mem), allowed, None if allowed else why_not)


def _needs_systemd() -> None:
    if host.booted():
        return
    raise TtftError(
        "this system is not run by systemd, so there is no service to manage",
        "let its own init or boot tasks run, as root: ttftd run; docs/service.md has examples",
    )


def _needs_root(command: str, dry_run: bool) -> None:
    if os.geteuid() == 0 or dry_run:
        return
    ttft = Path(host.program()).with_name("ttft")
    raise TtftError(
        f"ttft service {command} needs root",
        f"sudo {ttft} service {command}; or see what it would do: ttft service {command} --dry-run",
    )


def _needs_to_last(program: str) -> None:
    if program.startswith(_PASSING):
        raise TtftError(
            f"{program} lies in a folder that does not last",
            "put it where it is to stay, such as /opt, and run that one's ttft service install",
        )


def _needs_to_be_open(program: Path) -> None:
    """Its own Python may lie elsewhere."""
    try:
        place = host.closed(program, Path(sys.executable))
    except PermissionError as error:
        place = Path(error.filename)
    if place is not None:
        raise TtftError(
            f"the daemon's own user cannot run {program}: {place} is closed to others",
            "put it where everybody may run it (a venv in /opt, pipx install --global), "
            f"or: sudo chmod o+x {place}",
        )


def _not_a_package() -> None:
    found = host.of_package()
    if found is not None:
        raise TtftError(
            f"the service is part of a package ({found})",
            "apt remove ttft, or apt purge ttft for history and configuration too",
        )
