"""HTML and SVG as text, names made harmless; what all parts of the report share."""

from __future__ import annotations

import html
from collections.abc import Iterable

from tracer.render_units import clean

COLOURS = {
    "queue": "#d98a00",
    "evict": "#c2559b",
    "spawn": "#3f7fe0",
    "load": "#0f9fb0",
    "transfer": "#7a9a01",
    "init": "#8b63d0",
    "prefill": "#3a9d4d",
    "other": "#8a8a8a",
}
"""Of the phases; told apart on white and on black, and never the only sign."""


def text(value: object) -> str:
    """For between tags and in attributes: no markup, and nothing that hides or reorders."""
    return html.escape(clean(value), quote=True)


def colour(code: str) -> str:
    """The colour of a stage's, cause's or phase's phase."""
    return COLOURS.get(code.partition(".")[0], COLOURS["other"])


def table(caption: str, heads: Iterable[tuple[str, str]], rows: Iterable[Iterable[str]]) -> str:
    """A table; heads are (name, class), cells are markup already."""
    heads = list(heads)
    top = "".join(f'<th scope="col" class="{kind}">{text(name)}</th>' for name, kind in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{cell}</td>' for cell, (_, kind) in zip(row, heads, strict=True)
        )
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="wide"><table><caption>{text(caption)}</caption>'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def svg(width: int, height: int, title: str, desc: str, parts: Iterable[str]) -> str:
    """A picture that says in words what it shows."""
    return (
        f'<div class="wide"><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{text(title)}">'
        f"<title>{text(title)}</title><desc>{text(desc)}</desc>{''.join(parts)}</svg></div>\n"
    )


def rect(x: float, y: float, width: float, height: float, **attributes: str) -> str:
    """A bar, never too thin to be seen; `title` becomes its tooltip."""
    title = attributes.pop("title", "")
    more = "".join(f' {name}="{text(value)}"' for name, value in attributes.items())
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.8):.2f}" height="{height:.2f}"{more}>'
        f"<title>{text(title)}</title></rect>"
    )


def label(x: float, y: float, words: str, anchor: str = "start", kind: str = "t") -> str:
    """Words in a picture."""
    return (
        f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" class="{kind}">{text(words)}</text>'
    )
