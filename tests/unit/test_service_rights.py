"""What is said of a daemon that lacks a right."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tracer import daemon
from tracer.config import Config
from tracer.errors import KernelError
from tracer.kernel import features, namespaces, rights

UNIT = (Path(__file__).parents[2] / "systemd" / "ttftd.service").read_text()
(_LINE,) = re.findall(r"^AmbientCapabilities=(.*)$", UNIT, re.MULTILINE)
NUMBERS = {
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_FOWNER": 3,
    "CAP_NET_ADMIN": 12,
    "CAP_SYS_PTRACE": 19,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
REQUIRED = ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF"]


def mask_without(*names: str) -> int:
    return sum(1 << bit for name, bit in NUMBERS.items() if name not in names)


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "foreign", lambda _: False)
    monkeypatch.setattr(os, "geteuid", lambda: 997)


def with_mask(monkeypatch: pytest.MonkeyPatch, mask: int) -> None:
    for module in (features, daemon):
        monkeypatch.setattr(module, "capabilities", lambda: mask)


def test_each_right_of_the_unit_is_needed_or_gives_sight() -> None:
    assert sorted(_LINE.split()) == sorted([*REQUIRED, *rights.SIGHT]) == sorted(NUMBERS)
    assert {name: bit for name, (bit, _) in rights.SIGHT.items()} == {
        name: bit for name, bit in NUMBERS.items() if name not in REQUIRED
    }


@pytest.mark.parametrize("name", NUMBERS)
def test_the_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with_mask(monkeypatch, mask_without(name))
    fact = features._privilege()
    unseen = rights.SIGHT[name][1] if name in rights.SIGHT else "everything"
    assert (fact.ok, fact.value, fact.missing) == (False, f"uid 997, without {name}", unseen)


def test_with_all_of_them_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with_mask(monkeypatch, mask_without())
    assert features._privilege() == features.Fact("privilege", "uid 997", True)


def test_who_may_read_all_may_search_too() -> None:
    given = mask_without("CAP_DAC_READ_SEARCH") | 1 << 1  # CAP_DAC_OVERRIDE, as containers have it
    assert rights.blind(given) == {}


def test_one_fact_for_two_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    with_mask(monkeypatch, mask_without("CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"))
    fact = features._privilege()
    assert fact.value == "uid 997, without CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE"
    assert fact.missing == rights.SIGHT["CAP_SYS_PTRACE"][1]


@pytest.mark.parametrize("name", REQUIRED)
def test_the_daemon_does_not_begin_without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with_mask(monkeypatch, mask_without(name))
    with pytest.raises(KernelError, match=f"ttftd lacks {name}$"):
        daemon.run(Config())


def test_the_daemon_says_what_it_will_not_see(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    with_mask(monkeypatch, mask_without("CAP_FOWNER"))
    daemon._check_rights()
    said = capsys.readouterr().err
    assert said == (
        "ttftd: without CAP_FOWNER; not seen: how much of the weights is in the page cache\n"
    )
