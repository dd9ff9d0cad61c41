"""`ttft report`: one page that holds what it says and nothing that acts, whatever names come."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.answer_cases import ARRIVAL, MS, spike, warm
from tests.unit.cli_runs import Runner
from tests.unit.fake_daemon import FakeDaemon, serving
from tests.unit.test_cli_spikes import HOSTILE, OBEYED, hostile
from tests.unit.test_render import odd_answers
from tests.unit.test_summary import COUNTS, back, summed
from tracer.report import Data, charts, page, worst
from tracer.summary import lost_ms

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VOID = {"meta", "link", "br", "img", "hr", "line", "rect"}
ACTING = {"script", "iframe", "object", "embed", "form", "link", "img", "base", "image", "use"}
MADE = datetime(2026, 1, 31, 12, 1, tzinfo=UTC)


class Page(HTMLParser):
    """Tags in order, those left open, attributes, and text by the tag it is in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[tuple[str, str]] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str) -> list[str]:
        return [text for where, text in self.texts if where == tag]


def sound(text: str) -> Page:
    """Well formed, at rest, alone, and readable by all."""
    found = Page(text)
    assert (found.open, found.wrong) == ([], [])
    assert not ACTING & set(found.tags)
    links = [value for _, name, value in found.attributes if name in ("href", "src", "action")]
    ids = {value for _, name, value in found.attributes if name == "id"}
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert "url(" not in text
    assert "http://" not in text.replace("http-equiv", "")
    pictures = [value for tag, name, value in found.attributes if (tag, name) == ("svg", "role")]
    assert pictures == ["img"] * found.tags.count("svg")
    assert found.tags.count("caption") == found.tags.count("table")
    assert found.tags.count("h1") == 1
    assert ("html", "lang", "en") in found.attributes
    scopes = [value for tag, name, value in found.attributes if (tag, name) == ("th", "scope")]
    assert len(scopes) == found.tags.count("th")
    return found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    with serving(tmp_path_factory.mktemp("cli")) as running:
        yield running


@pytest.fixture
def ask(capfdbinary: pytest.CaptureFixture[bytes], daemon: FakeDaemon) -> Runner:
    return Runner(capfdbinary, daemon.socket)


def test_the_command(ask: Runner, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    ran = ask("report", "-o", str(out), "--since", "36500d")
    assert (ran.code, ran.out) == (0, "")
    assert "open it in a browser" in ran.err
    found = sound(out.read_text())
    assert found.of("h2") == ["Causes over time", "Models", "The worst of each cause",
                              "Slow first tokens"]  # fmt: skip
    assert "#17  beta: 1.91 s, typically 31.0 ms" in found.of("h3")
    assert found.of("b") == ["3", "1", "1.88 s", "load.disk"]
    assert ask("report", "-o", "-", "--since", "36500d").out.startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        (["--since", "1s"], "No requests in the last 1s", "give a longer --since"),
        (["--since", "1s", "--model", "beta"], "No requests for beta", "give a longer --since"),
        (["--model", "none"], "no requests for none", "ttft models lists those that were seen"),
    ],
)
def test_nothing_to_report_on(
    ask: Runner, tmp_path: Path, options: list[str], said: str, hint: str
) -> None:
    ran = ask("report", "-o", str(tmp_path / "r"), *options)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"ttft: {said}")
    assert ran.err.endswith(f"hint: {hint}\n")
    assert list(tmp_path.iterdir()) == []


def test_no_longer_time_helps_an_empty_history(run: Runner, tmp_path: Path) -> None:
    with serving(tmp_path, requests=()) as running:
        ran = run("--socket", str(running.socket), "report", "-o", str(tmp_path / "r"))
    told = "ttft: there are no requests yet\nhint: ttft status says what is watched\n"
    assert (ran.code, ran.err) == (1, told)


def test_a_quiet_time_is_told_so(ask: Runner, daemon: FakeDaemon) -> None:
    daemon.backend.store.put([warm(40, model="calm")])
    found = sound(ask("report", "-o", "-", "--since", "36500d", "--model", "calm").out)
    assert "No first token was slow in this time." in found.of("p")


def test_names_are_only_text(ask: Runner, daemon: FakeDaemon) -> None:
    daemon.backend.store.put([hostile(66)])
    text = ask("report", "-o", "-", "--since", "36500d").out
    sound(text)
    assert not OBEYED & set(text)
    assert "owned" in text


MARKUP = '"><script>alert(1)</script><img src=x onerror=alert(1)>&amp;'


@settings(max_examples=40, deadline=None)
@given(st.lists(odd_answers(), min_size=1, max_size=3), st.sampled_from([MARKUP, HOSTILE, "x"]))
def test_any_answer_makes_a_sound_page(found: list[dict[str, Any]], name: str) -> None:
    summary = summed([spike(1), back(2)], COUNTS) | {"model": name}
    for row in summary["by_cause"] + summary["by_model"]:
        for key in ("cause", "means", "advice", "model"):
            if key in row:
                row[key] = name
    whole = [{**one, "model": name, "server": name, "endpoint": name} for one in found]
    text = page(Data(summary, whole, whole, [], MADE), UTC)
    seen = sound(text)
    assert name != MARKUP or MARKUP in seen.of("h1")[0]


def test_times_fall_into_their_columns() -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    for hours in (1, 24, 24 * 7, 24 * 400):
        until = since + timedelta(hours=hours)
        lost = [(since + (until - since) * n / 20, "load.disk", 100.0) for n in range(20)]
        text = charts.over_time(lost, since, until, ["load.disk"], UTC)
        bars = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', text)
        assert 5 < len(bars) <= 20
        assert all(0 <= float(x) <= 960 for x, _, _ in bars)
        assert max(float(tall) for _, _, tall in bars) == 185
        assert "2.00 s" in text.partition("<desc>")[2].partition("</desc>")[0]


def test_months_have_their_year_where_there_are_several() -> None:
    since = datetime(1990, 1, 1, tzinfo=UTC)
    text = charts.over_time([], since, since + timedelta(days=36_500), ["load.disk"], UTC)
    assert re.search(r">[A-Z][a-z]{2} (19|20)\d\d<", text)
    assert not re.search(r">\d\d [A-Z][a-z]{2}<", text)


def test_each_cause_is_shown_before_one_is_shown_twice() -> None:
    def one(number: int, cause: str, extra: float) -> dict[str, Any]:
        found = summed_one(number)
        found["spike"]["cause"] = cause
        found["phases_ms"]["load"] += extra
        return found

    found = [one(1, "load.disk", 900), one(2, "load.disk", 800), one(3, "queue.busy", 0)]
    assert [item["id"] for item in worst(found, 2)] == [1, 3]
    assert [item["id"] for item in worst(found, 9)] == [1, 3, 2]
    assert lost_ms(found[0]) > lost_ms(found[2])


def summed_one(number: int) -> dict[str, Any]:
    from tests.unit.test_render import listed

    return listed(spike(number, ARRIVAL + number * MS))


@pytest.mark.chromium
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_draws_it(ask: Runner, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    out, shot = tmp_path / "report.html", tmp_path / "shot.png"
    assert ask("report", "-o", str(out), "--since", "36500d").code == 0
    ran = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}", "--window-size=900,1400",
            f"--screenshot={shot}", out.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0
    assert "CONSOLE" not in ran.stderr
    # A blank page of this size compresses to a few kB.
    assert shot.stat().st_size > 30_000
