"""What holds of every way to install it."""

from __future__ import annotations

import json
from typing import Any

from tests.service.machine import Said, Story

EXPOSURE_MAX = 2.5
OUTSIDER = (
    "ttft: no permission to use /run/ttft/ttft.sock\n"
    "hint: use sudo, or join the group ttft: sudo usermod -aG ttft $USER, "
    "then log out and in again"
)


def requests(said: Said) -> list[dict[str, Any]]:
    """The requests of an answer, oldest first; what was printed around it is passed over."""
    text = said.output
    begin, end = text.index("[\n"), text.rindex("\n]") + 2
    found: list[dict[str, Any]] = json.loads(text[begin:end])
    return sorted(found, key=lambda answer: answer["id"])


def exposure(said: Said) -> float:
    """As `systemd-analyze security` reckons it."""
    return float(said.output.partition(": ")[2].split()[0])


def assert_answers_of_a_real_server(story: Story) -> None:
    """A member of the group learns what the server did, and why it was slow."""
    assert story.said("ask").lines == ["HTTP/1.1 200 OK", "4"] * 4
    found = requests(story.said("member"))
    assert [(answer["outcome"], answer["model"]) for answer in found] == [
        ("ok", "alpha"), ("ok", "alpha"), ("ok", "alpha"), ("ok", "beta"),
    ]  # fmt: skip
    for answer in found:
        assert answer["server"] == "llama-server:8080"
        assert answer["ttft_ms"] > 0
        total = round(sum(answer["phases_ms"].values()) * 1e6)
        assert total == round(answer["ttft_ms"] * 1e6), "phases add up"
    first, _, warm, switch = found
    for cold in (first, switch):
        assert cold["spike"]["is_spike"] is True
        assert cold["evidence"]["processes_started"] == 1
        assert cold["phases_ms"]["spawn"] > 0
    assert switch["weights"] == ["beta.gguf"]
    assert switch["spike"]["switch_is_cause"] is True
    assert switch["evidence"]["switched_from"] == "alpha"
    assert warm["phases_ms"]["spawn"] == warm["phases_ms"]["init"] == 0
    assert warm["ttft_ms"] < first["ttft_ms"]
    assert {answer["id"] for answer in requests(story.said("spikes-json"))} >= {1, 4}
    shown = story.said("show")
    assert shown.status == 0
    assert "beta" in shown.output and "spawn" in shown.output
    assert max(map(len, shown.lines)) <= 80
    assert story.said("status").lines[0].startswith("ttftd ")
    assert "llama-server:8080" in story.said("status").output
    assert story.said("spikes").status == 0


def assert_others_learn_nothing(story: Story) -> None:
    """Who is not in the group is told how to get in, and no more; nobody is root."""
    assert story.said("outsider") == Said(1, OUTSIDER)
    service = story.said("outsider-service").output
    assert "cannot ask: sudo usermod -aG ttft bob" in service
    assert "alpha" not in service
    assert story.said("who").output.split()[0] == "ttft"
    assert exposure(story.said("exposure")) <= EXPOSURE_MAX


def assert_no_forbidden_call(story: Story) -> None:
    """The whole session with a filter that kills: the same process, never restarted."""
    began, ended = story.said("strict"), story.said("strict-end")
    assert ended.lines == [began.lines[-1], "0", "0"]


def assert_survives(story: Story) -> None:
    """At boot, after SIGKILL, after a hang: there again, with its history."""
    before = requests(story.said("upgraded"))
    assert len(before) >= 4
    assert requests(story.said("booted")) == before
    killed = story.said("killed")
    assert requests(killed) == before
    assert "restarts  1 after failures" in killed.output
    assert story.said("hang").lines == [str(len(before)), "success", "Watchdog timeout"]


def assert_downgrade_touches_nothing(story: Story) -> None:
    """An older ttft that cannot read the history says so and leaves it."""
    lines = story.said("downgrade").lines
    sums = [line for line in lines if line.endswith("  -")]
    assert len(sums) == 2 and sums[0] == sums[1]
    assert any("the history has schema 99, this ttft knows up to" in line for line in lines)
    again = story.said("again")
    assert again.status == 0, again.output
    assert requests(again) == requests(story.said("upgraded"))
