"""Debian 12: its package from nothing to an answer and to nothing again, then the bundle."""

from __future__ import annotations

import pytest

from tests.service import checks
from tests.service.machine import Story
from tests.service.made import OLDER
from tracer import __version__

pytestmark = pytest.mark.service


def test_the_package_installs_and_starts(debian_12: Story) -> None:
    said = debian_12.said("install")
    assert said.status == 0, said.output
    assert "  done     start" in said.lines


def test_a_member_asks_about_a_real_server(debian_12: Story) -> None:
    checks.assert_answers_of_a_real_server(debian_12)


def test_others_learn_nothing(debian_12: Story) -> None:
    checks.assert_others_learn_nothing(debian_12)


def test_no_forbidden_call_is_made(debian_12: Story) -> None:
    checks.assert_no_forbidden_call(debian_12)


def test_the_configuration_is_read_again(debian_12: Story) -> None:
    lines = debian_12.said("config").lines
    assert lines[0] == "active"
    assert lines[1].startswith("configuration not taken, all stays as it was: /etc/ttft/config")
    assert lines[2:] == ["configuration read again: spike changed"]


def test_a_package_is_removed_by_its_manager(debian_12: Story) -> None:
    said = debian_12.said("refused")
    assert said.status == 1
    assert "hint: apt remove ttft" in said.output


def test_an_upgrade_keeps_history_and_configuration(debian_12: Story) -> None:
    said = debian_12.said("upgrade")
    assert said.status == 0, said.output
    assert f"  done     restart, as version {__version__}" in said.lines
    lines = debian_12.said("upgraded").lines
    assert lines[0].split()[-1] == __version__
    assert lines[1].startswith(f"ttftd {__version__} ")
    assert lines[2:4] == ["[spike]", "min_ms = 111.0"]
    assert checks.requests(debian_12.said("upgraded")) == checks.requests(debian_12.said("member"))


def test_it_is_there_again(debian_12: Story) -> None:
    checks.assert_survives(debian_12)


def test_a_downgrade_touches_nothing(debian_12: Story) -> None:
    lines = debian_12.said("downgrade").lines
    assert "status 0" in lines, "a daemon that does not start must not break apt"
    assert f"Unpacking ttft ({OLDER}) over ({__version__}) ..." in lines
    checks.assert_downgrade_touches_nothing(debian_12)


def test_removed_it_leaves_history_and_configuration(debian_12: Story) -> None:
    assert debian_12.said("remove").status == 0, debian_12.said("remove").output
    lines = debian_12.said("removed").lines
    assert lines[:2] == ["/etc/ttft", "/var/lib/ttft"]
    assert [line.partition(":")[0] for line in lines[2:4]] == ["ttft", "ttft"]
    assert "history.db" in lines[4:]
    assert "running" not in lines


def test_purged_it_leaves_nothing(debian_12: Story) -> None:
    assert debian_12.said("purge").status == 0, debian_12.said("purge").output
    assert debian_12.said("purged").output == ""


def test_the_bundle_needs_no_python_and_no_folder_of_the_system(debian_12: Story) -> None:
    bare = debian_12.said("bare")
    assert bare.output.count("Read-only file system") == 2
    assert bare.status != 0, "a python3 is still there"
    said = debian_12.said("bundle-install")
    assert said.status == 0, said.output
    assert set(debian_12.said("bundle-unit").lines) == {
        "FragmentPath=/run/systemd/system/ttftd.service",
        "UnitFileState=disabled",
        "ActiveState=active",
    }
    assert checks.exposure(debian_12.said("bundle-exposure")) <= checks.EXPOSURE_MAX


def test_the_bundle_answers(debian_12: Story) -> None:
    found = checks.requests(debian_12.said("bundle-ask"))
    assert [(answer["outcome"], answer["model"]) for answer in found] == [("ok", "alpha")] * 2
    assert debian_12.said("bundle-doctor").status == 0, debian_12.said("bundle-doctor").output


def test_the_bundle_installs_again_and_goes(debian_12: Story) -> None:
    assert "  already  running" in debian_12.said("bundle-twice").lines
    assert debian_12.said("bundle-uninstall").status == 0
    left = debian_12.said("bundle-left").lines
    assert "running" not in left
    assert not [line for line in left if line.startswith("/")]
    assert "ttft" not in left
    assert {"install", "uninstall", "bin"} <= set(left), "the folder is its owner's"
