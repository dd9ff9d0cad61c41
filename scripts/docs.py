"""Writes what docs/ has of the tables in tracer/, and a picture from the demo's recording.

python scripts/docs.py            after a change of a code or its explanation
python scripts/docs.py pictures   the picture too
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tracer.answers import answer, detail, dumps  # noqa: E402
from tracer.devices.table import DriverCall, table  # noqa: E402
from tracer.explain import KINDS, Explanation, codes_explained, explain  # noqa: E402
from tracer.recording import replay  # noqa: E402
from tracer.report import charts  # noqa: E402

CAUSES = ROOT / "docs" / "causes"
DRIVERS = ROOT / "docs" / "driver-calls.md"
PICTURES = ROOT / "docs" / "img"
NOTE = "<!-- Made by scripts/docs.py from tracer/codes.py and tracer/explanations.toml. -->"
SHOWN = 8
"""The request of the recording that the picture shows: a switch to a model on the disk."""


def page(one: Explanation) -> str:
    """The page of a code."""
    part = f", part of `{one.phase}`" if one.phase and one.phase != one.code else ""
    lines = [NOTE, f"# {one.code}", "", f"{_capital(one.meaning)} ({one.kind}{part}).", ""]
    if one.not_yet:
        lines += ["This version has no rule that gives it yet.", ""]
    lines += ["## How ttft knows", "", one.how, ""]
    if one.do:
        lines += ["## What to do", "", *(f"- {step}" for step in one.do), ""]
    lines.append("[All codes](README.md)")
    return "\n".join(lines) + "\n"


def index() -> str:
    """The list of all codes."""
    lines = [NOTE, "# Codes", "", "`ttft explain CODE` shows the same in the terminal.", ""]
    for what, title in KINDS.items():
        lines += [f"## {_capital(title)}", "", "| code | meaning |", "|---|---|"]
        lines += [
            f"| [`{code.code}`]({code.code}.md) | {code.meaning} |"
            for code in codes_explained()
            if code.what == what
        ]
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Every file of docs/causes, by name."""
    found = {"README.md": index()}
    for code in codes_explained():
        one = explain(code.code)
        if one is not None:
            found[f"{code.code}.md"] = page(one)
    return found


def driver_calls() -> str:
    """docs/driver-calls.md: which driver calls are known, and what they count as."""
    drivers = [d for d in table().drivers if d.own]
    lines = [
        "<!-- Made by scripts/docs.py from tracer/devices/devicecalls.toml. -->",
        "# Driver calls",
        "",
        "What calls on an accelerator's device node count as, while a model may be loading. "
        "Beside these, open is `open`, mmap is `map` with its length, poll is `sync` and close is "
        "`free`; an ioctl that is not here is `other`. Calls and time in them are exact, bytes "
        "where the argument tells them. Built from the drivers' headers, not yet seen on hardware.",
        "",
        "Kernel launches, copies and waits that spin are no driver calls on NVIDIA, nor on AMD and "
        "Intel where queues are mapped: commands are written to memory and submitted by a store.",
        "",
    ]
    for driver in drivers:
        also = f" Also all of `{driver.entry.also}`." if driver.entry.also else ""
        lines += [f"## {driver.name}", "", f"From {driver.entry.source}.{also}", ""]
        lines += ["| number | call | class | bytes |", "|---|---|---|---|"]
        lines += [_driver_row(call) for call in driver.own] + [""]
    return "\n".join(lines)


def _driver_row(call: DriverCall) -> str:
    number = f"{call.number:#04x}" if call.sub is None else f"{call.number:#04x}, {call.sub:#x}"
    told = "yes" if call.size.kind != "none" else ""
    return f"| {number} | {call.name} | `{call.what}` | {told} |"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def write() -> None:
    """docs/causes, nothing else in it."""
    CAUSES.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in CAUSES.iterdir():
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (CAUSES / name).write_text(text, "utf-8")
    DRIVERS.write_text(driver_calls(), "utf-8")


# --- pictures ----------------------------------------------------------------------------


def pictures() -> None:
    """The waterfall of one request. That of its trace: python -m tests.collectors.perfetto."""
    found = replay(ROOT / "demo" / "recording.ndjson.gz")
    (one,) = (item for item in found if item.evidence.id == SHOWN)
    whole = json.loads(dumps({**answer(one), **detail(one)}))
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / "waterfall.svg").write_text(_alone(charts.waterfall(whole)), "utf-8")


STYLE = (
    "svg{background:#fff} text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#1c1e21}"
    " text.s{font-size:11px;fill:#5b6470} .track{fill:#eceff3} .grid{stroke:#d9dde3}"
    " text.in{font-size:11px;fill:#fff} text.p{font-weight:600}"
)


def _alone(text: str) -> str:
    """A picture of the report as a file of its own."""
    start, end = text.index("<svg"), text.index("</svg>") + len("</svg>")
    text = text[start:end]
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    return text.replace("<svg ", head, 1).replace("<title>", f"<style>{STYLE}</style><title>", 1)


if __name__ == "__main__":
    write()
    if "pictures" in sys.argv[1:]:
        pictures()
