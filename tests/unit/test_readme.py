"""The README shows what the recorded demo says, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path

from click.testing import CliRunner

from tracer import render_spikes
from tracer.answers import answer, dumps
from tracer.cli import ttft
from tracer.recording import replay
from tracer.summary import Counts, Sums, slow
from tracer.summary import answer as summed

ROOT = Path(__file__).parents[2]
RECORDING = ROOT / "demo" / "recording.ndjson.gz"
README = (ROOT / "README.md").read_text()
_PLAIN = str.maketrans({"█": "#", "━": "-"})
SHOWN = 8


def sample(start: str, end: str) -> list[str]:
    """The lines of the README from one on, up to another."""
    return README[README.index(start) : README.index(end)].splitlines()


def test_the_waterfall_is_the_recordings() -> None:
    asked = ["replay", str(RECORDING), "--show", str(SHOWN)]
    told = CliRunner().invoke(ttft, asked).output.translate(_PLAIN)
    lines = sample(f"$ ttft show {SHOWN}", "On a fresh Debian")
    shown = [line for line in lines[2:] if line.strip("` ")]
    assert len(shown) > 15
    assert "\n".join(shown) in told


def test_the_sums_are_the_recordings() -> None:
    found = list(map(answer, replay(RECORDING)))
    sums = Sums()
    for one in slow([[dumps(each) for each in found if each["spike"]["is_spike"]]]):
        sums.add(one)
    told = render_spikes.summary(
        summed(Counts(len(found), []), sums, since_ns=0, until_ns=0, model=None, whole=True), "24h"
    )
    lines = sample("Last 24h", f"$ ttft show {SHOWN}")
    assert list(takewhile("...".__ne__, lines)) == told[: lines.index("...")]


def test_the_slow_request_is_the_recordings() -> None:
    one = next(each for each in map(answer, replay(RECORDING)) if each["id"] == SHOWN)
    came = datetime.fromisoformat(one["wall_time"])
    told = render_spikes.spike(one, UTC, now=came + timedelta(hours=3))
    lines = sample(f"#{SHOWN} ", f"$ ttft show {SHOWN}")
    assert [line for line in lines if line] == told
