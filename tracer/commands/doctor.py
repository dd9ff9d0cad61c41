"""`ttft doctor`: what this host allows. Needs no daemon, and asks it if one answers."""

from __future__ import annotations

from typing import NamedTuple

import click

from tracer import answers_state
from tracer.client import Client
from tracer.commands.shared import client, decode, json_option, paint, print_json, print_lines
from tracer.errors import TtftError
from tracer.render import Json

_ASK_S = 3.0


class _Daemon(NamedTuple):
    """The fact that the daemon answers, or why not."""

    ok: bool | None
    value: str
    advice: str | None = None
    name: str = "daemon"
    missing: str | None = None


@click.command()
@click.option("--btf", metavar="FILE", help="Kernel types (BTF), where the kernel has none.")
@json_option
@click.pass_context
def doctor(context: click.Context, btf: str | None, as_json: bool) -> None:
    """What this kernel and host allow, what is missing, what to do.

    Works without the daemon; run it as root to see all. Exit code 1 when something needed is
    missing.

    \b
    Examples:
      sudo ttft doctor
      ttft doctor --json
    """
    answer = _here(btf)
    daemon = _daemon(client(context, _ASK_S))
    # What the running daemon found goes first: it has the rights that this command may lack.
    # Asked about other types than the daemon's, only its own being there counts.
    first = (
        daemon["facts"] if btf is None else [f for f in daemon["facts"] if f["name"] == "daemon"]
    )
    known = {fact["name"] for fact in first}
    facts = first + [fact for fact in answer["facts"] if fact["name"] not in known]
    answer |= {
        "daemon": daemon["daemon"],
        "facts": facts,
        "ok": all(fact["ok"] is not False for fact in facts),
    }
    if as_json:
        print_json(answer)
    else:
        from tracer.render_state import doctor as lines

        print_lines(lines(answer, paint=paint()))
    context.exit(0 if answer["ok"] else 1)


def _here(btf: str | None) -> Json:
    from tracer.devices.facts import facts as driver_facts
    from tracer.kernel.features import facts
    from tracer.stacks.names import fact
    from tracer.telemetry.facts import facts as device_facts

    return answers_state.doctor(
        [*facts(btf), fact(), *driver_facts(), *device_facts()], daemon=False
    )


def _daemon(daemon: Client) -> Json:
    try:
        answer: Json = decode(daemon.get("/v1/doctor"))
    except TtftError as error:
        return answers_state.doctor([_Daemon(None, error.message, error.hint)], daemon=False)
    answer["facts"] += answers_state.doctor([_Daemon(True, "answers")], daemon=True)["facts"]
    return answer
