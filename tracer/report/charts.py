"""The pictures of the report: causes over time, and a request's phases as a waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from tracer.render import Json
from tracer.render_units import duration
from tracer.report.marks import colour, label, rect, svg, text

_WIDTH = 960
_LEFT, _RIGHT = 190, 10
_ROW, _THIN = 22, 15
_STEPS_S = (300, 900, 3600, 10_800, 21_600, 86_400, 7 * 86_400, 30 * 86_400)
_COLUMNS = 48
_SHADES = ("1", "0.62", "0.36")


def shades(causes: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and opacity of each cause: those of one phase share a colour."""
    seen: dict[str, int] = {}
    found = {}
    for cause in causes:
        phase = cause.partition(".")[0]
        number = seen[phase] = seen.get(phase, -1) + 1
        found[cause] = (colour(cause), _SHADES[min(number, len(_SHADES) - 1)])
    return found


def key(causes: Sequence[str]) -> str:
    """What the colours mean."""
    items = "".join(
        f'<li><span class="dot" style="background:{fill};opacity:{opacity}"></span>'
        f"{text(cause)}</li>"
        for cause, (fill, opacity) in shades(causes).items()
    )
    return f'<ul class="key">{items}</ul>\n'


def over_time(
    lost: Sequence[tuple[datetime, str, float]],
    since: datetime,
    until: datetime,
    causes: Sequence[str],
    zone: tzinfo | None = None,
) -> str:
    """Time lost (ms) by cause and time, in columns of a length that suits the window."""
    step = _step(until - since)
    first = _floor(since.astimezone(zone), step)
    count = int((until - first) / step) + 1
    sums: list[dict[str, float]] = [{} for _ in range(count)]
    for at, cause, ms in lost:
        column = int((at - first) / step)
        if 0 <= column < count:
            sums[column][cause] = sums[column].get(cause, 0.0) + ms
    most = max((sum(held.values()) for held in sums), default=0.0) or 1.0
    base, left = 205, 60
    wide = (_WIDTH - left - _RIGHT) / count
    parts = [_grid(most, left, base)]
    look = shades(causes)
    for n, held in enumerate(sums):
        top = float(base)
        for cause in (known for known in causes if held.get(known)):
            tall = held[cause] / most * (base - 20)
            top -= tall
            fill, opacity = look[cause]
            words = f"{_moment(first + n * step, step)}: {cause} {duration(held[cause])}"
            x = left + (n + 0.12) * wide
            parts.append(rect(x, top, wide * 0.76, tall, fill=fill, opacity=opacity, title=words))
    parts += _axis([first + n * step for n in range(count)], step, left, wide, base + 18)
    title = f"Time lost to slow first tokens, by cause, in steps of {_words(step)}"
    desc = ", ".join(f"{cause}: {duration(_sum(sums, cause))}" for cause in causes)
    return svg(_WIDTH, base + 35, title, desc, parts)


def _axis(begins: Sequence[datetime], step: timedelta, left: int, wide: float, y: int) -> list[str]:
    parts = []
    for n in range(0, len(begins), max(1, -(-len(begins) // 8))):
        x = left + (n + 0.5) * wide
        near = x > _WIDTH - 50
        words = _moment(begins[n], step)
        parts.append(label(_WIDTH if near else x, y, words, "end" if near else "middle", "s"))
    return parts


def _sum(columns: Sequence[dict[str, float]], cause: str) -> float:
    return sum(column.get(cause, 0.0) for column in columns)


def _grid(most: float, left: int, base: int) -> str:
    parts = []
    for part in (0.0, 0.5, 1.0):
        y = base - part * (base - 20)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        words = "0" if part == 0 else duration(most * part)
        parts.append(label(left - 8, y + 4, words, "end", "s"))
    return "".join(parts)


def _step(window: timedelta) -> timedelta:
    for seconds in _STEPS_S:
        if window / timedelta(seconds=seconds) <= _COLUMNS:
            return timedelta(seconds=seconds)
    return window / _COLUMNS


def _floor(at: datetime, step: timedelta) -> datetime:
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (at - midnight) // step * step


def _moment(at: datetime, step: timedelta) -> str:
    if step >= timedelta(days=28):
        return f"{at:%b %Y}"
    return f"{at:%d %b}" if step >= timedelta(days=1) else f"{at:%d %b %H:%M}"


def _words(step: timedelta) -> str:
    seconds = step.total_seconds()
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = round(seconds / length)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{seconds:.0f} seconds"


def waterfall(answer: Json) -> str:
    """One request's phases and their stages over its time to first token."""
    intervals = answer["intervals"]
    start = min(item["start_ns"] for item in intervals)
    whole = max(1, max(item["end_ns"] for item in intervals) - start)
    scale = _Scale(start, (_WIDTH - _LEFT - _RIGHT) / whole)
    parts, y = [label(_LEFT, 12, "0", "start", "s")], 20
    parts.append(label(_WIDTH - _RIGHT, 12, duration(whole / 1e6), "end", "s"))
    for phase, spent in answer["phases_ms"].items():
        mine = [item for item in intervals if item["stage"].partition(".")[0] == phase]
        if not mine:
            continue
        parts += scale.bars(f"{phase}  {duration(spent)}", mine, y, _ROW)
        y += _ROW
        stages = dict.fromkeys(item["stage"] for item in mine)
        for stage in () if list(stages) == [f"{phase}.rest"] else stages:
            pieces = [item for item in mine if item["stage"] == stage]
            mark = " (estimate)" if any(item["estimate"] for item in pieces) else ""
            words = f".{stage.partition('.')[2]}{mark}  {duration(_length(pieces) / 1e6)}"
            parts += scale.bars(words, pieces, y, _THIN)
            y += _THIN
        y += 3
    told = ", ".join(f"{name} {duration(ms)}" for name, ms in answer["phases_ms"].items() if ms)
    return svg(_WIDTH, y + 4, f"Phases of request {answer['id']}", told, parts)


def _length(intervals: Sequence[Json]) -> int:
    return sum(item["end_ns"] - item["start_ns"] for item in intervals)


class _Scale(NamedTuple):
    """Where a time is in the picture: `per_ns` of its units each nanosecond."""

    start: int
    per_ns: float

    def bars(self, words: str, pieces: Sequence[Json], y: int, tall: int) -> list[str]:
        """A row: its name, the ground and its pieces; stages are thinner and paler."""
        thin = tall == _THIN
        at = y + tall - (4 if thin else 6)
        parts = [label(_LEFT - 10, at, words, "end", "s" if thin else "t")]
        parts.append(
            f'<rect class="track" x="{_LEFT}" y="{y + 3}" width="{_WIDTH - _LEFT - _RIGHT}" '
            f'height="{tall - 6}"/>'
        )
        for item in pieces:
            spent = item["end_ns"] - item["start_ns"]
            parts.append(
                rect(
                    _LEFT + (item["start_ns"] - self.start) * self.per_ns, y + 3,
                    spent * self.per_ns, tall - 6,
                    fill=colour(item["stage"]), opacity="0.6" if thin else "1",
                    title=f"{item['stage']} {duration(spent / 1e6)}",
                )
            )  # fmt: skip
        return parts
