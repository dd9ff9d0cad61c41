"""What may be asked: the parameters of a path, checked; anything else is a typed refusal."""

from __future__ import annotations

import time

from tracer.api_http import Request
from tracer.errors import TtftError
from tracer.render_units import DURATION_HELP, parse_duration


class WrongQuery(TtftError):
    """A request that cannot be answered as asked; 400."""


class Missing(TtftError):
    """No such thing; 404."""


def query(request: Request, *allowed: str) -> dict[str, str]:
    """The parameters, each one known and given once."""
    found: dict[str, str] = {}
    for key, value in request.pairs:
        if key not in allowed:
            names = ", ".join(allowed) or "none"
            raise WrongQuery(f"unknown parameter {key[:40]!r}", f"accepted here: {names}")
        if key in found:
            raise WrongQuery(f"{key!r} is given twice", "give it once")
        found[key] = value
    return found


def last(asked: dict[str, str], default: int, most: int) -> int:
    """`last`: how many."""
    text = asked.get("last")
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
        raise WrongQuery(f"last={text[:40]!r} is out of range", f"a number from 1 to {most}")
    return int(text)


def duration_ns(asked: dict[str, str], key: str) -> int | None:
    """A length of time in nanoseconds."""
    text = asked.get(key)
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise WrongQuery(f"{key}: {error}", DURATION_HELP) from None


def since_ns(asked: dict[str, str]) -> int | None:
    """`since`: from when on, wall clock."""
    length_ns = duration_ns(asked, "since")
    return None if length_ns is None else time.time_ns() - length_ns


def number(request: Request) -> int:
    """The id in the path."""
    text: str = request.path_params["id"]
    # Longer ones do not fit the integers of SQLite.
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise WrongQuery(f"{text[:40]!r} is not an id", "ids are numbers: see /v1/requests")
    return int(text)
