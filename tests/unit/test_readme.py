"""The README shows what the recorded demo says, and nothing else."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from tracer.cli import ttft

ROOT = Path(__file__).parents[2]
_PLAIN = str.maketrans({"█": "#", "━": "-"})


def test_the_waterfall_is_the_recordings() -> None:
    replay = ["replay", str(ROOT / "demo" / "recording.ndjson.gz"), "--show", "8"]
    told = CliRunner().invoke(ttft, replay).output.translate(_PLAIN)
    readme = (ROOT / "README.md").read_text()
    sample = readme[readme.index("$ ttft show 8") : readme.index("On a fresh Debian")]
    shown = [line for line in sample.splitlines()[2:] if line.strip("` ")]
    assert len(shown) > 15
    assert "\n".join(shown) in told
