"""What a code means, how it is known, and what can be done: for `ttft explain` and the docs."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from tracer import codes
from tracer.answers_state import UNREADABLE_ADVICE
from tracer.codes import Code

KINDS = {
    "stage": "stage",
    "cause": "cause",
    "why": "what came before",
    "incomplete": "what is missing",
    "unreadable": "cannot be read",
}
NOT_YET: tuple[str, ...] = ()
"""Codes that no rule gives yet; a test holds this."""


class Explanation(NamedTuple):
    """`kind`: one of `KINDS`; `how` it is known; what to `do`, the plainest first."""

    code: str
    kind: str
    phase: str | None
    meaning: str
    how: str
    do: tuple[str, ...]
    not_yet: bool


@cache
def _texts() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("tracer").joinpath("explanations.toml").read_text("utf-8"))


def codes_explained() -> tuple[Code, ...]:
    """Every code that can be asked for, in the order of the table."""
    return tuple(code for code in codes.TABLE if code.what in KINDS)


def explain(name: str) -> Explanation | None:
    """All about a code; None for one that is not there."""
    code = codes.get(name, "stage", "cause", "why", "incomplete", "unreadable")
    if code is None or name not in _texts():
        return None
    text = _texts()[name]
    advice = code.advice
    if code.what == "unreadable":
        advice = {str(key): value for key, value in UNREADABLE_ADVICE.items()}.get(name)
    return Explanation(
        code=name,
        kind=KINDS[code.what],
        phase=code.phase,
        meaning=code.meaning,
        how=text["how"],
        do=((advice,) if advice else ()) + tuple(text["do"]),
        not_yet=name in NOT_YET,
    )
