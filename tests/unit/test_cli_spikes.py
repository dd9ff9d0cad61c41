"""`ttft spikes` and `ttft watch`, as a user runs them, against a real socket."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import orjson
import pytest
from msgspec.structs import replace

from tests.unit.answer_cases import ARRIVAL, MS, spike, warm
from tests.unit.cli_runs import MAIN, ROOT, Runner
from tests.unit.fake_daemon import FakeDaemon, serving
from tests.workloads.waiting import wait_for
from tracer import answers
from tracer.commands.watch import _Shown
from tracer.derived import Derived

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202eevil\x7f\n\U000e0001"
OBEYED = set("\x1b\x07\x9b\u202e\x7f\U000e0001")


def test_the_sum_comes_first_then_each(ask: Runner) -> None:
    ran = ask("spikes", "--since", "36500d")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Last 36500d: 1 of 3 requests had a slow first token.\n")
    assert ran.out.index("CAUSE") < ran.out.index("MODEL") < ran.out.index("#17")
    only = ask("spikes", "--since", "36500d", "--summary").out
    assert ran.out.startswith(only)
    assert "#17  " not in only


def test_the_sum_as_json(ask: Runner) -> None:
    found = ask("spikes", "--since", "36500d", "--summary", "--json").json
    assert (found["schema"], found["requests"], found["spikes"]) == (1, 3, 1)
    assert [row["cause"] for row in found["by_cause"]] == ["load.disk"]
    assert ask("spikes", "--model", "none", "--json").json == []


def test_nothing_slow_today_and_nothing_at_all(ask: Runner, run: Runner, tmp_path: Path) -> None:
    assert ask("spikes").out.startswith("No requests in the last 24h.")
    with serving(tmp_path) as running:
        for number in (16, 17, 18):
            running.backend.store.put([warm(number)])
        ran = run("--socket", str(running.socket), "spikes", "--since", "36500d")
    assert (ran.code, ran.out) == (
        0, "No slow first token in the last 36500d, of 3 requests.\n"
    )  # fmt: skip


def test_a_screen_is_filled_and_not_more(daemon: FakeDaemon) -> None:
    with_many = [spike(100 + n, ARRIVAL + n * MS) for n in range(30)]
    daemon.backend.store.put(with_many)
    screen = on_terminal("--socket", str(daemon.socket), "spikes", rows=40)
    assert 20 < screen.count("\n") <= 40
    assert "#129" in screen
    assert "#101 " not in screen
    assert "more with --last" in screen
    assert "\x1b[31m" in screen


def test_no_color_means_none(daemon: FakeDaemon) -> None:
    for variable in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        screen = on_terminal("--socket", str(daemon.socket), "show", "17", rows=40, **variable)
        assert "\x1b" not in screen
        assert "\u2588" in screen


def on_terminal(*arguments: str, rows: int, **variables: str) -> str:
    """What it writes to a terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "LINES": str(rows), "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        stdout=follower,
        stderr=follower,
        cwd=ROOT,
        env={**environment, "PYTHONIOENCODING": "utf-8", **variables},
    ) as child:
        os.close(follower)
        pieces = []
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the other side is closed
                break
            pieces.append(piece)
            if not piece:
                break
    os.close(leader)
    assert child.returncode == 0
    return b"".join(pieces).decode()


def hostile(number: int) -> Derived:
    item = spike(number, ARRIVAL + 10_000 * MS)
    says = item.spike
    return replace(
        item,
        model=HOSTILE,
        incomplete_because=HOSTILE,
        complete=False,
        facts=replace(item.facts, weights=(HOSTILE,), switched_from=HOSTILE),
        spike=replace(says, because=HOSTILE, advice=HOSTILE, cause=HOSTILE, why=(HOSTILE,)),
        evidence=replace(
            item.evidence,
            server=HOSTILE,
            request=replace(item.evidence.request, endpoint=HOSTILE),
            files=tuple(replace(file, path=HOSTILE) for file in item.evidence.files),
        ),
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["requests"], ["requests", "--json"], ["spikes", "--since", "36500d"],
        ["spikes", "--json"], ["spikes", "--since", "36500d", "--summary", "--json"],
        ["show", "66"], ["show", "66", "--json"], ["show", HOSTILE], ["models"], ["status"],
        ["requests", "--since", HOSTILE], [HOSTILE], ["requests", "--model", HOSTILE],
        ["export", "66", "-o", f"/none/{HOSTILE}"], ["replay", HOSTILE], ["doctor"],
        ["spikes", "--model", HOSTILE + "x"],
    ],
)  # fmt: skip
def test_no_name_reaches_the_terminal_as_a_command(
    ask: Runner, daemon: FakeDaemon, arguments: list[str]
) -> None:
    daemon.backend.store.put([hostile(66)])
    ran = ask(*arguments)
    assert not OBEYED & set(ran.out + ran.err)
    assert "Traceback" not in ran.err
    if "--json" in arguments and "--summary" not in arguments:
        found = ran.json if isinstance(ran.json, list) else [ran.json]
        assert HOSTILE in [item["model"] for item in found]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_watch(tmp_path: Path, options: list[str]) -> None:
    slow = answers.dumps(answers.answer(spike(70)))
    with serving(tmp_path) as running, watching(running.socket, *options) as child:
        wait_for(lambda: running.backend.fanout.readers == 1, 20, "the client to watch")
        running.do(running.backend.fanout.publish, slow)
        running.do(running.backend.fanout.publish, slow)
        running.do(running.backend.fanout.publish, b'{"schema":1,"lost":3}')
        lines = read_until(child, "Keep both models" if not options else '"lost"')
        child.send_signal(signal.SIGINT)
        rest, _ = child.communicate(timeout=20)
    assert (child.returncode, rest) == (0, rest)
    if options:
        told = [orjson.loads(line) for line in lines]
        assert [one.get("id") for one in told] == [70, 70, None]
        return
    text = "".join(lines)
    assert [line.split()[0] for line in lines[:1]] == ["ID"]
    assert text.count("    70  ") == 1
    assert "caused by the switch from alpha" in text


@pytest.mark.parametrize("complete", [True, False])
def test_a_slow_one_that_still_generates_is_told_with_its_cause(
    capfdbinary: pytest.CaptureFixture[bytes], complete: bool
) -> None:
    item = spike(75)
    going_on = replace(item.evidence.request, end_ns=None, why=None)
    early = replace(
        item,
        outcome="open",
        complete=complete,
        incomplete_because=None if complete else "open: the request was still under way",
        evidence=replace(item.evidence, request=going_on),
    )
    _Shown(False).add(orjson.loads(answers.dumps(answers.answer(early))))
    out = capfdbinary.readouterr().out.decode()
    assert "         load.disk; caused by the switch from alpha\n" in out
    assert "open" not in out


def test_watch_on_a_terminal_tells_what_waits(tmp_path: Path) -> None:
    waits = replace(spike(72), outcome="open", ttft_ns=None, model=HOSTILE)
    leader, follower = pty.openpty()
    with serving(tmp_path) as running:
        running.backend.open = [waits, warm(73)]
        with subprocess.Popen(
            [sys.executable, "-c", MAIN, "--socket", str(running.socket), "watch"],
            stdout=follower,
            stderr=follower,
            cwd=ROOT,
            env={**os.environ, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"},
        ) as child:
            os.close(follower)
            seen = until(leader, "\r\x1b[Kwaiting: #72 ")
            running.backend.open = []
            running.do(running.backend.fanout.publish, answers.dumps(answers.answer(spike(74))))
            seen += until(leader, "    74  ")
            child.send_signal(signal.SIGINT)
            until(leader, None)
        assert child.returncode == 0
    os.close(leader)
    assert "\r\x1b[Kwaiting: #72 " in seen
    assert "#73" not in seen
    assert not (OBEYED - {"\x1b"}) & set(seen)
    lines = seen.replace("\x1b[K", "").split("\r")
    assert max(len(line.strip("\n")) for line in lines) <= 80


def until(leader: int, word: str | None) -> str:
    """What a terminal shows up to a word, or to its end."""
    text = ""
    while word is None or word not in text:
        assert select.select([leader], [], [], 60)[0], f"{word!r} did not come: {text!r}"
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other side is closed
            return text
        text += piece.decode(errors="replace")
        if not piece:
            return text
    return text


def test_watch_outlives_a_restart(tmp_path: Path) -> None:
    with ExitStack() as stack:
        with serving(tmp_path) as running:
            child = stack.enter_context(watching(running.socket))
            fanout = running.backend.fanout
            wait_for(lambda: fanout.readers == 1, 20, "the client to watch")
        with serving(tmp_path) as again:
            fanout_again = again.backend.fanout
            wait_for(lambda: fanout_again.readers == 1, 20, "the client to come back")
            again.do(fanout_again.publish, answers.dumps(answers.answer(spike(71))))
            lines = read_until(child, "    71  ")
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=20)
    assert (child.returncode, "71" in lines[-1]) == (0, True)


@contextmanager
def watching(socket: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", MAIN, "--socket", str(socket), "watch", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def read_until(child: subprocess.Popen[str], word: str) -> list[str]:
    assert child.stdout is not None
    lines = []
    for line in child.stdout:
        lines.append(line)
        if word in line:
            return lines
    raise AssertionError(f"{word!r} was not in {lines}")
