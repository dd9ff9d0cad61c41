"""`ttft watch`: requests as they come."""

from __future__ import annotations

import queue
import sys
import threading
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
from tracer.render_units import fit

_BEFORE = 5
_RETRY_S = 1.0
_REMEMBERED = 1000


@click.command()
@json_option
@click.pass_context
def watch(context: click.Context, as_json: bool) -> None:
    """Requests as they come, slow ones with their cause. Ctrl-C ends.

    Each is shown at its first token, or at its end where it got none. On a terminal the last
    line tells what is still waiting, and in which phase. With --json: one object a line, again
    at each change. Goes on when ttftd is restarted.

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
        if as_json or not sys.stdout.isatty():
            for answer in _follow(daemon):
                shown.add(answer)
            return
        asked, waits = 0.0, list[Json]()
        for event in _live(daemon):
            shown.waiting([])
            if event is not None:
                shown.add(event)
            if time.monotonic() - asked >= _RETRY_S:
                asked, waits = time.monotonic(), _open(daemon)
            shown.waiting(waits)
    except KeyboardInterrupt:
        shown.waiting([])


def _follow(daemon: Client) -> Iterator[Json]:
    """Events of this daemon and of those that come after it on the same socket."""
    yield from _events(daemon)
    while True:
        say("ttftd is gone; waiting for it to come back (Ctrl-C ends)")
        while not _answers(daemon):
            time.sleep(_RETRY_S)
        say("ttftd is back")
        yield from _events(daemon)


def _live(daemon: Client) -> Iterator[Json | None]:
    """Events, and None whenever none came for a second."""
    events: queue.SimpleQueue[Json | Exception] = queue.SimpleQueue()

    def read() -> None:
        try:
            for answer in _follow(daemon):
                events.put(answer)
        except TtftError as error:
            events.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            event = events.get(timeout=_RETRY_S)
        except queue.Empty:
            yield None
            continue
        if isinstance(event, Exception):
            raise event
        yield event


def _open(daemon: Client) -> list[Json]:
    """What has no first token yet; nothing where it cannot be told."""
    try:
        found = decode(daemon.get("/v1/open"))
    except TtftError:
        return []
    return [answer for answer in found if answer["ttft_ms"] is None]


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
        self._line = False

    def waiting(self, answers: list[Json]) -> None:
        """The last line: what waits, the longest first; none takes it away."""
        answers = [answer for answer in answers if answer["id"] not in self._ids]
        if not answers and not self._line:
            return
        text = fit(render.waiting(answers, datetime.now(UTC)), render.COLUMNS - 1)
        write(b"\r\x1b[K" + self._paint("dim", text).encode(errors="replace"))
        self._line = bool(answers)

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
        so_far = _at_first_token(answer)
        lines.append(render.request_line(so_far, None, self._paint))
        if answer["spike"]["is_spike"] and not before:
            reason = render_spikes.reason(so_far, self._paint)
            told = render_spikes.cause(so_far) == answer["spike"]["cause"]
            lines += reason[1:] if told else reason
        return lines


def _at_first_token(answer: Json) -> Json:
    """Told as what it is so far: that it still generates is no flaw."""
    if answer["outcome"] != "open" or answer["ttft_ms"] is None:
        return answer
    only_open = (answer["incomplete_because"] or "").startswith("open:")
    return {**answer, "outcome": "ok", "complete": answer["complete"] or only_open}
