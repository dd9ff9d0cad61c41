"""Figures and words for a terminal: durations, sizes, safe text of a known width.

Imports nothing heavy: the command line's fast path goes through here.
"""

from __future__ import annotations

import re
import unicodedata

_UNITS_NS = {
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
MAX_DURATION_NS = 36_500 * _UNITS_NS["d"]
DURATION_HELP = "a number with ms, s, m, h or d: 500ms, 30s, 10m, 1.5h, 7d"


def parse_duration(text: str) -> int:
    """`30s`, `10m`, `1.5h` and their like, in nanoseconds; ValueError for anything else."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)", text)
    if match is None:
        raise ValueError(f"not a duration: {text[:40]!r}")
    duration = round(float(match[1]) * _UNITS_NS[match[2]])
    if not 0 < duration <= MAX_DURATION_NS:
        raise ValueError(f"out of range: {text[:40]!r}")
    return duration


def duration(ms: float | None) -> str:
    """Three figures and a unit: `1.91 s`, `266 ms`, `0.20 ms`; `-` for unknown."""
    if ms is None:
        return "-"
    if ms < 0:
        return "-" + duration(-ms)
    if ms < 9.995:
        return f"{ms:.2f} ms"
    if ms < 99.95:
        return f"{ms:.1f} ms"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    return _long(ms / 1000)


def _long(seconds: float) -> str:
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    if seconds < 599.5:
        return f"{seconds:.0f} s"
    if seconds < 36_000:
        return f"{seconds / 60:.0f} min"
    if seconds < 360_000:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} d"


def size(count: float | None) -> str:
    """Three figures and a decimal unit: `253 MB`, `4.10 kB`, `12 B`; `-` for unknown."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    if unit == "B":
        return f"{value:.0f} B"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def clean(text: object) -> str:
    """`text` on one line and harmless to a terminal: what is not printable is escaped."""
    raw = str(text)
    if raw.isascii() and raw.isprintable():
        return raw
    return "".join(char if _harmless(char) else _escape(char) for char in raw)


def json_safe(text: str) -> str:
    """JSON text with all that is not printable in its strings as `\\u` escapes."""
    return "".join(char if char == "\n" or _harmless(char) else _json_escape(char) for char in text)


def _json_escape(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 | code >> 10:04x}\\u{0xDC00 | code & 0x3FF:04x}"


def _harmless(char: str) -> bool:
    # Format characters (Cf) reorder or hide text; combining marks (M) stack without end.
    return char == " " or unicodedata.category(char)[0] in "LNPS"


def _escape(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else (f"\\U{code:08x}")
    )


def width(text: str) -> int:
    """Columns that cleaned text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def fit(text: object, columns: int) -> str:
    """Cleaned text of at most `columns`; what is cut ends in `~`."""
    cleaned = clean(text)
    if width(cleaned) <= columns:
        return cleaned
    kept, used = [], 1
    for char in cleaned:
        used += width(char)
        if used > columns:
            break
        kept.append(char)
    return "".join(kept) + "~" if columns > 0 else ""


def left(text: object, columns: int) -> str:
    """`text` cut or padded on the right to exactly `columns`."""
    fitted = fit(text, columns)
    return fitted + " " * (columns - width(fitted))


def right(text: object, columns: int) -> str:
    """`text` cut or padded on the left to exactly `columns`."""
    fitted = fit(text, columns)
    return " " * (columns - width(fitted)) + fitted


def wrap(text: object, columns: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `columns`, the first after `first`, the others after `rest`."""
    lines, line = [], first
    bare = True
    for word in clean(text).split(" "):
        piece = word
        while piece:
            gap = "" if bare else " "
            if width(line) + len(gap) + width(piece) <= columns:
                line, piece, bare = line + gap + piece, "", False
            elif not bare:
                lines.append(line)
                line, bare = rest, True
            else:
                head = _head(piece, columns - width(line))
                lines.append(line + head)
                line, piece = rest, piece[len(head) :]
    if not bare or not lines:
        lines.append(line)
    return [item.rstrip() for item in lines]


def _head(text: str, columns: int) -> str:
    """As much of `text` as fits, at least one character."""
    used = 0
    for index, char in enumerate(text):
        used += width(char)
        if used > columns:
            return text[: max(1, index)]
    return text
