"""The demo that is disturbed ends with an error and a hint, never with a traceback."""

from __future__ import annotations

import subprocess
import sys
from http.client import RemoteDisconnected
from pathlib import Path
from typing import NoReturn

import pytest

from demo import __main__ as demo
from demo import vulkan
from tests.workloads.throttle import ThrottleError
from tests.workloads.waiting import wait_for
from tracer.errors import TtftError


def ends(monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> int:
    """The exit code of a demo that could run here."""
    monkeypatch.setattr(demo, "why_not_live", lambda _: None)
    monkeypatch.setattr(vulkan, "refusal", lambda: None)
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(out), *options])
    return demo.main()


def raises(error: BaseException) -> object:
    def run(*_: object) -> NoReturn:
        raise error

    return run


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("llama-server ended with -9; see router-1.log"),
        ConnectionRefusedError(111, "Connection refused"),
        RemoteDisconnected("Remote end closed connection without response"),
        subprocess.TimeoutExpired("ttft", 120),
        ThrottleError("no cgroup controller for block devices"),
        TtftError("the daemon closed the connection", "is it stopping?"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_disturbs_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    monkeypatch.setattr(demo, "live", raises(error))
    assert ends(monkeypatch, tmp_path) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: the demo could not go on: {error}\n")
    assert f"hint: the daemon's log is {tmp_path / 'ttftd.log'}" in told
    assert "another ttftd" in told
    assert ("hint: is it stopping?\n" in told) == isinstance(error, TtftError)


@pytest.mark.parametrize("options", [(), ("--vulkan",)])
def test_waiting_in_vain(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
) -> None:
    def wait(*_: object) -> NoReturn:
        wait_for(lambda: False, 0, "33 explained requests")
        raise AssertionError

    monkeypatch.setattr(demo, "live", wait)
    monkeypatch.setattr(vulkan, "run", wait)
    assert ends(monkeypatch, tmp_path, *options) == 1
    folder = tmp_path / "vulkan" if options else tmp_path
    told = capsys.readouterr().err
    assert "waited 0 s for 33 explained requests\nhint: " in told
    assert str(folder / "ttftd.log") in told


def test_a_recording_has_no_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "replay", raises(RuntimeError("ttft replay failed")))
    monkeypatch.setattr(demo, "why_not_live", lambda _: "not root")
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path)])
    assert demo.main() == 1
    assert capsys.readouterr().err == "error: the demo could not go on: ttft replay failed\n"


def test_a_bug_of_the_demo_shows_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "live", raises(KeyError("phases_ms")))
    with pytest.raises(KeyError):
        ends(monkeypatch, tmp_path)


def test_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "live", raises(KeyboardInterrupt()))
    assert ends(monkeypatch, tmp_path) == 1
    assert capsys.readouterr().err == "interrupted\n"
