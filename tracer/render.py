"""Answers as text: listings. At most 80 columns, whatever the answers hold.

Functions take the JSON objects of the interface and return lines. `zone` None is the local one;
`now` None leaves out how long ago something was. `show` is in render_show.py, spikes are in
render_spikes.py, status and doctor in render_state.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta, tzinfo
from typing import Any

from tracer.render_units import clean, duration, fit, left, right, size, width, wrap

COLUMNS = 80

Json = dict[str, Any]
Paint = Callable[[str, str], str]
"""(kind of text, text) to the text with or without colour; kinds: bad, good, dim, head, and the
name of each phase."""

_COLOURS = {
    "bad": "31",
    "good": "32",
    "dim": "2",
    "head": "1",
    "queue": "33",
    "evict": "35",
    "spawn": "34",
    "load": "36",
    "transfer": "96",
    "init": "95",
    "prefill": "32",
    "other": "31",
}


def plain(_: str, text: str) -> str:
    """No colour."""
    return text


def colour(kind: str, text: str) -> str:
    """For a terminal."""
    code = _COLOURS.get(kind)
    return f"\x1b[{code}m{text}\x1b[0m" if code and text.strip() else text


def moment(wall_time: str, zone: tzinfo | None = None) -> tuple[str, str]:
    """(date, time of day to the millisecond) of an RFC 3339 time; `zone` None: local."""
    when = datetime.fromisoformat(wall_time).astimezone(zone)
    return f"{when:%Y-%m-%d}", f"{when:%H:%M:%S}.{when.microsecond // 1000:03d}"


def ago(wall_time: str, now: datetime | None) -> str:
    """`12 s ago`, `3 h ago`, ...; nothing where `now` is not known or the clock was set back."""
    if now is None:
        return ""
    seconds = (now - datetime.fromisoformat(wall_time)).total_seconds()
    if seconds < 0:
        return ""
    for unit, length, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 36)):
        if seconds < most * length:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{seconds // 86_400:.0f} days ago"


def day_of(wall_time: str, zone: tzinfo | None, now: datetime | None) -> tuple[str, str]:
    """(date, `today`, `yesterday` or nothing), where it is read."""
    day = datetime.fromisoformat(wall_time).astimezone(zone).date()
    today: date | None = None if now is None else now.astimezone(zone).date()
    word = ""
    if today is not None and today - day in (timedelta(0), timedelta(1)):
        word = "today" if today == day else "yesterday"
    return f"{day:%Y-%m-%d}", word


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
        # One of a newer daemon is said as it is.
        ended = _ENDED.get(outcome) or str(outcome)
        word = f"{ended} in {answer['died_in']}" if answer["died_in"] else ended
    return word if answer["complete"] else f"{word} ?"


def largest(answer: Json) -> str:
    """The phase that took most, with its time."""
    phases = {name: value for name, value in answer["phases_ms"].items() if value}
    if not phases:
        return "-"
    name = max(phases, key=lambda phase: phases[phase])
    return f"{name} {duration(phases[name])}"


REQUESTS_HEAD = columns(
    [
        ("ID", -6),
        ("TIME", 8),
        ("MODEL", 17),
        ("TTFT", -7),
        ("MOST OF IT", 16),
        ("VERDICT", 16),
    ]
)


def request_line(answer: Json, zone: tzinfo | None = None, paint: Paint = plain) -> str:
    """One request of the table under `REQUESTS_HEAD`."""
    more = max(0, len(str(answer["id"])) - 6)  # an id that is cut is none
    fields: list[tuple[object, int]] = [
        (answer["id"], -6 - more),
        (moment(answer["wall_time"], zone)[1][:8], 8),
        (answer["model"] or "-", max(1, 17 - more)),
        (duration(answer["ttft_ms"]), -7),
        (largest(answer), 16),
    ]
    start = columns(fields)
    start += " " * (COLUMNS - 16 - width(start))
    return (start + _coloured(answer, fit(verdict(answer), 16), paint)).rstrip()


def requests(
    answers: Sequence[Json],
    zone: tzinfo | None = None,
    paint: Paint = plain,
    now: datetime | None = None,
) -> list[str]:
    """The table of `ttft requests`, oldest first, a line for each new day."""
    if not answers:
        return ["No requests."]
    lines = [paint("head", REQUESTS_HEAD)]
    day = ""
    for answer in answers:
        date, word = day_of(answer["wall_time"], zone, now)
        if date != day:
            lines.append(paint("dim", f"{date}, {word}" if word else date))
            day = date
        lines.append(request_line(answer, zone, paint))
    if any(not answer["complete"] for answer in answers):
        lines.append("? something could not be seen: ttft show ID says what")
    return lines


def _coloured(answer: Json, word: str, paint: Paint) -> str:
    bad = answer["spike"]["is_spike"] or answer["outcome"] not in ("ok", "open")
    return paint("bad", word) if bad else word


def waiting(answers: Sequence[Json], now: datetime) -> str:
    """One line about requests without a first token yet, the one that waits longest first."""
    told = [
        f"#{answer['id']} {clean(answer['model'] or '-')} {duration(_since(answer, now))}"
        + (f", mostly {word.split()[0]}" if (word := largest(answer)) != "-" else "")
        for answer in sorted(answers, key=lambda one: str(one["wall_time"]))
    ]
    return f"waiting: {'; '.join(told)}" if told else ""


def _since(answer: Json, now: datetime) -> float:
    """Milliseconds since it came."""
    came = datetime.fromisoformat(answer["wall_time"])
    return max(0.0, (now - came).total_seconds() * 1000)


def models(
    answers: Sequence[Json],
    zone: tzinfo | None = None,
    paint: Paint = plain,
    now: datetime | None = None,
) -> list[str]:
    """The table of `ttft models`."""
    if not answers:
        return ["No models seen yet."]
    head = [("MODEL", 20), ("SERVER", 19), ("SIZE", -7), ("CACHED", -6)]
    tail = [("VRAM", -7), ("LAST USE", 11)]
    lines = [paint("head", columns([*head, *tail]))]
    for answer in answers:
        share = answer["cached_share"]
        last = answer["last_use"]
        lines.append(
            columns(
                [
                    (answer["model"], 20),
                    (answer["server"], 19),
                    (size(answer["size_bytes"]), -7),
                    ("-" if share is None else f"{share * 100:.0f} %", -6),
                    (size(answer["vram_bytes"]), -7),
                    (_last_use(last, zone, now), 11),
                ]
            )
        )
        lines += _held_by(answer)
    return lines


def _last_use(last: str | None, zone: tzinfo | None, now: datetime | None) -> str:
    return "-" if last is None else ago(last, now) or moment(last, zone)[0]


def _held_by(answer: Json) -> list[str]:
    pids = answer["pids"]
    if pids is None:
        return []
    text = f"held by process {', '.join(map(str, pids))}" if pids else "held by no process"
    places = answer.get("places")
    text += f" in {', '.join(places)}" if places else ""
    return wrap(text, COLUMNS, "  ", "  ")
