"""Debian 13: a wheel as pipx installs it, and each right of the unit taken away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service import checks, stories
from tests.service.machine import Story
from tests.service.made import OLDER
from tracer import __version__
from tracer.kernel.rights import SIGHT

pytestmark = pytest.mark.service


def test_a_dry_run_says_each_step_and_does_none(debian_13: Story) -> None:
    assert debian_13.said("pip").status == 0, debian_13.said("pip").output
    lines = debian_13.said("dry").lines
    assert lines and all(line.startswith("  would    ") for line in lines)
    done = [line.removeprefix("  done     ") for line in debian_13.said("install").lines]
    said = [line.removeprefix("  would    ").partition(": systemctl")[0] for line in lines]
    assert [line.partition(": systemd-sysusers")[0] for line in said] == done[: len(said)]


def test_why_it_cannot_be_installed_is_said(debian_13: Story) -> None:
    said = debian_13.said("not-root")
    assert said.status == 1
    assert said.lines[0] == "ttft: ttft service install needs root"
    assert f"sudo {stories.VENV}/bin/ttft service install" in said.output
    said = debian_13.said("no-systemd")
    assert said.status == 1
    assert said.lines[0].startswith("ttft: this system is not run by systemd")
    said = debian_13.said("status-none")
    assert (said.status, said.lines[0]) == (3, "ttftd is not installed as a service")


def test_installed_twice_it_is_as_installed_once(debian_13: Story) -> None:
    said = debian_13.said("install")
    assert said.status == 0, said.output
    steps = [line for line in debian_13.said("twice").lines if line.startswith("  ")]
    assert steps and {line.split()[0] for line in steps} == {"already"}


def test_the_unit_runs_the_environments_own_program(debian_13: Story) -> None:
    assert debian_13.said("unit").output == f"ExecStart={stories.VENV}/bin/ttftd run"
    status = json.loads(debian_13.said("service-status").output)
    assert (status["state"], status["at_boot"], status["restarts"]) == ("active", True, 0)
    assert (status["version"], status["members"]) == (OLDER, ["alice"])


def test_a_member_asks_about_a_real_server(debian_13: Story) -> None:
    checks.assert_answers_of_a_real_server(debian_13)


def test_others_learn_nothing(debian_13: Story) -> None:
    checks.assert_others_learn_nothing(debian_13)


def test_no_forbidden_call_is_made(debian_13: Story) -> None:
    checks.assert_no_forbidden_call(debian_13)


@pytest.mark.parametrize("name", stories.NEEDED)
def test_the_daemon_needs(debian_13: Story, name: str) -> None:
    output = debian_13.said(f"without-{name}").output
    assert f"ttftd lacks {name}" in output
    assert "state     active" not in output


def cached(story: Story, step: str) -> object:
    """How much of beta the daemon says is in the page cache; it was asked just before."""
    output = story.said(step).output
    found: list[dict[str, Any]] = json.loads(output[output.index("[\n") :])
    (beta,) = (model for model in found if model["model"] == "beta")
    return beta["cached_share"]


@pytest.mark.parametrize("name", SIGHT)
def test_the_daemon_sees_by(debian_13: Story, name: str) -> None:
    said = debian_13.said(f"without-{name}")
    assert f"without {name}" in said.output
    assert "doctor 1" in said.lines
    if name == "CAP_FOWNER":
        assert '"port": 8080' in said.output
        assert cached(debian_13, f"without-{name}") is None
    else:
        assert '"port": 8080' not in said.output


def test_with_all_rights_all_is_seen(debian_13: Story) -> None:
    said = debian_13.said("with-all")
    assert "doctor 0" in said.lines, said.output
    assert cached(debian_13, "with-all") == 1.0


def test_it_runs_from_a_home_that_it_may_enter(debian_13: Story) -> None:
    lines = debian_13.said("from-home").lines
    program = f"{stories.HOME_VENV}/bin/ttftd"
    assert lines[0] == (
        f"ttft: the daemon's own user cannot run {program}: /home/eve is closed to others"
    )
    assert any(f"path={stories.HOME_VENV}/bin/ttftd ;" in line for line in lines)
    assert f"{stories.HOME_VENV}/bin/ttftd can be changed by eve" in debian_13.said(
        "from-home"
    ).output.replace("\n", " ")
    assert int(lines[-1]) >= 4


def test_an_upgrade_restarts_it_and_keeps_all(debian_13: Story) -> None:
    waiting = f"version   {OLDER} runs, {__version__} is installed: sudo ttft service install"
    assert waiting in debian_13.said("pip-upgrade").output
    said = debian_13.said("upgrade")
    assert said.status == 0, said.output
    assert f"  done     restart, as version {__version__}" in said.lines
    lines = debian_13.said("upgraded").lines
    assert lines[0].split()[-1] == __version__
    assert lines[1].startswith(f"ttftd {__version__} ")
    found = checks.requests(debian_13.said("upgraded"))
    assert found[:4] == checks.requests(debian_13.said("member"))


def test_it_is_there_again(debian_13: Story) -> None:
    checks.assert_survives(debian_13)


def test_a_downgrade_touches_nothing(debian_13: Story) -> None:
    assert "status 1" in debian_13.said("downgrade").lines
    checks.assert_downgrade_touches_nothing(debian_13)


def test_uninstalled_it_leaves_history_and_configuration(debian_13: Story) -> None:
    said = debian_13.said("uninstall")
    assert said.status == 0, said.output
    assert "kept: history (/var/lib/ttft), configuration (/etc/ttft)" in said.output
    lines = debian_13.said("uninstalled").lines
    assert lines[:2] == ["/etc/ttft", "/var/lib/ttft"]
    assert [line.partition(":")[0] for line in lines[2:]] == ["ttft", "ttft"]


def test_purged_it_leaves_nothing(debian_13: Story) -> None:
    assert debian_13.said("purge").status == 0, debian_13.said("purge").output
    assert debian_13.said("purged").output == ""


def test_the_package_is_for_this_python_too(debian_13: Story) -> None:
    said = debian_13.said("package")
    assert said.status == 0, said.output
    assert "  done     start" in said.lines
    assert any(line.startswith(f"ttftd {__version__} on Linux 6.12") for line in said.lines)
    purged = debian_13.said("package-purge")
    assert purged.status == 0, purged.output
    assert not [line for line in purged.lines if line.startswith(("/", "ttft:", "running"))]
