"""What installing and removing the service takes, as a list of steps. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

UNIT = "ttftd.service"
USER = "ttft"
UNIT_PATH = "/etc/systemd/system/ttftd.service"
DROP_INS = "/etc/systemd/system/ttftd.service.d"
NETWORK_PATH = f"{DROP_INS}/50-ttft-network.conf"
#: Where a unit lies that lasts until the next boot, on systems whose /etc takes none.
RUN_UNIT_PATH = "/run/systemd/system/ttftd.service"
SYSUSERS_PATH = "/etc/sysusers.d/ttft.conf"
CONFIG_PATH = "/etc/ttft/config.toml"
STATE = "/var/lib/ttft"
_HOMES = ("/home/", "/root/", "/run/user/")


@dataclass(frozen=True)
class Write:
    """A file with this text, readable by all; its folder is made too."""

    path: str
    text: str


@dataclass(frozen=True)
class Remove:
    """A file, or a folder with all that is in it."""

    path: str


@dataclass(frozen=True)
class Run:
    """A program; anything but exit code 0 ends the plan, unless it `may_fail`."""

    argv: tuple[str, ...]
    may_fail: bool = False


Action = Write | Remove | Run
Network = Literal["none", "localhost", "any"]


@dataclass(frozen=True)
class Step:
    """What is said, and what is done; nothing where it is so already."""

    say: str
    action: Action | None


@dataclass(frozen=True)
class Plan:
    """Steps in order, and what is told at the end."""

    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Texts:
    """The files of systemd/, as they are shipped."""

    unit: str
    sysusers: str
    config: str
    network: str


@dataclass(frozen=True)
class Situation:
    """What is there already."""

    program: str
    version: str
    booted: bool = True
    """systemd runs."""
    packaged: bool = False
    """A package manager owns the files."""
    lasting: bool = True
    """/etc can be written."""
    user: bool = False
    users_by: Literal["systemd-sysusers", "useradd"] | None = "systemd-sysusers"
    files: dict[str, str | None] = field(default_factory=dict)
    """Text of what may have to be written or removed; None: not there. A folder holds ""."""
    enabled: bool = False
    active: bool = False
    running: str | None = None
    """Version of the daemon that answers."""
    asker: str | None = None
    """Who called sudo."""
    member: bool = False
    """Whether the asker is in the group."""
    writable_by: str | None = None
    """Who else than root could change the program."""
    state: str = STATE
    """Where the history is, as configured."""
    network: Network = "none"
    """What [metrics] and [otlp] of the configuration need to reach."""


def unit_text(template: str, program: str, *, lasting: bool = True) -> str:
    """The unit for a daemon at `program`.

    Where /etc cannot be written there is no lasting user: systemd makes one for each run.
    """
    text = _set(template, "ExecStart", f"{_escaped(program)} run")
    if program.startswith(_HOMES):
        text = _set(text, "ProtectHome", "read-only")
    if not lasting:
        text = _set(text, "Group", None)
        # systemd would make it, and end the start where it cannot.
        text = _set(text, "ConfigurationDirectory", None)
        text = text.replace(f"\nUser={USER}\n", f"\nUser={USER}\nDynamicUser=yes\n", 1)
    return text


def _escaped(path: str) -> str:
    """As a command line of a unit has it: `%` and `$` mean something, spaces separate."""
    text = path.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return f'"{text}"' if re.search(r"[\s'\";\\]", text) else text


def _set(text: str, key: str, value: str | None) -> str:
    """One directive that is there changed, or taken out."""
    line = f"{key}={value}\n" if value is not None else ""
    changed, count = re.subn(rf"^{key}=.*\n", lambda _: line, text, count=1, flags=re.MULTILINE)
    assert count == 1, key
    return changed


def install(now: Situation, texts: Texts) -> Plan:
    """From whatever is there to a service that runs and will run after each boot."""
    steps = [*_user(now, texts)]
    if now.lasting and not now.packaged:
        there = now.files.get(CONFIG_PATH) is not None
        say = f"configuration {CONFIG_PATH}"
        steps.append(Step(say, None if there else Write(CONFIG_PATH, texts.config)))
    path = UNIT_PATH if now.lasting else RUN_UNIT_PATH
    unit = unit_text(texts.unit, now.program, lasting=now.lasting)
    changed = now.packaged
    if not now.packaged:
        changed = now.files.get(path) != unit
        steps.append(Step(f"unit {path}", Write(path, unit) if changed else None))
    network = [*_network(now, texts)] if now.lasting else []
    steps += network
    steps += _begin(now, changed or any(step.action for step in network))
    return Plan(tuple(steps), tuple(_install_notes(now)))


def _user(now: Situation, texts: Texts) -> Iterator[Step]:
    if not now.lasting:
        return
    say = f"user and group {USER}"
    by_sysusers = now.users_by == "systemd-sysusers"
    if by_sysusers and not now.packaged:
        same = now.files.get(SYSUSERS_PATH) == texts.sysusers
        action = None if same else Write(SYSUSERS_PATH, texts.sysusers)
        yield Step(f"their definition {SYSUSERS_PATH}", action)
    if now.user:
        yield Step(say, None)
    elif by_sysusers:
        where = "/usr/lib/sysusers.d/ttft.conf" if now.packaged else SYSUSERS_PATH
        yield Step(say, Run(("systemd-sysusers", where)))
    elif now.users_by == "useradd":
        yield Step(f"group {USER}", Run(("groupadd", "--system", "--force", USER)))
        options = ("--system", "--gid", USER, "--no-create-home", "--home-dir", "/")
        shell = ("--shell", "/usr/sbin/nologin", USER)
        yield Step(f"user {USER}", Run(("useradd", *options, *shell)))


def _network(now: Situation, texts: Texts) -> Iterator[Step]:
    """The unit reaches no network; what the configuration asks for opens as much as it needs."""
    there = now.files.get(NETWORK_PATH)
    if now.network == "none":
        if there is not None:
            yield Step(f"no network: remove {NETWORK_PATH}", Remove(NETWORK_PATH))
        return
    text = texts.network
    if now.network == "any":
        text = text.replace("IPAddressAllow=localhost\n", "IPAddressDeny=\n")
    say = f"network for [metrics] and [otlp], {now.network}: {NETWORK_PATH}"
    yield Step(say, None if there == text else Write(NETWORK_PATH, text))


def _begin(now: Situation, changed: bool) -> Iterator[Step]:
    if now.booted and changed:
        yield Step("systemd reads its units again", Run(("systemctl", "daemon-reload")))
    if now.lasting:
        enable = Run(("systemctl", "enable", "--quiet", UNIT))
        yield Step("start at boot", None if now.enabled else enable)
    if not now.booted:
        return
    if not now.active:
        # One that failed too often is not started again without this.
        yield Step("past failures forgotten", Run(("systemctl", "reset-failed", UNIT), True))
        yield Step("start", Run(("systemctl", "start", UNIT)))
    elif changed or now.running != now.version:
        yield Step(f"restart, as version {now.version}", Run(("systemctl", "restart", UNIT)))
    else:
        yield Step("running", None)


def _install_notes(now: Situation) -> Iterator[str]:
    if not now.booted:
        yield "systemd does not run here: the service starts at the next boot"
    if now.packaged and now.files.get(UNIT_PATH) is not None:
        yield f"{UNIT_PATH} is older and goes before the package's: remove it"
    if now.writable_by:
        yield (
            f"{now.program} can be changed by {now.writable_by}, who thereby has the daemon's "
            "rights: better install into a folder of root's"
        )
    if not now.lasting:
        yield "/etc cannot be written: the service is gone after a reboot, install it again then"
        yield "only root may ask it: sudo ttft spikes"
    elif now.asker and not now.member:
        yield f"to ask without sudo: sudo usermod -aG {USER} {now.asker}, then log in again"
    elif not now.asker:
        yield f"to let somebody ask: usermod -aG {USER} NAME, then log in again"
    if now.booted:
        yield "ttft service status tells how it is, ttft status what it watches"


def uninstall(now: Situation, *, purge: bool) -> Plan:
    """Nothing of the service stays; history and configuration only without `purge`."""
    steps: list[Step] = []
    if now.booted:
        stop = Run(("systemctl", "stop", UNIT)) if now.active else None
        steps.append(Step("stop", stop))
    if now.enabled:
        disable = Run(("systemctl", "disable", "--quiet", UNIT), may_fail=True)
        steps.append(Step("no start at boot", disable))
    gone = [UNIT_PATH, RUN_UNIT_PATH, SYSUSERS_PATH, NETWORK_PATH]
    if purge:
        gone += [DROP_INS, STATE, "/var/lib/private/ttft", "/etc/ttft"]
    there = [] if now.packaged else [path for path in gone if now.files.get(path) is not None]
    steps += [Step(f"remove {path}", Remove(path)) for path in there]
    if now.booted and there:
        steps.append(Step("systemd reads its units again", Run(("systemctl", "daemon-reload"))))
    if now.booted:
        forget = Run(("systemctl", "reset-failed", UNIT), may_fail=True)
        steps.append(Step("past failures forgotten", forget))
    if purge and now.user and not now.packaged:
        steps.append(Step(f"remove user {USER}", Run(("userdel", USER))))
        # With its last user a group goes too, unless it has members.
        steps.append(Step(f"remove group {USER}", Run(("groupdel", USER), may_fail=True)))
    return Plan(tuple(steps), tuple(_uninstall_notes(now, purge)))


def _uninstall_notes(now: Situation, purge: bool) -> Iterator[str]:
    kept = {STATE: "history", "/etc/ttft": "configuration"}
    left = [f"{what} ({path})" for path, what in kept.items() if now.files.get(path) is not None]
    if now.packaged:
        return
    if purge and now.state != STATE:
        yield f"kept: the history in {now.state}, where the configuration put it"
    if purge:
        return
    if left:
        yield f"kept: {', '.join(left)}; sudo ttft service uninstall --purge removes them too"
    if now.user:
        yield f"kept: user and group {USER}"
