"""`ttft explain`: what a code means, how it is known, what to do. Needs no daemon."""

from __future__ import annotations

from difflib import get_close_matches

import click

from tracer.commands.shared import json_option, paint, print_json, print_lines
from tracer.errors import TtftError
from tracer.explain import KINDS, Explanation, codes_explained, explain
from tracer.render import COLUMNS, Paint
from tracer.render_units import fit, wrap


def _codes(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    return [code.code for code in codes_explained() if code.code.startswith(typed)]


@click.command(name="explain")
@click.argument("code", required=False, shell_complete=_codes)
@json_option
def explain_command(code: str | None, as_json: bool) -> None:
    """What a cause means, how it is known, what to do.

    CODE is what `ttft spikes` and `ttft show` print, such as load.disk. Without it: all codes.

    \b
    Examples:
      ttft explain load.disk
      ttft explain
    """
    if code is None:
        return print_json(_every()) if as_json else print_lines(_listing(paint()))
    found = explain(code)
    if found is None:
        known = [one.code for one in codes_explained()]
        near = get_close_matches(code, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "ttft explain lists them"
        raise TtftError(f"there is no code {code[:60]}", hint)
    if as_json:
        return print_json({"schema": 1, **found._asdict()})
    return print_lines(lines(found, paint()))


def _every() -> list[dict[str, object]]:
    found = (explain(code.code) for code in codes_explained())
    return [{"schema": 1, **one._asdict()} for one in found if one is not None]


def _listing(paint: Paint) -> list[str]:
    text: list[str] = []
    for what, title in KINDS.items():
        text += [""] if text else []
        text.append(paint("head", title[:1].upper() + title[1:]))
        for code in codes_explained():
            if code.what == what:
                text.append(fit(f"  {code.code:<20}  {code.meaning}", COLUMNS))
    return text


def lines(found: Explanation, paint: Paint) -> list[str]:
    """One code as text of 80 columns."""
    part = f"; part of {found.phase}" if found.phase and found.phase != found.code else ""
    text = [paint("head", found.code), *wrap(f"{found.meaning} ({found.kind}{part})", COLUMNS)]
    if found.not_yet:
        text += wrap("This version has no rule that gives it yet.", COLUMNS)
    text += ["", paint("head", "How ttft knows"), *wrap(found.how, COLUMNS)]
    if found.do:
        text += ["", paint("head", "What to do")]
        for step in found.do:
            text += wrap(step, COLUMNS, "- ", "  ")
    return text
