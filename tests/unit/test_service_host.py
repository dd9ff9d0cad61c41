"""Looking at the host and carrying out plans, in folders of the test's own."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli_runs import Runner
from tracer.config import parse
from tracer.errors import TtftError
from tracer.service import host, state
from tracer.service.plan import Plan, Remove, Run, Step, Write


def carried(plan: Plan, *, dry: bool = False) -> list[str]:
    said: list[str] = []
    host.carry_out(plan, said.append, dry=dry)
    return said


def test_steps_are_done_in_order_and_said(tmp_path: Path) -> None:
    unit, old, folder = tmp_path / "a" / "b.service", tmp_path / "old", tmp_path / "folder"
    old.write_text("x")
    (folder / "in").mkdir(parents=True)
    plan = Plan(
        (
            Step("unit", Write(str(unit), "text\n")),
            Step("nothing", None),
            Step("remove old", Remove(str(old))),
            Step("remove folder", Remove(str(folder))),
            Step("copy", Run(("cp", str(unit), str(old)))),
            Step("try", Run(("false",), may_fail=True)),
        ),
        ("a note",),
    )
    assert carried(plan, dry=True) == [
        "  would    unit",
        "  already  nothing",
        "  would    remove old",
        "  would    remove folder",
        f"  would    copy: cp {unit} {old}",
        "  would    try: false",
    ]
    assert (unit.exists(), old.exists(), folder.exists()) == (False, True, True)
    assert carried(plan) == [
        "  done     unit",
        "  already  nothing",
        "  done     remove old",
        "  done     remove folder",
        "  done     copy",
        "  done     try",
        "a note",
    ]
    assert (unit.read_text(), old.read_text(), folder.exists()) == ("text\n", "text\n", False)
    assert stat.S_IMODE(unit.stat().st_mode) == 0o644
    assert os.listdir(unit.parent) == ["b.service"]


def test_a_step_that_fails_ends_it(tmp_path: Path) -> None:
    after = tmp_path / "after"
    plan = Plan(
        (
            Step("list it", Run(("ls", "/no/such/place"))),
            Step("after", Write(str(after), "")),
        )
    )
    with pytest.raises(TtftError) as caught:
        carried(plan)
    assert caught.value.message.startswith("list it failed: ls: ")
    assert not after.exists()


def test_a_step_that_hangs_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_RUN_S", 0.05)
    with pytest.raises(TtftError) as caught:
        carried(Plan((Step("wait", Run(("sleep", "60"))),)))
    assert caught.value.message == "wait: sleep 60 did not end in 0 s"


def test_a_folder_that_cannot_be_made_is_named() -> None:
    with pytest.raises(TtftError) as caught:
        carried(Plan((Step("unit", Write("/proc/none/x", "")),)))
    assert caught.value.message == "unit: /proc/none: No such file or directory"


def test_a_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    (target / "kept").mkdir(parents=True)
    link.symlink_to(target)
    carried(Plan((Step("remove", Remove(str(link))),)))
    assert (link.is_symlink(), (target / "kept").exists()) == (False, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "none"),
        ("[metrics]\nlisten = '127.0.0.1:9843'", "localhost"),
        ("[metrics]\nlisten = '0.0.0.0:9843'\nallow_remote = true", "any"),
        ("[otlp]\nendpoint = 'http://[::1]:4318'", "localhost"),
        ("[otlp]\nendpoint = 'http://localhost:4318'", "localhost"),
        ("[otlp]\nendpoint = 'https://tempo.lan'", "any"),
        ("[metrics]\nlisten = '[::1]:1'\n[otlp]\nendpoint = 'http://10.0.0.1'", "any"),
    ],
)
def test_what_the_configuration_needs_to_reach(text: str, expected: str) -> None:
    assert host.network(parse(text.encode(), "test")) == expected


@pytest.mark.parametrize(
    "name", ["ttftd.service", "ttft.sysusers.conf", "config.toml", "network.conf"]
)
def test_what_is_shipped_is_the_only_copy(name: str) -> None:
    assert host.shipped(name) == (Path(__file__).parents[2] / "systemd" / name).read_text()


def test_the_program_is_the_one_beside_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to `ttft`, as pipx makes it, leads to where `ttftd` is."""
    monkeypatch.delenv("TTFT_PROGRAM", raising=False)
    venv, links = tmp_path / "venv", tmp_path / "links"
    for folder in (venv, links):
        folder.mkdir()
    for name in ("ttft", "ttftd"):
        (venv / name).write_text("#!/bin/sh\n")
        (venv / name).chmod(0o755)
    (links / "ttft").symlink_to(venv / "ttft")
    monkeypatch.setattr(sys, "argv", [str(links / "ttft")])
    assert host.program() == str(venv / "ttftd")
    monkeypatch.setenv("TTFT_PROGRAM", str(venv / "ttft"))
    assert host.program() == str(venv / "ttft")
    monkeypatch.setenv("TTFT_PROGRAM", str(tmp_path / "gone"))
    with pytest.raises(TtftError, match="no program ttftd in"):
        host.program()


SHOWN = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "UnitFileState": "enabled",
    "Result": "success",
    "MainPID": "412",
    "NRestarts": "0",
    "StatusText": "watching 1 server",
    "FragmentPath": "/etc/systemd/system/ttftd.service",
    "ActiveEnterTimestamp": "Sun 2026-11-29 18:00:00 UTC",
    "MemoryCurrent": "[not set]",
}
MEMBER = state.Access("/run/ttft/ttft.sock", "ttft", ("alice",), True)


def test_a_service_that_runs() -> None:
    answer = state.answer(SHOWN, MEMBER, "1.2", "1.2", [])
    assert answer == {
        "schema": 1,
        "installed": True,
        "unit": "/etc/systemd/system/ttftd.service",
        "state": "active",
        "result": "success",
        "at_boot": True,
        "since": "Sun 2026-11-29 18:00:00 UTC",
        "pid": 412,
        "restarts": 0,
        "memory_bytes": None,
        "says": "watching 1 server",
        "version": "1.2",
        "installed_version": "1.2",
        "socket": "/run/ttft/ttft.sock",
        "group": "ttft",
        "members": ["alice"],
        "may_ask": True,
        "why_not": None,
        "log": [],
    }
    assert state.lines(answer) == [
        "state     active since Sun 2026-11-29 18:00:00 UTC",
        "at boot   starts",
        "unit      /etc/systemd/system/ttftd.service",
        "version   1.2",
        "says      watching 1 server",
        "socket    /run/ttft/ttft.sock",
        "may ask   root, and members of the group ttft: alice",
    ]


def test_a_service_that_failed() -> None:
    shown = {
        **SHOWN,
        "ActiveState": "failed",
        "UnitFileState": "disabled",
        "Result": "watchdog",
        "NRestarts": "5",
        "MainPID": "0",
        "StatusText": "",
    }
    outsider = state.Access("/run/ttft/ttft.sock", "ttft", (), False, "cannot ask")
    answer = state.answer(shown, outsider, "1.3", None, ["    one", "    two"])
    assert (answer["pid"], answer["state"], answer["at_boot"]) == (None, "failed", False)
    assert state.lines(answer) == [
        "state     failed",
        "at boot   does not start",
        "unit      /etc/systemd/system/ttftd.service",
        "version   1.3 installed",
        "restarts  5 after failures, the last: watchdog",
        "socket    /run/ttft/ttft.sock",
        "may ask   root, and members of the group ttft: nobody yet",
        "you       cannot ask",
        "its last words:",
        "    one",
        "    two",
    ]


def test_no_service() -> None:
    answer = state.answer({"LoadState": "not-found"}, MEMBER, "1.3", None, [])
    assert (answer["installed"], answer["state"]) == (False, "not installed")
    assert state.lines(answer)[1] == "  sudo ttft service install"


def test_an_upgrade_that_was_not_restarted() -> None:
    answer = state.answer(SHOWN, MEMBER, "1.3", "1.2", [])
    assert "version   1.2 runs, 1.3 is installed: sudo ttft service install restarts it" in (
        state.lines(answer)
    )


@pytest.mark.parametrize("command", ["install", "uninstall", "status"])
def test_without_systemd(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(host, "booted", lambda: False)
    ran = Runner(capfdbinary)("service", command)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(
        "ttft: this system is not run by systemd, so there is no service to manage\nhint: "
    )


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_without_root(
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    tmp_path: Path,
) -> None:
    program = tmp_path / "ttftd"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("TTFT_PROGRAM", str(program))
    monkeypatch.setattr(host, "booted", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    ran = Runner(capfdbinary)("service", command)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"ttft: ttft service {command} needs root\n"
        f"hint: sudo {tmp_path}/ttft service {command}; or see what it would do: "
        f"ttft service {command} --dry-run\n"
    )


def test_a_program_in_a_temporary_folder(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "booted", lambda: True)
    monkeypatch.setattr(host, "program", lambda: "/tmp/ttft-1/bin/ttftd")
    ran = Runner(capfdbinary)("service", "install", "--dry-run")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("ttft: /tmp/ttft-1/bin/ttftd lies in a folder that does not last\n")


@pytest.fixture
def tree() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="ttft-open-"))
    made.chmod(0o755)
    (made / "home/bin").mkdir(parents=True)
    program = made / "home/bin/ttftd"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    yield made
    shutil.rmtree(made)


def test_what_only_its_owner_may_run_is_no_service(
    tree: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, link = tree / "home/bin/ttftd", tree / "link"
    link.symlink_to(program)
    assert host.closed(program, link) is None
    program.chmod(0o700)
    assert host.closed(program) == host.closed(link) == program
    program.chmod(0o755)
    (tree / "home").chmod(0o750)
    assert host.closed(link, program) == tree / "home"
    monkeypatch.setattr(host, "booted", lambda: True)
    monkeypatch.setattr(host, "program", lambda: str(program))
    monkeypatch.setattr("tracer.commands.service._PASSING", ())
    ran = Runner(capfdbinary)("service", "install", "--dry-run")
    assert (ran.code, ran.out) == (1, "")
    first = f"ttft: the daemon's own user cannot run {program}: {tree}/home is closed to others\n"
    assert ran.err.startswith(first)


def test_who_is_let_in_by_name_may_be_the_daemon(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "home").chmod(0o750)
    monkeypatch.setattr(os, "getxattr", lambda path, _: b"list" if path.name == "home" else b"")
    assert host.closed(tree / "home/bin/ttftd") is None


def test_exposure_stays_small() -> None:
    """By systemd's own reckoning, where it is installed."""
    unit = Path(__file__).parents[2] / "systemd" / "ttftd.service"
    try:
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=yes", "--threshold=25", str(unit)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("no systemd-analyze here")
    assert done.returncode == 0, done.stdout
