"""`ttft explain`: what a code means, how it is known, what to do. Needs no daemon."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import click

from tracer import codes
from tracer.codes import Code
from tracer.commands.shared import json_option, paint, print_json, print_lines
from tracer.derived import PHASES
from tracer.errors import TtftError
from tracer.explain import KINDS, Explanation, codes_explained, explain
from tracer.render import COLUMNS, Paint
from tracer.render_units import fit, wrap


def _codes(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    return [name for name in _names() if name.startswith(typed)]


def _names() -> list[str]:
    return [*PHASES, *(code.code for code in codes_explained())]


@click.command(name="explain")
@click.argument("code", required=False, shell_complete=_codes)
@json_option
def explain_command(code: str | None, as_json: bool) -> None:
    """What a cause means, how it is known, what to do.

    CODE is what `ttft spikes` and `ttft show` print, such as load.disk. Of a phase, such as
    load: what it is, and its codes. Without CODE: all codes.

    \b
    Examples:
      ttft explain load.disk
      ttft explain load
      ttft explain
    """
    if code is None:
        every = codes_explained()
        return print_json(_every()) if as_json else print_lines(_listing(paint(), every))
    name = code.strip().lower()
    if phase := codes.get(name, "phase"):
        return print_json(_of_phase(phase)) if as_json else print_lines(_phase(phase, paint()))
    found = explain(name)
    if found is None:
        near = get_close_matches(name, _names(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "ttft explain lists them"
        raise TtftError(f"there is no code {code[:60]}", hint)
    if as_json:
        return print_json({"schema": 1, **found._asdict()})
    return print_lines(lines(found, paint()))


def _every() -> list[dict[str, object]]:
    return [{"schema": 1, **one} for one in _explained(codes_explained())]


def _explained(known: Iterable[Code]) -> list[dict[str, object]]:
    return [one._asdict() for code in known if (one := explain(code.code)) is not None]


def _codes_of(phase: Code) -> tuple[Code, ...]:
    return tuple(code for code in codes_explained() if code.phase == phase.code)


def _of_phase(phase: Code) -> dict[str, object]:
    return {
        "schema": 1,
        "code": phase.code,
        "kind": phase.what,
        "phase": phase.code,
        "meaning": phase.meaning,
        "codes": _explained(_codes_of(phase)),
    }


def _phase(phase: Code, paint: Paint) -> list[str]:
    head = [paint("head", phase.code), *wrap(f"{phase.meaning} ({phase.what})", COLUMNS), ""]
    return [*head, *_listing(paint, _codes_of(phase))]


def _listing(paint: Paint, known: tuple[Code, ...]) -> list[str]:
    text: list[str] = []
    for what, title in KINDS.items():
        rows = [f"  {code.code:<20}  {code.meaning}" for code in known if code.what == what]
        if rows:
            text += [""] if text else []
            text.append(paint("head", title[:1].upper() + title[1:]))
            text += [fit(row, COLUMNS) for row in rows]
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
