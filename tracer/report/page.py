"""The whole page, from answers of the interface. No script, no network: it opens from disk."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import NamedTuple

from tracer import __version__, codes
from tracer.render import Json, moment
from tracer.render_spikes import cause as codes_of
from tracer.render_units import duration, size
from tracer.report import charts
from tracer.report.marks import table, text
from tracer.report.style import CSS
from tracer.summary import lost_ms

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Data(NamedTuple):
    """What the page tells of. `shown`: spikes with `intervals`, in order."""

    summary: Json
    spikes: list[Json]
    shown: list[Json]
    models: list[Json]
    made: datetime


def worst(spikes: list[Json], most: int) -> list[Json]:
    """The spike that lost most of each cause and model, then further ones, up to `most`."""
    dearest = sorted(spikes, key=lost_ms, reverse=True)
    first: dict[tuple[object, object], Json] = {}
    for one in dearest:
        first.setdefault((one["spike"]["cause"], one["model"]), one)
    kinds = list(first.values())
    return (kinds + [one for one in dearest if one not in kinds])[:most]


def page(data: Data, zone: tzinfo | None = None) -> str:
    """HTML; `zone` None: local time."""
    since, until = (_when(data.summary[name], zone)[:16] for name in ("since", "until"))
    model = data.summary["model"]
    title = "Slow first tokens" + (f" of {model}" if model is not None else "")
    parts = [
        f"<h1>{text(title)}</h1>",
        f'<p class="soft">{text(since)} to {text(until)}</p>',
        _tiles(data.summary),
        _causes(data, zone),
        _models(data),
        _waterfalls(data, zone),
        _listing(data, zone),
        _footer(data, zone),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}: ttft report</title>\n<style>{CSS}</style></head>\n"
        f"<body><main>\n{''.join(parts)}</main></body></html>\n"
    )


def _when(wall_time: str, zone: tzinfo | None) -> str:
    date, clock = moment(wall_time, zone)
    return f"{date} {clock[:8]}"


def _tiles(summary: Json) -> str:
    tiles = [
        (str(summary["requests"]), "requests"),
        (str(summary["spikes"]), "with a slow first token"),
    ]
    if summary["spikes"]:
        tiles.append((duration(summary["lost_ms"]), "lost to them"))
        tiles.append((summary["by_cause"][0]["cause"], "took most of it"))
    items = "".join(f"<li><b>{text(value)}</b>{text(what)}</li>" for value, what in tiles)
    return f'<ul class="tiles">{items}</ul>\n'


def _causes(data: Data, zone: tzinfo | None) -> str:
    rows = data.summary["by_cause"]
    if not rows:
        return "<h2>Causes</h2><p>No first token was slow in this time.</p>\n"
    causes = [row["cause"] for row in rows]
    lost = [
        (datetime.fromisoformat(one["wall_time"]), one["spike"]["cause"] or "unknown", lost_ms(one))
        for one in data.spikes
    ]
    since, until = (datetime.fromisoformat(data.summary[name]) for name in ("since", "until"))
    heads = [("Cause", "w"), ("Slow", "n"), ("Lost", "n"), ("What it is, and what to do", "")]
    cells = [
        [
            f"<code>{text(row['cause'])}</code>",
            str(row["spikes"]),
            text(duration(row["lost_ms"])),
            text(f"{_capital(row['means'])}. {row['advice'] or ''}"),
        ]
        for row in rows
    ]
    partly = "" if len(data.spikes) >= data.summary["spikes"] else _partly(data)
    return (
        "<h2>Causes over time</h2>\n"
        + charts.key(causes)
        + charts.over_time(lost, since, until, causes, zone)
        + partly
        + table("Causes, by time lost", heads, cells)
    )


def _partly(data: Data) -> str:
    return f'<p class="soft">The picture has the newest {len(data.spikes)} of them.</p>\n'


def _models(data: Data) -> str:
    held = {row["model"]: row for row in data.models}
    heads = [("Model", ""), ("Warm when asked", "w"), ("Requests", "n"), ("Slow", "n")]
    heads += [("Lost", "n"), ("Typical", "n"), ("Worst", "n"), ("In the page cache", "n")]
    cells = [
        [
            text(row["model"]),
            _meter(row["warm"], row["requests"]),
            "-" if row["requests"] is None else str(row["requests"]),
            str(row["spikes"]),
            text(duration(row["lost_ms"]) if row["spikes"] else "-"),
            text(duration(row["typical_ms"])),
            text(duration(row["worst_ms"])),
            text(_cached(held.get(row["model"]))),
        ]
        for row in data.summary["by_model"]
    ]
    pairs = "".join(
        f"<li>{text(row['from'])} to {text(row['to'])}: {_times(row['spikes'])}, "
        f"{text(duration(row['lost_ms']))} lost</li>"
        for row in data.summary["by_switch"][:10]
    )
    switches = f"<p>Switches that made a first token slow:</p><ul>{pairs}</ul>\n" if pairs else ""
    return "<h2>Models</h2>\n" + table("How warm each model was", heads, cells) + switches


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _meter(part: int | None, whole: int | None) -> str:
    if part is None or not whole:
        return "-"
    share = 100 * part / whole
    return (
        f'<span class="meter" aria-hidden="true"><span style="width:{share:.0f}%"></span></span>'
        f"{share:.0f} %"
    )


def _cached(model: Json | None) -> str:
    if model is None or model["cached_share"] is None:
        return "-"
    return f"{100 * model['cached_share']:.0f} % of {size(model['size_bytes'])}"


def _waterfalls(data: Data, zone: tzinfo | None) -> str:
    if not data.shown:
        return ""
    ones = "".join(_one(answer, zone) for answer in data.shown)
    return "<h2>The worst of each cause</h2>\n" + ones


def _one(answer: Json, zone: tzinfo | None) -> str:
    spike = answer["spike"]
    took = duration(answer["ttft_ms"])
    usual = f", typically {duration(spike['typical_ms'])}" if spike["typical_ms"] else ""
    head = f"#{answer['id']}  {answer['model'] or 'model unknown'}: {took}{usual}"
    means = codes.meaning(spike["cause"] or "unknown", "stage", "cause")
    lines = [
        f'<section class="one" id="r{int(answer["id"])}"><h3>{text(head)}</h3>',
        f'<p class="soft">{text(_when(answer["wall_time"], zone))}, {text(answer["server"])}, '
        f"{text(answer['endpoint'] or 'unknown path')}</p>",
        f'<p class="why">{text(_capital(means))} ({text(codes_of(answer))})</p>',
        f"<p>{text(spike['because'])}</p>" if spike["because"] else "",
        f'<p class="advice">{text(spike["advice"])}</p>' if spike["advice"] else "",
        charts.waterfall(answer) if answer["intervals"] else "",
        "" if answer["complete"] else f"<p>Incomplete: {text(answer['incomplete_because'])}.</p>",
        f'<p class="soft">{text(_evidence(answer))}</p></section>\n',
    ]
    return "".join(lines)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _evidence(answer: Json) -> str:
    facts = answer["evidence"]
    parts = [
        None if facts["weights_bytes"] is None else f"{size(facts['weights_bytes'])} of weights",
        None
        if facts["weights_bytes_from_disk"] is None
        else f"{size(facts['weights_bytes_from_disk'])} from disk",
        None if facts["major_faults"] is None else f"{facts['major_faults']} major faults",
        None
        if facts["processes_started"] is None
        else f"processes started: {facts['processes_started']}",
        None if answer["prompt_tokens"] is None else f"{answer['prompt_tokens']} prompt tokens",
        f"confidence {answer['spike']['confidence']:.2f}"
        if answer["spike"]["confidence"] is not None
        else None,
    ]
    return ", ".join(part for part in parts if part)


def _listing(data: Data, zone: tzinfo | None) -> str:
    if not data.spikes:
        return ""
    shown = {answer["id"] for answer in data.shown}
    heads = [("", "n"), ("When", "w"), ("Model", ""), ("First token", "n"), ("Lost", "n")]
    heads.append(("Why", ""))
    cells = [
        [
            f'<a href="#r{number}">#{number}</a>' if number in shown else f"#{number}",
            text(_when(answer["wall_time"], zone)),
            text(answer["model"] or "-"),
            text(duration(answer["ttft_ms"])),
            text(duration(lost_ms(answer))),
            text(codes_of(answer)),
        ]
        for answer in reversed(data.spikes)
        for number in (int(answer["id"]),)
    ]
    return "<h2>Slow first tokens</h2>\n" + table("The newest first", heads, cells)


def _footer(data: Data, zone: tzinfo | None) -> str:
    made = data.made.astimezone(zone)
    return (
        f"<footer><p>Made by ttft {text(__version__)} on {made:%Y-%m-%d %H:%M %Z (UTC%z)}; times "
        "are local to where this page was made. Time lost is what a request waited beyond what is "
        "typical for it. This page holds names of models and "
        "files, and no word of any prompt or answer.</p></footer>\n"
    )
