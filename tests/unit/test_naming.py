"""What servers of several containers are called."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tracer.host import naming
from tracer.host.naming import Names, hostname


@pytest.fixture(autouse=True)
def containers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes 10 and 20 are in containers with names, 30 in one that has none."""
    places = {10: "docker first", 20: "ollama.service", 30: None}
    monkeypatch.setattr(naming, "place_of", places.get)
    monkeypatch.setattr(naming, "hostname", lambda path: None)


def test_one_server_has_its_plain_name() -> None:
    names = Names()
    assert names.give("ollama:11434", 10, (1, 11434), {(1, 11434)}) == "ollama:11434"


def test_the_same_port_of_another_network_is_told_apart() -> None:
    names, living = Names(), {(1, 80), (2, 80), (3, 80)}
    assert names.give("vllm:80", 30, (1, 80), living) == "vllm:80"
    assert names.give("vllm:80", 10, (2, 80), living) == "vllm:80@first"
    assert names.give("vllm:80", 30, (3, 80), living) == "vllm:80@3"
    again = [names.give("vllm:80", 30, (place, 80), living) for place in (1, 2, 3)]
    assert again == ["vllm:80", "vllm:80@first", "vllm:80@3"]


def test_a_name_is_free_again_when_its_server_is_gone() -> None:
    names = Names()
    names.give("vllm:80", 10, (1, 80), {(1, 80)})
    assert names.give("vllm:80", 20, (2, 80), {(2, 80)}) == "vllm:80"


def test_two_ports_of_one_server_keep_the_configured_name() -> None:
    names, living = Names(), {(1, 80), (1, 81)}
    assert names.give("chat", 10, (1, 80), living) == "chat"
    assert names.give("chat", 10, (1, 81), living) == "chat"


def test_servers_that_come_and_go_all_the_time_are_forgotten() -> None:
    """And take no longer the more there were."""
    names = Names()
    began = time.monotonic()
    for n in range(100_000):
        place = (1 + n % 7, n % 30_000)
        base = "chat" if n % 2 else f"vllm:{place[1]}"
        assert names.give(base, 30, place, {place}) == base
    assert time.monotonic() - began < 5
    assert len(names._given) <= 260
    assert sum(len(p) for spaces in names._places.values() for p in spaces.values()) <= 260
    living = {(1, port) for port in range(30_000)}
    assert {names.give("chat", 30, place, living) for place in sorted(living)} == {"chat"}
    assert names.give("chat", 30, (2, 80), living | {(2, 80)}) == "chat@2"
    assert time.monotonic() - began < 5


def test_a_name_that_the_configuration_changed() -> None:
    names, living = Names(), {(1, 80), (2, 80)}
    names.give("vllm:80", 10, (1, 80), living)
    names.give("vllm:80", 20, (2, 80), living)
    assert names.give("chat", 20, (2, 80), living) == "chat"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"nas-1\n", "nas-1"), (b"", None), (b"a b\n", None), (b"\x1b[2J\n", None),
        (b"x" * 64, None), (b"\xff\xfe", None),
    ],
)  # fmt: skip
def test_host_names_are_words(tmp_path: Path, text: bytes, name: str | None) -> None:
    path = tmp_path / "hostname"
    path.write_bytes(text)
    assert hostname(os.getpid(), str(path)) == name


def test_a_host_name_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device", "absent", "."):
        assert hostname(os.getpid(), str(tmp_path / name)) is None
