"""Names of units and containers, and entries for the journal."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.answer_cases import spike, warm
from tests.unit.fake_daemon import MODELS, STATUS
from tests.unit.test_cli_spikes import HOSTILE, OBEYED, hostile
from tracer import answers_state, exports, journal, render
from tracer.config import Config, MetricsSection
from tracer.exports import Exports
from tracer.host.place import place_in, place_of
from tracer.render_state import status as status_lines

ID = "3f" * 32


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("0::/system.slice/ollama.service\n", "ollama.service"),
        (f"0::/system.slice/docker-{ID}.scope\n", "docker ollama"),
        (f"12:cpu:/docker/{ID}\n0::/\n", "docker ollama"),
        (f"0::/machine.slice/libpod-{ID}.scope/container\n", "podman 3f3f3f3f3f3f"),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n",
         "kubernetes 3f3f3f3f3f3f"),
        ("0::/lxc.payload.media/system.slice/ollama.service\n", "lxc media"),
        ("0::/machine.slice/machine-nas\\x2dai.scope/payload\n", "machine nas-ai"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/lm.service\n", "lm.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
        ("0::/\n", None),
        ("", None),
        ("garbage", None),
        ("0::/docker-../../etc/passwd.scope\n", None),
    ],
)  # fmt: skip
def test_places(text: str, place: str | None) -> None:
    assert place_in(text, lambda number: "ollama" if number == ID else None) == place


@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    found = place_in(text, lambda _: None)
    assert found is None or found.isprintable()


def test_dockers_own_name_for_it(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"0::/system.slice/docker-{ID}.scope\n")
    config = tmp_path / ID / "config.v2.json"
    config.parent.mkdir()
    for text, name in (
        ('{"ID": "x", "Name": "/open-webui", "Config": {}}', "docker open-webui"),
        ('{"Name": "/\\u001b[31m"}', "docker 3f3f3f3f3f3f"),
        ("{", "docker 3f3f3f3f3f3f"),
        ("{}", "docker 3f3f3f3f3f3f"),
    ):
        config.write_text(text)
        assert place_of(7, tmp_path, tmp_path) == name
    config.unlink()
    assert place_of(7, tmp_path, tmp_path) == "docker 3f3f3f3f3f3f"
    assert place_of(8, tmp_path, tmp_path) is None


def test_where_it_is_shown() -> None:
    server = replace(STATUS.servers[0], place="docker ollama")
    told = answers_state.status(replace(STATUS, servers=(server,)))
    assert "  in docker ollama" in status_lines(told)
    model = answers_state.model(replace(MODELS[0], places=("ollama.service",)))
    assert "  held by process 102 in ollama.service" in render.models([model])


# --- the journal --------------------------------------------------------------------------


def test_an_entry() -> None:
    assert journal.entry(spike()) == {
        "MESSAGE": "request 17 for beta: first token after 1.91 s (typically 31.0 ms), load.disk. "
        "253 MB of beta.gguf came from disk at 281 MB/s after the switch from alpha.",
        "TTFT_REQUEST": "17",
        "TTFT_SERVER": "llama-server:8080",
        "TTFT_MODEL": "beta",
        "TTFT_CAUSE": "load.disk",
        "TTFT_MS": "1912.400",
        "TTFT_TYPICAL_MS": "31.000",
        "TTFT_OUTCOME": "ok",
        "TTFT_ADVICE": "Keep both models resident (--models-max 2), or keep the file in the page "
        "cache.",
    }
    gone = replace(spike(), ttft_ns=None, outcome="client_gone", model=None)
    assert "a model unknown: no first token after 1.91 s" in journal.entry(gone)["MESSAGE"]


def test_no_name_makes_a_field_of_its_own() -> None:
    for value in journal.entry(hostile(1)).values():
        assert "\n" not in value
        assert not OBEYED & set(value)
    assert "owned" in journal.entry(hostile(1))["TTFT_MODEL"]
    assert HOSTILE not in journal.entry(hostile(1))["TTFT_MODEL"]


def test_it_arrives_in_the_journals_protocol(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.bind(str(tmp_path / "socket"))
        assert journal.send(journal.entry(spike()), str(tmp_path / "socket"))
        lines = there.recv(65536).decode().splitlines()
    assert lines[:2] == ["SYSLOG_IDENTIFIER=ttftd", "PRIORITY=5"]
    assert "TTFT_CAUSE=load.disk" in lines
    assert not journal.send({"MESSAGE": "x"}, str(tmp_path / "nobody"))


def test_where_there_is_no_journal_it_is_a_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    Exports(Config(), lambda: b"").add([spike(), warm(18)])
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ttftd: request 17 for beta: first token after 1.91 s")


def test_the_journal_is_told_apart_from_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{here.st_dev}:{here.st_ino}")
    assert journal.connected()
    monkeypatch.setenv("JOURNAL_STREAM", f"{here.st_dev}:{here.st_ino + 1}")
    assert not journal.connected()
    assert not journal.connected(-1)


def test_a_service_without_a_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "alone", lambda: True)
    ours = Exports(Config(metrics=MetricsSection(listen="127.0.0.1:9843")), lambda: b"")
    (state,) = ours.states()
    assert "systemctl edit ttftd" in (state.trouble or "")
    told = answers_state.status(replace(STATUS, exports=(state,)))
    assert max(map(len, status_lines(told))) <= 80
