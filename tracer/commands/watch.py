"""`ttft watch`: requests as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import click

from tracer import render, render_spikes
from tracer.client import Client
from tracer.commands.shared import (
    client,
    decode,
    json_line,
    json_option,
    paint,
    print_lines,
    say,
    write,
)
from tracer.errors import TtftError
from tracer.render import Json

_BEFORE = 5
_RETRY_S = 1.0
_REMEMBERED = 1000


@click.command()
@json_option
@click.pass_context
def watch(context: click.Context, as_json: bool) -> None:
    """Requests as they come, slow ones with their cause. Ctrl-C ends.

    Each is shown at its first token, or at its end where it got none. With --json: one object a
    line, again at each change. Goes on when ttftd is restarted.

    \b
    Examples:
      ttft watch
      ttft watch --json | jq .ttft_ms
    """
    daemon = client(context)
    shown = _Shown(as_json)
    try:
        if not as_json:
            shown.begin(decode(daemon.get("/v1/requests", {"last": _BEFORE})))
        for answer in _follow(daemon):
            shown.add(answer)
    except KeyboardInterrupt:
        return


def _follow(daemon: Client) -> Iterator[Json]:
    """Events of this daemon and of those that come after it on the same socket."""
    yield from _events(daemon)
    while True:
        say("ttftd is gone; waiting for it to come back (Ctrl-C ends)")
        while not _answers(daemon):
            time.sleep(_RETRY_S)
        say("ttftd is back")
        yield from _events(daemon)


def _answers(daemon: Client) -> bool:
    try:
        daemon.get("/v1/requests", {"last": 1})
    except TtftError:
        return False
    return True


def _events(daemon: Client) -> Iterator[Json]:
    """Answers as they come, until the daemon is gone; refusals to begin are raised."""
    rest, began = b"", False
    try:
        for piece in daemon.stream("/v1/events"):
            began = True
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                for line in event.split(b"\n"):
                    if line.startswith(b"data: "):
                        yield decode(line[6:])
    except TtftError:
        if not began:
            raise


class _Shown:
    """Prints; remembers what it printed, since a request is told of twice."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._paint = paint()
        self._day = ""
        self._ids: dict[int, None] = {}

    def begin(self, answers: list[Json]) -> None:
        print_lines([self._paint("head", render.REQUESTS_HEAD)])
        for answer in answers:
            self.add(answer, before=True)

    def add(self, answer: Json, before: bool = False) -> None:
        if self._json:
            return write(json_line(answer))
        if "lost" in answer:
            return say(f"{answer['lost']} requests were not shown: this terminal is too slow")
        over = answer["at_ns"]["end"] is not None or answer["outcome"] != "open"
        if answer["id"] in self._ids or not (over or answer["ttft_ms"] is not None):
            return None
        self._ids[answer["id"]] = None
        if len(self._ids) > _REMEMBERED:
            del self._ids[next(iter(self._ids))]
        return print_lines(self._lines(answer, before))

    def _lines(self, answer: Json, before: bool) -> list[str]:
        now = datetime.now(UTC)
        date, word = render.day_of(answer["wall_time"], None, now)
        lines = []
        if date != self._day:
            self._day = date
            lines.append(self._paint("dim", f"{date}, {word}" if word else date))
        lines.append(render.request_line(_at_first_token(answer), None, self._paint))
        if answer["spike"]["is_spike"] and not before:
            reason = render_spikes.reason(answer, self._paint)
            told = render_spikes.cause(answer) == answer["spike"]["cause"]
            lines += reason[1:] if told else reason
        return lines


def _at_first_token(answer: Json) -> Json:
    """Told as what it is so far: that it still generates is no flaw."""
    if answer["outcome"] != "open" or answer["ttft_ms"] is None:
        return answer
    only_open = (answer["incomplete_because"] or "").startswith("open:")
    return {**answer, "outcome": "ok", "complete": answer["complete"] or only_open}
