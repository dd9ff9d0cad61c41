"""Commands that write and read files, against a real socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from tests.unit.cli_runs import MAIN, ROOT, Runner
from tests.unit.fake_daemon import serving
from tracer.recording import end_line, header, line
from tracer.records import Host, Tick


def test_export(ask: Runner, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    ran = ask("export", "17", "-o", str(out))
    assert (ran.code, ran.out) == (0, "")
    assert "open it in https://ui.perfetto.dev" in ran.err
    assert orjson.loads(out.read_bytes())["traceEvents"]
    assert ask("export", "--since", "36500d", "-o", "-").json["traceEvents"]
    assert list(tmp_path.iterdir()) == [out]


def test_a_failed_export_leaves_the_old_file(ask: Runner, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    out.write_text("old")
    assert ask("export", "99", "-o", str(out)).code == 1
    assert out.read_text() == "old"
    ran = ask("export", "17", "-o", str(tmp_path / "no" / "trace.json"))
    assert ran.code == 1
    assert "there is no folder" in ran.err


def test_a_trace_of_no_requests_is_not_written(
    tmp_path: Path, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "trace.json"
    with serving(tmp_path) as running:
        none = b'{"otherData":{"schema":1},"traceEvents":[]}'
        monkeypatch.setattr(running.backend, "export", lambda _: iter([none]))
        ran = run("--socket", str(running.socket), "export", "--since", "1s", "-o", str(out))
    assert (ran.code, ran.out) == (1, "")
    assert "no requests in the last 1s" in ran.err
    assert not out.exists()


def test_a_recording_needs_a_file(ask: Runner) -> None:
    ran = ask("record", "-o", "-")
    assert (ran.code, ran.out) == (2, "")
    assert "needs a file" in ran.err


def records_of_a_day() -> list[bytes]:
    host = Host(ts_ns=1, wall_offset_ns=0, machine="x86_64", kernel="6", version="0", began_ns=1)
    return [line(host), line(Tick(ts_ns=2))]


def test_record_and_replay(tmp_path: Path, run: Runner) -> None:
    out = tmp_path / "day.ttft"
    records = records_of_a_day()
    with serving(tmp_path) as running:
        running.backend.recording_head = header() + b"".join(records)
        ran = run("--socket", str(running.socket), "record", "-o", str(out), "--for", "100ms")
    assert (ran.code, ran.out) == (0, "")
    assert ": 2 records, " in ran.err
    assert out.read_bytes() == header() + b"".join(records) + end_line(2)
    ran = run("replay", str(out), "--json")
    assert (ran.code, ran.json, ran.err) == (0, [], "")


def test_a_recording_cut_off_says_so_and_replays(tmp_path: Path, run: Runner) -> None:
    out = tmp_path / "day.ttft"
    path = tmp_path / "s"
    records = records_of_a_day()
    half = header() + records[0] + records[1][:5]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        pid = os.fork()
        if pid == 0:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            connection.sendall(b"%x\r\n%s\r\n" % (len(half), half))
            os._exit(0)
        ran = run("--socket", str(path), "record", "-o", str(out))
        os.waitpid(pid, 0)
    assert ran.code == 1
    assert f"{out} is truncated" in ran.err
    assert out.read_bytes() == header() + records[0]
    ran = run("replay", str(out))
    assert (ran.code, ran.out) == (0, "No requests.\n")
    assert "is truncated" in ran.err


def test_ctrl_c_ends_a_recording_well(tmp_path: Path, run: Runner) -> None:
    out = tmp_path / "day.ttft"
    with serving(tmp_path) as running:
        running.backend.recording_head = header() + b"".join(records_of_a_day())
        with subprocess.Popen(
            [sys.executable, "-c", MAIN, "--socket", running.socket, "record", "-o", out],
            stderr=subprocess.PIPE,
            cwd=ROOT,
        ) as child:
            deadline = time.monotonic() + 20
            # The client has asked once the daemon's side is being read.
            while not running.backend.recording.readers and time.monotonic() < deadline:
                time.sleep(0.01)
            running.do(running.backend.recording.publish, line(Tick(ts_ns=3)) * 2000)
            while not out.exists() or out.stat().st_size < 8192:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            child.send_signal(signal.SIGINT)
            assert child.stderr is not None
            err = child.stderr.read().decode()
        assert (child.returncode, "Traceback" in err) == (0, False)
    assert out.read_bytes().splitlines()[-1].startswith(b'{"end":')
    ran = run("replay", str(out))
    assert (ran.code, ran.err) == (0, "")


def test_a_failed_recording_leaves_the_old_file(tmp_path: Path, run: Runner) -> None:
    out = tmp_path / "day.ttft"
    out.write_text("old")
    ran = run("--socket", str(tmp_path / "none"), "record", "-o", str(out))
    assert (ran.code, out.read_text()) == (3, "old")


def test_a_recording_goes_to_a_file_only(ask: Runner) -> None:
    ran = ask("record", "-o", "/dev/full", "--for", "50ms")
    assert (ran.code, ran.err.splitlines()[0]) == (1, "ttft: /dev/full is not a regular file")


def test_a_full_disk_truncates_a_recording(tmp_path: Path) -> None:
    out = tmp_path / "day.ttft"
    with serving(tmp_path) as running:
        running.backend.recording_head = header() + records_of_a_day()[1] * 2000
        limited = f"ulimit -f 8; {sys.executable} -c '{MAIN}' --socket {running.socket}"
        ran = subprocess.run(
            ["bash", "-c", f"trap '' XFSZ; {limited} record -o {out}"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert ran.returncode == 1
    assert f"{out} is truncated: File too large" in ran.stderr
    assert out.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "No such file or directory"),
        (b"", "line 1: not a ttft recording"),
        (b"\x00\xff" * 50, "line 1: not a ttft recording"),
        (header() + b"{}\n", "line 2: not a record"),
    ],
)
def test_replay_of_what_is_no_recording(
    tmp_path: Path, run: Runner, content: bytes | None, error: str
) -> None:
    path = tmp_path / "r.ttft"
    if content is not None:
        path.write_bytes(content)
    ran = run("replay", str(path))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"ttft: {path}")
    assert error in ran.err
    assert "\nhint: " in ran.err


def test_replay_of_one_that_is_not_there(tmp_path: Path, run: Runner) -> None:
    path = tmp_path / "r.ttft"
    path.write_bytes(header() + end_line(0))
    ran = run("replay", str(path), "--show", "3")
    assert (ran.code, ran.err) == (1, f"ttft: no request 3 in {path}\nhint: there is: none\n")
