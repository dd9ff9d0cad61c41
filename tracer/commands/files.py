"""Commands that write or read files: export, record, replay."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from io import FileIO
from itertools import chain
from pathlib import Path

import click

from tracer.commands.output import save
from tracer.commands.shared import (
    DURATION,
    REQUEST_ID,
    block,
    check_schema,
    client,
    decode,
    json_option,
    offered,
    paint,
    parse,
    print_json,
    print_lines,
    say,
)
from tracer.errors import TtftError
from tracer.render_units import size


@click.command()
@click.argument(
    "number",
    metavar="[ID]",
    required=False,
    type=REQUEST_ID,
    shell_complete=offered("ids"),
)
@click.option("--since", type=DURATION, metavar="TIME", help="All requests of the last 10m, 1h.")
@click.option(
    "--output",
    "-o",
    required=True,
    metavar="FILE",
    type=click.Path(),
    help="Where to; - for stdout.",
)
@click.pass_context
def export(context: click.Context, number: int | None, since: str | None, output: str) -> None:
    """Write a Chrome trace to open in https://ui.perfetto.dev.

    \b
    Examples:
      ttft export 17 -o trace.json
      ttft export --since 10m -o trace.json
    """
    if (number is None) == (since is None):
        raise click.UsageError("give an ID or --since, one of them", ctx=context)
    daemon = client(context)
    if number is not None:
        body = daemon.get(f"/v1/requests/{number}/trace")
    else:
        body = daemon.get("/v1/trace", {"since": since})
    trace = parse(body)
    check_schema(trace.get("otherData", trace) if isinstance(trace, dict) else trace)
    if since is not None and not trace["traceEvents"]:
        raise TtftError(
            f"no requests in the last {since}", "ttft requests lists those that are kept"
        )
    save(output, body)
    if output != "-":
        say(f"{output}: {size(len(body))}; open it in https://ui.perfetto.dev")


@click.command()
@click.option("--output", "-o", required=True, metavar="FILE", type=click.Path(), help="Where to.")
@click.option("--for", "length", type=DURATION, metavar="TIME", help="Stop after 60s, 10m.")
@click.pass_context
def record(context: click.Context, output: str, length: str | None) -> None:
    """Record what ttftd sees, to replay it elsewhere. Ctrl-C stops.

    A recording holds no prompt and no answer text: it can go into a bug report. What is cut
    off (daemon stopped, disk full) stays usable up to its last whole line.

    \b
    Examples:
      ttft record -o slow.ttft --for 60s
      ttft replay slow.ttft
    """
    from tracer.recording import end_line

    if output == "-":
        raise click.UsageError("a recording needs a file, to be ended properly", ctx=context)
    pieces = client(context).stream("/v1/records", {"for": length})
    # Not before the daemon answers may an older file of that name go.
    first = next(pieces, b"")
    check_schema(parse(first.partition(b"\n")[0]), "ttft_recording")
    path = Path(output)
    if path.exists() and not path.is_file():
        raise TtftError(f"{output} is not a regular file", "give the name of a file to write")
    # Unbuffered, so that what could not be written shows at once and only once.
    with path.open("wb", buffering=0) as file:
        cut = _copy(chain([first], pieces), file)
        kept, lines = _drop_half_line(path, file)
        if cut is None:
            # The first line is the header.
            _write_all(file, end_line(max(0, lines - 1)))
    say(f"{output}: {max(0, lines - 1)} records, {size(kept)}")
    if cut is not None:
        raise TtftError(
            f"{output} is truncated: {cut}",
            "it replays up to there; requests that were open then are shown as open",
        )


def _copy(pieces: Iterable[bytes], file: FileIO) -> str | None:
    """Until they end or Ctrl-C; returns what cut them off."""
    written = lines = 0
    began = time.monotonic()
    try:
        for piece in pieces:
            _write_all(file, piece)
            written += len(piece)
            lines += piece.count(b"\n")
            _progress(written, lines, time.monotonic() - began)
    except KeyboardInterrupt:
        return None
    except TtftError as error:
        return error.message
    except OSError as error:
        return error.strerror or str(error)
    finally:
        _progress_end()
    return None


def _write_all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _progress(written: int, lines: int, seconds: float) -> None:
    if sys.stderr.isatty():
        text = f"\r{seconds:6.0f} s  {lines} records  {size(written)}   (Ctrl-C stops)  "
        sys.stderr.write(text)
        sys.stderr.flush()


def _progress_end() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")


def _drop_half_line(path: Path, file: FileIO) -> tuple[int, int]:
    """Cut what follows the last newline; returns bytes and lines that stay."""
    kept = lines = 0
    with path.open("rb") as written:
        for line in written:
            if line.endswith(b"\n"):
                kept += len(line)
                lines += 1
    file.seek(kept)
    file.truncate()
    return kept, lines


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--show", "number", type=REQUEST_ID, metavar="ID", help="One in detail.")
@click.option(
    "--trace", metavar="OUT", type=click.Path(), help="Write a Chrome trace of all requests."
)
@json_option
def replay(file: Path, number: int | None, trace: str | None, as_json: bool) -> None:
    """The answers of a recording: no daemon, no root, any machine.

    \b
    Examples:
      ttft replay slow.ttft
      ttft replay slow.ttft --show 3
      ttft replay slow.ttft --json > answers.json
      ttft replay slow.ttft --trace trace.json
    """
    from tracer.answers import answer, detail, dumps
    from tracer.recording import Recording
    from tracer.recording import replay as derive

    recording = Recording(file)
    found = derive(recording)
    if recording.truncated:
        say(f"{file} is truncated: this is what it holds up to its last whole line")
    if trace is not None:
        from tracer.export.chrome import dump

        save(trace, dump(found))
        say(f"{trace}: open it in https://ui.perfetto.dev")
        if number is None and not as_json:
            return
    if number is None:
        answers = decode(dumps([answer(item) for item in found]))
        _print_listing(answers, as_json)
        return
    wanted = [item for item in found if item.evidence.id == number]
    if not wanted:
        ids = ", ".join(str(item.evidence.id) for item in found[-20:]) or "none"
        raise TtftError(f"no request {number} in {file}", f"there is: {ids}")
    _print_one(decode(dumps({**answer(wanted[-1]), **detail(wanted[-1])})), as_json)


def _print_listing(answers: list[dict[str, object]], as_json: bool) -> None:
    if as_json:
        return print_json(answers)
    from tracer.render import requests

    return print_lines(requests(answers, paint=paint()))


def _print_one(answer: dict[str, object], as_json: bool) -> None:
    if as_json:
        return print_json(answer)
    from tracer.render_show import show

    return print_lines(show(answer, paint=paint(), block=block()))
