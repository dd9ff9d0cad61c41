"""`ttft spikes`: what slow first tokens add up to, and each of them with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any

from tracer.render import COLUMNS, Json, Paint, ago, columns, day_of, moment, plain, verdict
from tracer.render_units import duration, fit, right, width, wrap

_ROWS = 6
_BAR = 12


def spikes(
    answers: Sequence[Json],
    zone: tzinfo | None = None,
    paint: Paint = plain,
    now: datetime | None = None,
) -> list[str]:
    """Each slow first token with its reason and what to do about it."""
    if not answers:
        return ["No slow first tokens."]
    lines: list[str] = []
    for answer in answers:
        lines += ([""] if lines else []) + spike(answer, zone, paint, now)
    return lines


def spike(
    answer: Json,
    zone: tzinfo | None = None,
    paint: Paint = plain,
    now: datetime | None = None,
) -> list[str]:
    """One slow first token: when, how slow, why, what to do."""
    verdict_of = answer["spike"]
    typical = verdict_of["typical_ms"]
    took = duration(answer["ttft_ms"])
    took += f" (typically {duration(typical)})" if typical is not None else ""
    when = _when(answer["wall_time"], zone, now)
    room = COLUMNS - width(when) - 1
    number = f"#{answer['id']}"  # whole: what is cut names no request
    fields = [(number, max(7, len(number))), (took, 26), (answer["model"] or "-", 60)]
    head = fit(columns(fields), room)
    lines = [paint("head", head) + " " + paint("dim", right(when, COLUMNS - width(head) - 1))]
    return lines + reason(answer, paint)


def reason(answer: Json, paint: Paint = plain) -> list[str]:
    """Why one first token was slow, and what to do."""
    verdict_of = answer["spike"]
    lines = [paint("bad", line) for line in wrap(cause(answer), COLUMNS, " " * 9, " " * 9)]
    if verdict_of["because"]:
        lines += wrap(verdict_of["because"], COLUMNS, " " * 9, " " * 9)
    if verdict_of["advice"]:
        lines += wrap(verdict_of["advice"], COLUMNS, "      -> ", " " * 9)
    return lines


def _when(wall_time: str, zone: tzinfo | None, now: datetime | None) -> str:
    date, word = day_of(wall_time, zone, now)
    clock = moment(wall_time, zone)[1][:8]
    past = ago(wall_time, now)
    return (clock if word == "today" else f"{date} {clock}") + (f", {past}" if past else "")


def cause(answer: Json) -> str:
    """The codes of a verdict, and the switch if that was it."""
    spike_of = answer["spike"]
    text = ", ".join([verdict(answer), *(spike_of["why"] or ())])
    if spike_of["switch_is_cause"]:
        before = answer["evidence"]["switched_from"]
        text += f"; caused by the switch from {before}" if before else "; caused by a switch"
    return text


def summary(answer: Json, window: str, paint: Paint = plain, block: str = "#") -> list[str]:
    """What the slow first tokens of a time add up to; `window` names it (`24 h`)."""
    name = f" of {answer['model']}" if answer["model"] is not None else ""
    if not answer["requests"]:
        text = f"No requests{name} in the last {window}. ttft status says what is watched."
        return wrap(text, COLUMNS)
    many = f"{answer['requests']} request{'' if answer['requests'] == 1 else 's'}{name}"
    if not answer["spikes"]:
        return wrap(f"No slow first token in the last {window}, of {many}.", COLUMNS)
    head = f"Last {window}: {answer['spikes']} of {many} had a slow first token."
    lines = [paint("head", line) for line in wrap(head, COLUMNS)]
    lines += wrap(f"Time lost to them: {duration(answer['lost_ms'])}.", COLUMNS)
    if not answer["whole"]:
        lines.append("There are more than these newest: give a shorter --since.")
    lines += ["", *_causes(answer, paint, block), "", *_models(answer, paint)]
    return [*lines, *_switches(answer["by_switch"]), *_advice(answer["by_cause"])]


def _causes(answer: Json, paint: Paint, block: str) -> list[str]:
    head = [("CAUSE", 20), ("SLOW", -5), ("LOST", -8), ("", _BAR), ("MODELS", 27)]
    lines = [paint("head", columns(head))]
    most = max((row["lost_ms"] for row in answer["by_cause"]), default=0)
    for row in answer["by_cause"][:_ROWS]:
        cells = round(_BAR * row["lost_ms"] / most) if most else 0
        start = columns([(row["cause"], 20), (row["spikes"], -5), (duration(row["lost_ms"]), -8)])
        bar = paint(row["cause"].partition(".")[0], block * cells) + " " * (_BAR - cells)
        names = fit(", ".join(row["models"]) or "-", 27)
        lines.append(f"{start}  {bar}  {names}")
    return lines + _more(answer["by_cause"], "causes")


def _models(answer: Json, paint: Paint) -> list[str]:
    head = [("MODEL", 20), ("SLOW", -5), ("LOST", -8), ("REQUESTS", -8), ("WARM", -5)]
    lines = [paint("head", columns([*head, ("TYPICAL", -8), ("WORST", 15)]))]
    for row in answer["by_model"][:_ROWS]:
        worst = row["worst_id"]
        fields: list[tuple[object, int]] = [
            (row["model"], 20),
            (row["spikes"], -5),
            (duration(row["lost_ms"]) if row["spikes"] else "-", -8),
            ("-" if row["requests"] is None else row["requests"], -8),
            (_share(row["warm"], row["requests"]), -5),
            (duration(row["typical_ms"]), -8),
            ("-" if worst is None else f"{duration(row['worst_ms'])} #{worst}", 15),
        ]
        lines.append(columns(fields))
    return lines + _more(answer["by_model"], "models")


def _share(part: int | None, whole: int | None) -> str:
    return "-" if part is None or not whole else f"{100 * part / whole:.0f} %"


def _more(rows: Sequence[Any], what: str) -> list[str]:
    return [f"and {len(rows) - _ROWS} more {what}"] if len(rows) > _ROWS else []


def _switches(rows: Sequence[Json]) -> list[str]:
    """The dearest pair of models, told once where they put each other out."""
    if not rows:
        return []
    first = rows[0]
    back = next((r for r in rows if (r["from"], r["to"]) == (first["to"], first["from"])), None)
    times = first["spikes"] + (back["spikes"] if back else 0)
    lost = first["lost_ms"] + (back["lost_ms"] if back else 0)
    if times < 2:
        return []
    pair = f"between {first['from']} and {first['to']}"
    if back is None:
        pair = f"from {first['from']} to {first['to']}"
    text = f"Switches {pair} made {times} first tokens slow: {duration(lost)} lost."
    return ["", *wrap(text, COLUMNS)]


def _advice(rows: Sequence[Json]) -> list[str]:
    first = rows[0]
    text = f"Most time went to {first['cause']}: {first['means']}."
    lines = ["", *wrap(text, COLUMNS)]
    return lines + (wrap(first["advice"], COLUMNS, "-> ", "   ") if first["advice"] else [])
