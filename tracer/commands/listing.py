"""Commands that ask the daemon and print its answer."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from tracer import render
from tracer.commands.shared import (
    REQUEST_ID,
    block,
    client,
    decode,
    json_option,
    last_option,
    model_option,
    none_found,
    offered,
    paint,
    print_json,
    print_lines,
    since_option,
)
from tracer.render_units import wrap


@click.command()
@json_option
@click.pass_context
def status(context: click.Context, as_json: bool) -> None:
    """Watched servers, probes, records lost, own cost.

    \b
    Examples:
      ttft status
      ttft status --json
    """
    answer = decode(client(context).get("/v1/status"))
    if as_json:
        return print_json(answer)
    from tracer.render_state import status as lines

    return print_lines(lines(answer, paint=paint()))


@click.command()
@last_option
@since_option
@model_option
@json_option
@click.pass_context
def requests(
    context: click.Context, last: int | None, since: str | None, model: str | None, as_json: bool
) -> None:
    """The requests of the history, oldest first, with TTFT and verdict.

    \b
    Examples:
      ttft requests
      ttft requests --since 1h --model beta
      ttft requests --last 100 --json
    """
    query = {"last": last, "since": since, "model": model}
    answers = decode(client(context).get("/v1/requests", query))
    if as_json:
        return print_json(answers)
    if not answers:
        return print_lines(wrap(none_found(since, model), render.COLUMNS))
    return print_lines(render.requests(answers, paint=paint(), now=datetime.now(UTC)))


@click.command()
@click.argument("number", metavar="ID", type=REQUEST_ID, shell_complete=offered("ids"))
@json_option
@click.pass_context
def show(context: click.Context, number: int, as_json: bool) -> None:
    """One request: waterfall of its phases, evidence, verdict, advice.

    ID is a number that `ttft requests` or `ttft spikes` shows.

    \b
    Examples:
      ttft show 17
      ttft show 17 --json
    """
    answer = decode(client(context).get(f"/v1/requests/{number}"))
    if as_json:
        return print_json(answer)
    from tracer.render_show import show as lines

    return print_lines(lines(answer, paint=paint(), block=block(), now=datetime.now(UTC)))


@click.command()
@json_option
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """Each model seen: where it is resident, its size, when it was last used.

    \b
    Example:
      ttft models
    """
    answers = decode(client(context).get("/v1/models"))
    if as_json:
        return print_json(answers)
    return print_lines(render.models(answers, paint=paint(), now=datetime.now(UTC)))
