"""Whole plans, from what is there to each step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tracer.config import DEFAULT_GROUP, DEFAULT_SOCKET, Config, parse
from tracer.service import plan
from tracer.service.plan import (
    CONFIG_PATH,
    NETWORK_PATH,
    RUN_UNIT_PATH,
    SYSUSERS_PATH,
    UNIT,
    UNIT_PATH,
    Plan,
    Remove,
    Run,
    Situation,
    Step,
    Texts,
    Write,
    install,
    uninstall,
    unit_text,
)

SYSTEMD = Path(__file__).parents[2] / "systemd"
TEXTS = Texts(
    (SYSTEMD / "ttftd.service").read_text(),
    (SYSTEMD / "ttft.sysusers.conf").read_text(),
    (SYSTEMD / "config.toml").read_text(),
    (SYSTEMD / "network.conf").read_text(),
)
FRESH = Situation(program="/opt/ttft/bin/ttftd", version="1.2", asker="alice")
UNIT_TEXT = unit_text(TEXTS.unit, FRESH.program)
INSTALLED = replace(
    FRESH,
    user=True,
    files={
        SYSUSERS_PATH: TEXTS.sysusers,
        CONFIG_PATH: "# mine\n",
        UNIT_PATH: UNIT_TEXT,
        plan.STATE: "",
        "/etc/ttft": "",
    },
    enabled=True,
    active=True,
    running="1.2",
    member=True,
)
RELOAD = Step("systemd reads its units again", Run(("systemctl", "daemon-reload")))
FORGET = Step("past failures forgotten", Run(("systemctl", "reset-failed", UNIT), may_fail=True))
ENABLE = Step("start at boot", Run(("systemctl", "enable", "--quiet", UNIT)))
START = Step("start", Run(("systemctl", "start", UNIT)))
STOP = Step("stop", Run(("systemctl", "stop", UNIT)))
DISABLE = Step("no start at boot", Run(("systemctl", "disable", "--quiet", UNIT), may_fail=True))
TELLS = "ttft service status tells how it is, ttft status what it watches"
DEFINITION = f"their definition {SYSUSERS_PATH}"


def test_a_fresh_system() -> None:
    assert install(FRESH, TEXTS) == Plan(
        (
            Step(DEFINITION, Write(SYSUSERS_PATH, TEXTS.sysusers)),
            Step("user and group ttft", Run(("systemd-sysusers", SYSUSERS_PATH))),
            Step(f"configuration {CONFIG_PATH}", Write(CONFIG_PATH, TEXTS.config)),
            Step(f"unit {UNIT_PATH}", Write(UNIT_PATH, UNIT_TEXT)),
            RELOAD,
            ENABLE,
            FORGET,
            START,
        ),
        ("to ask without sudo: sudo usermod -aG ttft alice, then log in again", TELLS),
    )


def test_a_second_time_nothing_is_done() -> None:
    again = install(INSTALLED, TEXTS)
    assert [step.action for step in again.steps] == [None] * len(again.steps)
    assert [step.say for step in again.steps] == [
        DEFINITION,
        "user and group ttft",
        f"configuration {CONFIG_PATH}",
        f"unit {UNIT_PATH}",
        "start at boot",
        "running",
    ]
    assert again.notes == (TELLS,)


def test_an_upgrade_restarts_and_keeps_the_configuration() -> None:
    actions = [step.action for step in install(replace(INSTALLED, version="1.3"), TEXTS).steps]
    assert [action for action in actions if action] == [Run(("systemctl", "restart", UNIT))]


def test_a_moved_program_changes_the_unit() -> None:
    moved = replace(INSTALLED, program="/opt/other/ttftd")
    actions = [step.action for step in install(moved, TEXTS).steps]
    assert [action for action in actions if action] == [
        Write(UNIT_PATH, unit_text(TEXTS.unit, "/opt/other/ttftd")),
        Run(("systemctl", "daemon-reload")),
        Run(("systemctl", "restart", UNIT)),
    ]


def test_a_stopped_service_is_started() -> None:
    stopped = replace(INSTALLED, active=False, enabled=False, running=None)
    steps = [step for step in install(stopped, TEXTS).steps if step.action]
    assert steps == [ENABLE, FORGET, START]


def test_without_systemd_sysusers() -> None:
    steps = install(replace(FRESH, users_by="useradd"), TEXTS).steps
    assert steps[:2] == (
        Step("group ttft", Run(("groupadd", "--system", "--force", "ttft"))),
        Step(
            "user ttft",
            Run(
                (
                    *("useradd", "--system", "--gid", "ttft", "--no-create-home"),
                    *("--home-dir", "/", "--shell", "/usr/sbin/nologin", "ttft"),
                )
            ),
        ),
    )
    assert [step.say for step in steps[2:]] == [
        f"configuration {CONFIG_PATH}",
        f"unit {UNIT_PATH}",
        RELOAD.say,
        ENABLE.say,
        FORGET.say,
        START.say,
    ]


def test_etc_that_cannot_be_written() -> None:
    """The unit lives until the next boot, with a user that systemd makes."""
    found = install(replace(FRESH, lasting=False, asker=None), TEXTS)
    text = unit_text(TEXTS.unit, FRESH.program, lasting=False)
    assert found.steps == (
        Step(f"unit {RUN_UNIT_PATH}", Write(RUN_UNIT_PATH, text)),
        RELOAD,
        FORGET,
        START,
    )
    assert found.notes == (
        "/etc cannot be written: the service is gone after a reboot, install it again then",
        "only root may ask it: sudo ttft spikes",
        TELLS,
    )
    lines = text.splitlines()
    assert {"User=ttft", "DynamicUser=yes"} <= set(lines)
    assert not {"Group=ttft", "ConfigurationDirectory=ttft"} & set(lines)


@pytest.mark.parametrize(
    ("network", "line"), [("localhost", "IPAddressAllow=localhost"), ("any", "IPAddressDeny=")]
)
def test_only_what_the_configuration_asks_for_gets_a_network(
    network: plan.Network, line: str
) -> None:
    asking = replace(INSTALLED, network=network)
    (step, reload, restart) = (step for step in install(asking, TEXTS).steps if step.action)
    assert (reload, restart.action) == (RELOAD, Run(("systemctl", "restart", UNIT)))
    assert isinstance(step.action, Write)
    assert step.action.path == NETWORK_PATH
    assert step.action.text.splitlines()[1:] == [
        "[Service]",
        "PrivateNetwork=no",
        "RestrictAddressFamilies=AF_INET AF_INET6",
        line,
    ]
    there = replace(asking, files={**INSTALLED.files, NETWORK_PATH: step.action.text})
    assert [step for step in install(there, TEXTS).steps if step.action] == []
    no_more = replace(there, network="none")
    removed = [step.action for step in install(no_more, TEXTS).steps if step.action]
    assert removed[0] == Remove(NETWORK_PATH)
    assert Remove(NETWORK_PATH) in [step.action for step in uninstall(there, purge=False).steps]


def test_a_package_brings_its_own_files() -> None:
    packaged = replace(FRESH, packaged=True, program="/usr/bin/ttftd")
    steps = install(packaged, TEXTS).steps
    where = "/usr/lib/sysusers.d/ttft.conf"
    made = Step("user and group ttft", Run(("systemd-sysusers", where)))
    assert steps == (made, RELOAD, ENABLE, FORGET, START)
    upgraded = replace(packaged, user=True, enabled=True, active=True, running="1.1")
    assert [step.action for step in install(upgraded, TEXTS).steps if step.action] == [
        Run(("systemctl", "daemon-reload")),
        Run(("systemctl", "restart", UNIT)),
    ]


def test_a_package_in_an_image_that_is_being_built() -> None:
    steps = install(replace(FRESH, packaged=True, booted=False, asker=None), TEXTS)
    assert [step.say for step in steps.steps] == ["user and group ttft", "start at boot"]
    assert steps.notes[0] == "systemd does not run here: the service starts at the next boot"


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (
            {"writable_by": "bob"},
            "/opt/ttft/bin/ttftd can be changed by bob, who thereby has the daemon's rights: "
            "better install into a folder of root's",
        ),
        ({"asker": None}, "to let somebody ask: usermod -aG ttft NAME, then log in again"),
        (
            {"packaged": True, "files": {UNIT_PATH: "old"}},
            f"{UNIT_PATH} is older and goes before the package's: remove it",
        ),
    ],
)
def test_what_is_told(change: dict[str, object], note: str) -> None:
    assert note in install(replace(FRESH, **change), TEXTS).notes  # type: ignore[arg-type]


def test_removing_keeps_what_is_the_users() -> None:
    assert uninstall(INSTALLED, purge=False) == Plan(
        (
            STOP,
            DISABLE,
            Step(f"remove {UNIT_PATH}", Remove(UNIT_PATH)),
            Step(f"remove {SYSUSERS_PATH}", Remove(SYSUSERS_PATH)),
            RELOAD,
            FORGET,
        ),
        (
            "kept: history (/var/lib/ttft), configuration (/etc/ttft); "
            "sudo ttft service uninstall --purge removes them too",
            "kept: user and group ttft",
        ),
    )


def test_purging_leaves_nothing() -> None:
    paths = (UNIT_PATH, SYSUSERS_PATH, plan.STATE, "/etc/ttft")
    assert uninstall(INSTALLED, purge=True) == Plan(
        (
            STOP,
            DISABLE,
            *(Step(f"remove {path}", Remove(path)) for path in paths),
            RELOAD,
            FORGET,
            Step("remove user ttft", Run(("userdel", "ttft"))),
            Step("remove group ttft", Run(("groupdel", "ttft"), may_fail=True)),
        )
    )


def test_purging_touches_no_folder_of_the_users_choice() -> None:
    elsewhere = replace(INSTALLED, state="/mnt/pool/history")
    found = uninstall(elsewhere, purge=True)
    assert found.notes == (
        "kept: the history in /mnt/pool/history, where the configuration put it",
    )
    removed = {step.action.path for step in found.steps if isinstance(step.action, Remove)}
    assert "/mnt/pool/history" not in removed


def test_removing_what_is_not_there() -> None:
    assert uninstall(FRESH, purge=True) == Plan((Step("stop", None), FORGET))


def test_a_package_is_removed_by_its_manager() -> None:
    found = uninstall(replace(INSTALLED, packaged=True), purge=False)
    assert found == Plan((STOP, DISABLE, FORGET))


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("/usr/bin/ttftd", "ExecStart=/usr/bin/ttftd run"),
        ("/opt/my tools/ttftd", 'ExecStart="/opt/my tools/ttftd" run'),
        ("/opt/50%/$x/ttftd", "ExecStart=/opt/50%%/$$x/ttftd run"),
        ('/opt/a"b\\c/ttftd', 'ExecStart="/opt/a\\"b\\\\c/ttftd" run'),
    ],
)
def test_only_the_program_differs_in_the_unit(program: str, line: str) -> None:
    before = lines_of(unit_text(TEXTS.unit, "/usr/bin/ttftd"))
    after = lines_of(unit_text(TEXTS.unit, program))
    assert set(after) - set(before) <= {line}
    assert line in after
    assert len(before) == len(after)


@pytest.mark.parametrize("home", ["/home/alice/.local/ttftd", "/root/.local/bin/ttftd"])
def test_a_program_in_somebodys_home_stays_reachable(home: str) -> None:
    assert "ProtectHome=read-only" in unit_text(TEXTS.unit, home).splitlines()
    assert "ProtectHome=yes" in unit_text(TEXTS.unit, "/opt/ttftd").splitlines()


def test_the_sample_configuration_holds_every_default() -> None:
    """Without its comment signs it is a whole configuration; as it is, none at all."""
    assert parse(TEXTS.config.encode(), "sample") == Config()
    wanted = [
        line.removeprefix("# ")
        for line in TEXTS.config.splitlines()
        if line.startswith(("# [", "# ")) and ("=" in line or line.startswith("# ["))
    ]
    found = parse("\n".join(wanted).encode(), "sample")
    assert (found.socket, found.group, found.state) == (DEFAULT_SOCKET, DEFAULT_GROUP, plan.STATE)
    assert (found.spike, found.history) == (Config().spike, Config().history)
    assert [server.name for server in found.server] == ["my-server"]


def test_the_unit_and_the_defaults_agree() -> None:
    lines = set(TEXTS.unit.splitlines())
    assert DEFAULT_SOCKET == "/run/ttft/ttft.sock"
    assert {"RuntimeDirectory=ttft", "StateDirectory=ttft", f"Group={DEFAULT_GROUP}"} <= lines
    assert Config().state == plan.STATE == "/var/lib/ttft"
