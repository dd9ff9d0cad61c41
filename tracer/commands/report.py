"""`ttft report`: one page about a time, to keep or to send."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tracer.commands.output import save
from tracer.commands.shared import (
    DURATION,
    client,
    decode,
    model_option,
    none_found,
    say,
)
from tracer.errors import TtftError
from tracer.render import Json
from tracer.render_units import size

if TYPE_CHECKING:
    from tracer.client import Client

WEEK = "7d"
_LISTED = 1000
_SHOWN = 12


@click.command()
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="FILE",
    type=click.Path(),
    help="Where to; - for stdout.",
)
@click.option(
    "--since", type=DURATION, metavar="TIME", default=WEEK, help=f"How far back  [default: {WEEK}]"
)
@model_option
@click.pass_context
def report(context: click.Context, output: str, since: str, model: str | None) -> None:
    """Write one web page about slow first tokens, to keep or to send.

    It opens from disk and needs nothing else: causes over time, how warm each model was, the
    worst requests as waterfalls, and all of them in a table. It holds names of models and
    files, and no word of any prompt or answer.

    \b
    Examples:
      ttft report -o report.html
      ttft report -o beta.html --since 30d --model beta
    """
    daemon = client(context)
    window = {"since": since, "model": model}
    summary: Json = decode(daemon.get("/v1/summary", window))
    if not summary["requests"]:
        raise _nothing(daemon, since, model)
    spikes: list[Json] = decode(daemon.get("/v1/spikes", {**window, "last": _LISTED}))
    from tracer.report import Data, page, worst

    shown = [decode(daemon.get(f"/v1/requests/{one['id']}")) for one in worst(spikes, _SHOWN)]
    models = decode(daemon.get("/v1/models"))
    made = page(Data(summary, spikes, shown, models, datetime.now(UTC))).encode()
    save(output, made)
    if output != "-":
        say(f"{output}: {size(len(made))}; open it in a browser")


def _nothing(daemon: Client, since: str, model: str | None) -> TtftError:
    """Why there is nothing to report on: only where there is more does a longer time help."""
    if not decode(daemon.get("/v1/requests", {"last": 1})):
        return TtftError("there are no requests yet", "ttft status says what is watched")
    if model and not decode(daemon.get("/v1/requests", {"last": 1, "model": model})):
        return TtftError(f"no requests for {model}", "ttft models lists those that were seen")
    return TtftError(none_found(since, model).partition(".")[0], "give a longer --since")
