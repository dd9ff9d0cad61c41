"""Finds out what there is of the service, and carries out a plan."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from tracer import __version__
from tracer.client import Client
from tracer.config import DEFAULT_SOCKET, Config, load
from tracer.errors import TtftError
from tracer.service import plan
from tracer.service.plan import Plan, Remove, Run, Situation, Step, Texts, Write

_ASK_S = 2.0
_RUN_S = 180.0
#: The second is what systemd says before it has become the daemon: why it cannot.
_LAST = ("-t", "ttftd", "-t", "(ttftd)", "-n", "5", "-o", "cat", "--no-pager")
_SHIPPED = Path(__file__).resolve().parents[2] / "systemd"
"""In a checkout; a wheel has them beside this module."""


def shipped(name: str) -> str:
    """A file of systemd/."""
    packed = files("tracer.service").joinpath("files", name)
    return packed.read_text() if packed.is_file() else (_SHIPPED / name).read_text()


def texts() -> Texts:
    """The files the plan writes."""
    names = ("ttftd.service", "ttft.sysusers.conf", "config.toml", "network.conf")
    return Texts(*map(shipped, names))


def program() -> str:
    """The `ttftd` of this installation; the launcher of a bundle says where it is."""
    given = os.environ.get("TTFT_PROGRAM")
    beside = [Path(sys.argv[0]).resolve().parent, Path(sysconfig.get_path("scripts"))]
    found = [Path(given)] if given else [folder / "ttftd" for folder in beside]
    for path in found:
        if path.is_file() and os.access(path, os.X_OK):
            return str(path.absolute())
    raise TtftError(
        f"no program ttftd in {' or '.join(str(path.parent) for path in found)}",
        "install ttft with pip, pipx, its package or its bundle, and run that one's ttft",
    )


def booted() -> bool:
    """Whether systemd runs this system (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def look(*, packaged: bool) -> Situation:
    """What is there already. Whoever is not root may see less."""
    paths = (
        plan.UNIT_PATH,
        plan.RUN_UNIT_PATH,
        plan.SYSUSERS_PATH,
        plan.CONFIG_PATH,
        plan.DROP_INS,
        plan.NETWORK_PATH,
        plan.STATE,
        "/var/lib/private/ttft",
        "/etc/ttft",
    )
    asker = _asker()
    where, config = program(), _configured()
    packaged = packaged or of_package() is not None
    return Situation(
        program=where,
        version=__version__,
        booted=booted(),
        packaged=packaged,
        lasting=packaged or _writable(Path(plan.UNIT_PATH).parent),
        user=_has_user(),
        users_by=_users_by(),
        files={path: _text(Path(path)) for path in paths},
        enabled=_output("systemctl", "is-enabled", plan.UNIT) in ("enabled", "enabled-runtime"),
        active=_output("systemctl", "is-active", plan.UNIT)
        in ("active", "reloading", "activating"),
        running=running_version(),
        asker=asker,
        member=asker is not None and is_member(asker),
        writable_by=_writable_by(Path(where)),
        state=config.state,
        network=network(config),
    )


def of_package() -> str | None:
    """The unit, where a package manager owns it."""
    found = properties("FragmentPath").get("FragmentPath", "")
    return found if found.startswith(("/usr/lib/", "/lib/")) else None


def network(config: Config) -> plan.Network:
    """What the daemon has to reach: nothing unless the configuration asks for it."""
    hosts = []
    if config.metrics.address is not None:
        hosts.append(config.metrics.address[0])
    if config.otlp.endpoint is not None:
        hosts.append(urlsplit(config.otlp.endpoint).hostname or "")
    if not hosts:
        return "none"
    return "localhost" if all(map(_is_loopback, hosts)) else "any"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def running_version() -> str | None:
    """Of the daemon that answers."""
    try:
        answer = json.loads(Client(_configured().socket, _ASK_S).get("/v1/status"))
        return str(answer["version"])
    except (TtftError, ValueError, KeyError):
        return None


def _configured() -> Config:
    """A configuration that is wrong is the daemon's to complain of."""
    try:
        return load()
    except TtftError:
        return Config(socket=DEFAULT_SOCKET)


def is_member(name: str) -> bool:
    """Whether a user is in the group that may ask, as the user database has it."""
    with contextlib.suppress(KeyError):
        group = grp.getgrnam(plan.USER)
        return name in group.gr_mem or pwd.getpwnam(name).pw_gid == group.gr_gid
    return False


def _asker() -> str | None:
    name = os.environ.get("SUDO_USER")
    return name if name and name != "root" else None


def _has_user() -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwnam(plan.USER) and grp.getgrnam(plan.USER))
    return False


def _users_by() -> Literal["systemd-sysusers", "useradd"] | None:
    if shutil.which("systemd-sysusers"):
        return "systemd-sysusers"
    return "useradd" if shutil.which("useradd") and shutil.which("groupadd") else None


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    # Without root all is guessed to be as usual: only a read-only file system tells.
    return os.access(folder, os.W_OK) or not os.statvfs(folder).f_flag & os.ST_RDONLY


def _text(path: Path) -> str | None:
    if not path.exists():
        return None
    try:
        return path.read_text("utf-8", "replace") if path.is_file() else ""
    except OSError:
        return ""


def _writable_by(path: Path) -> str | None:
    """Who could put another program there, if not root alone."""
    target = path.resolve()
    for place in (path, target, *target.parents):
        info = place.lstat()
        if stat.S_ISLNK(info.st_mode):
            continue
        if info.st_uid != 0:
            with contextlib.suppress(KeyError):
                return pwd.getpwuid(info.st_uid).pw_name
            return f"user {info.st_uid}"
        if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
            return "everybody"
    return None


def closed(*programs: Path) -> Path | None:
    """The file or folder for which a user without rights cannot run one of these, if any.

    A unit's user gets its capabilities with the program, so they do not help to reach it.
    """
    for path in programs:
        target = path.resolve()
        for place in (*reversed(path.absolute().parents), *reversed(target.parents), target):
            if not place.stat().st_mode & stat.S_IXOTH and not _has_acl(place):
                return place
    return None


def _has_acl(path: Path) -> bool:
    """Whether single users are let in, or kept out, by name."""
    with contextlib.suppress(OSError):
        return bool(os.getxattr(path, "system.posix_acl_access"))
    return False


def _output(*argv: str) -> str:
    """What a program prints; nothing where there is none of that name."""
    if not shutil.which(argv[0]):
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            argv, capture_output=True, text=True, check=False, timeout=_RUN_S
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip()


def properties(*names: str) -> dict[str, str]:
    """What systemd knows of the unit."""
    lines = _output("systemctl", "show", plan.UNIT, f"--property={','.join(names)}").splitlines()
    return dict(line.partition("=")[::2] for line in lines if "=" in line)


# --- carrying out -------------------------------------------------------------------


def carry_out(todo: Plan, say: Callable[[str], None], *, dry: bool) -> None:
    """Each step, said as it is done. Raises TtftError at the first that fails."""
    for step in todo.steps:
        if step.action is None:
            say(f"  already  {step.say}")
        elif dry:
            say(f"  would    {step.say}{_how(step)}")
        else:
            _do(step, step.action, say)
            say(f"  done     {step.say}")
    for note in todo.notes if not dry else ():
        say(note)


def _how(step: Step) -> str:
    return f": {' '.join(step.action.argv)}" if isinstance(step.action, Run) else ""


def _do(step: Step, action: plan.Action, say: Callable[[str], None]) -> None:
    try:
        match action:
            case Write(path, text):
                _write(Path(path), text)
            case Remove(path):
                _remove(Path(path))
            case Run(argv, may_fail):
                _run(step, argv, may_fail, say)
    except OSError as error:
        raise TtftError(
            f"{step.say}: {error.filename or ''}: {error.strerror or error}",
            "what was done stays; mend it and run the same command again",
        ) from error


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        beside.chmod(0o644)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _run(step: Step, argv: tuple[str, ...], may_fail: bool, say: Callable[[str], None]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - from the plan
            argv, capture_output=True, text=True, check=False, timeout=_RUN_S
        )
    except subprocess.TimeoutExpired:
        raise TtftError(
            f"{step.say}: {' '.join(argv)} did not end in {_RUN_S:.0f} s",
            "systemctl list-jobs shows what it waits for; then run the same command again",
        ) from None
    if done.returncode == 0 or may_fail:
        return
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    if plan.UNIT not in argv:
        raise TtftError(f"{step.say} failed: {said[0]}")
    log = last_words()
    if log:
        say(f"  failed   {step.say}; the daemon's last words:")
        for line in log:
            say(line)
    raise TtftError(f"{step.say} failed: {said[0]}", f"journalctl -u {plan.UNIT} has it all")


def last_words() -> list[str]:
    """The last lines that the daemon itself logged, without their times."""
    return [f"    {line}" for line in _output("journalctl", "-u", plan.UNIT, *_LAST).splitlines()]
