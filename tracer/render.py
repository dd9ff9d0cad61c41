"""Answers as text: listings. At most 80 columns, whatever the answers hold.

Functions take the JSON objects of the interface and return lines. `show` is in
render_show.py, status and doctor are in render_state.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, tzinfo
from typing import Any

from tracer.render_units import duration, fit, left, right, size, width, wrap

COLUMNS = 80

Json = dict[str, Any]
Paint = Callable[[str, str], str]
"""(kind of text, text) to the text with or without colour; kinds: bad, good, dim, head."""

_COLOURS = {"bad": "31", "good": "32", "dim": "2", "head": "1"}


def plain(_: str, text: str) -> str:
    """No colour."""
    return text


def colour(kind: str, text: str) -> str:
    """For a terminal."""
    return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if text.strip() else text


def moment(wall_time: str, zone: tzinfo | None = None) -> tuple[str, str]:
    """(date, time of day to the millisecond) of an RFC 3339 time; `zone` None: local."""
    when = datetime.fromisoformat(wall_time).astimezone(zone)
    return f"{when:%Y-%m-%d}", f"{when:%H:%M:%S}.{when.microsecond // 1000:03d}"


def columns(fields: Iterable[tuple[object, int]], gap: int = 2) -> str:
    """One line of a table; a negative width aligns right."""
    cells = [left(text, wide) if wide > 0 else right(text, -wide) for text, wide in fields]
    return (" " * gap).join(cells).rstrip()


_ENDED = {"client_gone": "gone", "server_died": "died", "server_error": "error"}


def verdict(answer: Json) -> str:
    """The cause of a spike, else how it ended, in a word or two; `?` where incomplete."""
    spike, outcome = answer["spike"], answer["outcome"]
    if outcome == "open":
        return "open" if answer["at_ns"]["end"] is None else "end unseen"
    if spike["is_spike"]:
        word = spike["cause"] or "unknown"
    elif outcome == "ok":
        word = "ok" if answer["ttft_ms"] is not None else "not seen"
    elif outcome == "server_error" and answer["status"] is not None:
        word = f"error {answer['status']}"
    else:
        word = _ENDED[outcome] + (f" in {answer['died_in']}" if answer["died_in"] else "")
    return word if answer["complete"] else f"{word} ?"


def largest(answer: Json) -> str:
    """The phase that took most, with its time."""
    phases = {name: value for name, value in answer["phases_ms"].items() if value}
    if not phases:
        return "-"
    name = max(phases, key=lambda phase: phases[phase])
    return f"{name} {duration(phases[name])}"


def requests(
    answers: Sequence[Json], zone: tzinfo | None = None, paint: Paint = plain
) -> list[str]:
    """The table of `ttft requests`, oldest first, a line for each new day."""
    if not answers:
        return ["No requests."]
    head = [("ID", -6), ("TIME", 8), ("MODEL", 17), ("TTFT", -7), ("MOST OF IT", 16)]
    lines = [paint("head", columns([*head, ("VERDICT", 16)]))]
    day = ""
    for answer in answers:
        date, clock = moment(answer["wall_time"], zone)
        if date != day:
            lines.append(paint("dim", date))
            day = date
        fields: list[tuple[object, int]] = [
            (answer["id"], -6),
            (clock[:8], 8),
            (answer["model"] or "-", 17),
            (duration(answer["ttft_ms"]), -7),
            (largest(answer), 16),
        ]
        start = columns(fields)
        start += " " * (COLUMNS - 16 - width(start))
        word = fit(verdict(answer), 16)
        lines.append((start + _coloured(answer, word, paint)).rstrip())
    if any(not answer["complete"] for answer in answers):
        lines.append("? something could not be seen: ttft show ID says what")
    return lines


def _coloured(answer: Json, word: str, paint: Paint) -> str:
    bad = answer["spike"]["is_spike"] or answer["outcome"] not in ("ok", "open")
    return paint("bad", word) if bad else word


def spikes(answers: Sequence[Json], zone: tzinfo | None = None, paint: Paint = plain) -> list[str]:
    """`ttft spikes`: each slow first token with its reason and what to do about it."""
    if not answers:
        return ["No slow first tokens."]
    lines: list[str] = []
    for answer in answers:
        if lines:
            lines.append("")
        spike = answer["spike"]
        date, clock = moment(answer["wall_time"], zone)
        took = duration(answer["ttft_ms"])
        typical = spike["typical_ms"]
        took += f" (typically {duration(typical)})" if typical is not None else ""
        head = columns(
            [(f"#{answer['id']}", 7), (f"{date} {clock[:8]}", 19), (answer["model"] or "-", 20)]
        )
        lines.append(paint("head", fit(f"{head}  {took}", COLUMNS)))
        lines += [paint("bad", line) for line in wrap(_cause(answer), 80, " " * 9, " " * 9)]
        if spike["because"]:
            lines += wrap(spike["because"], COLUMNS, " " * 9, " " * 9)
        if spike["advice"]:
            lines += wrap(spike["advice"], COLUMNS, "      -> ", " " * 9)
    return lines


def _cause(answer: Json) -> str:
    spike = answer["spike"]
    parts = [verdict(answer), *(spike["why"] or ())]
    text = ", ".join(parts)
    if spike["switch_is_cause"]:
        before = answer["evidence"]["switched_from"]
        text += f"; caused by the switch from {before}" if before else "; caused by a switch"
    return text


def models(answers: Sequence[Json], zone: tzinfo | None = None, paint: Paint = plain) -> list[str]:
    """The table of `ttft models`."""
    if not answers:
        return ["No models seen yet."]
    head = [("MODEL", 20), ("SERVER", 20), ("SIZE", -7), ("CACHED", -6)]
    tail = [("VRAM", -7), ("LAST USE", 10)]
    lines = [paint("head", columns([*head, *tail]))]
    for answer in answers:
        share = answer["cached_share"]
        last = answer["last_use"]
        lines.append(
            columns(
                [
                    (answer["model"], 20),
                    (answer["server"], 20),
                    (size(answer["size_bytes"]), -7),
                    ("-" if share is None else f"{share * 100:.0f} %", -6),
                    (size(answer["vram_bytes"]), -7),
                    (moment(last, zone)[0] if last else "-", 10),
                ]
            )
        )
        lines += _held_by(answer)
    return lines


def _held_by(answer: Json) -> list[str]:
    pids = answer["pids"]
    if pids is None:
        return []
    text = f"held by process {', '.join(map(str, pids))}" if pids else "held by no process"
    return wrap(text, COLUMNS, "  ", "  ")
