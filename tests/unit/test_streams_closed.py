"""A caller that closed standard streams: no traceback, and no file of ours in their place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENTRY = "from tracer.cli import main; main()"


def run(redirects: str, *args: str) -> subprocess.CompletedProcess[str]:
    script = f'exec "$0" -c "{ENTRY}" "$@" {redirects}'
    return subprocess.run(
        ["/bin/sh", "-c", script, sys.executable, *args],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("redirects", ["<&-", "2>&-", ">&-", "<&- >&- 2>&-"])
def test_commands_do_without_standard_streams(tmp_path: Path, redirects: str) -> None:
    nobody = str(tmp_path / "none.sock")
    assert run(redirects, "--socket", nobody, "status").returncode == 3
    shown = run(redirects, "--help")
    assert (shown.returncode, "Traceback" in shown.stderr) == (0, False)


def test_a_closed_stream_does_not_get_the_number_of_a_file() -> None:
    code = (
        "import os, sys\n"
        "from tracer.commands.shared import run\n"
        "import click\n"
        "@click.command()\n"
        "def show(): os.write(int(sys.argv[1]), str(os.open('/dev/zero', 0)).encode())\n"
        "raise SystemExit(run(show, 'show', []))\n"
    )
    reading, writing = os.pipe()
    try:
        script = 'exec "$0" -c "$1" "$2" <&- >&- 2>&-'
        ran = subprocess.run(
            ["/bin/sh", "-c", script, sys.executable, code, str(writing)],
            pass_fds=[writing],
            check=False,
        )
        assert ran.returncode == 0
        assert int(os.read(reading, 10)) > 2
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_standard_error_changes_no_exit_code(tmp_path: Path) -> None:
    assert run("2>/dev/full", "--socket", str(tmp_path / "none.sock"), "status").returncode == 3
