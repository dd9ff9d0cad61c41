"""`ttft spikes`: what slow first tokens add up to, then each of them."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime

import click

from tracer import render_spikes
from tracer.client import UnknownPath
from tracer.commands.shared import (
    block,
    client,
    decode,
    json_option,
    last_option,
    model_option,
    paint,
    print_json,
    print_lines,
    say,
    since_option,
)
from tracer.render import Json

DAY = "24h"
_LEAST = 2
_ROWS = 24


@click.command()
@last_option
@since_option
@model_option
@click.option("--summary", is_flag=True, help="Only what they add up to.")
@json_option
@click.pass_context
def spikes(
    context: click.Context,
    *,
    last: int | None,
    since: str | None,
    model: str | None,
    summary: bool,
    as_json: bool,
) -> None:
    """Slow first tokens: what they add up to, what caused each, what to do.

    Sums up the last day, or what --since says: how many, by which causes, of which models,
    how much time was lost to each. Then come the newest of them, on a terminal as many as
    fit. Time lost is what a request waited beyond what is typical for it.

    \b
    Examples:
      ttft spikes
      ttft spikes --since 7d --model beta
      ttft spikes --summary --json
    """
    daemon = client(context)
    if as_json and not summary:
        query = {"last": last, "since": since, "model": model}
        return print_json(decode(daemon.get("/v1/spikes", query)))
    window = {"since": since or DAY, "model": model}
    try:
        sums = decode(daemon.get("/v1/summary", window))
    except UnknownPath as error:
        if summary:
            raise
        say(f"no summary: {error.message}")
        sums = None
    if as_json:
        return print_json(sums)
    lines = [] if sums is None else _sums(sums, since or DAY)
    if not summary:
        query = {"last": last, "since": since, "model": model}
        found: list[Json] = decode(daemon.get("/v1/spikes", query))
        lines += _newest(found, lines, everything=last is not None or since is not None)
    return print_lines(lines)


def _sums(sums: Json, window: str) -> list[str]:
    return render_spikes.summary(sums, window, paint(), block())


def _newest(found: list[Json], before: list[str], everything: bool) -> list[str]:
    """The spikes themselves; of those nobody asked for, as many as are left of the screen."""
    if not found:
        return [] if before else ["No slow first tokens."]
    now = datetime.now(UTC)
    room = _rows() - len(before) - 3
    each = [render_spikes.spike(one, None, paint(), now) for one in found]
    kept = len(each)
    if not everything and sys.stdout.isatty():
        while kept > _LEAST and sum(len(one) + 1 for one in each[-kept:]) > room:
            kept -= 1
    lines: list[str] = []
    if kept < len(each):
        title = f"The newest {kept}; more with --last or --since"
        lines = [paint()("dim", title), ""]
    for one in each[-kept:]:
        lines += ([""] if lines and lines[-1] else []) + one
    return ([""] if before else []) + lines


def _rows() -> int:
    """Lines of the terminal. (shutil knows too, but takes 3 ms to import.)"""
    lines = os.environ.get("LINES", "")
    if lines.isascii() and lines.isdigit() and int(lines):
        return int(lines)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or _ROWS
    except OSError:
        return _ROWS
