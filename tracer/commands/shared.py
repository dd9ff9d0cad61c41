"""What the commands share: options, output, and the one place where errors are printed."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
import orjson

from tracer.errors import TtftError
from tracer.render import Paint, colour, plain
from tracer.render_units import DURATION_HELP, clean, json_safe, parse_duration

DEFAULT_SOCKET = "/run/ttft/ttft.sock"

if TYPE_CHECKING:
    from tracer.client import Client

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType[str]):
    """`10m`, `1.5h`, ...: kept as text, since the daemon reads it too."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_duration(str(value))
        except ValueError as error:
            self.fail(f"{error}; give {DURATION_HELP}", param, ctx)
        return str(value)


class Number(click.IntRange):
    """A whole number; what is none is said in plain words."""

    name = "number"


class RequestId(Number):
    """`17`, or `#17` as it is printed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        bare: Any = value.removeprefix("#") if isinstance(value, str) else value
        return super().convert(bare, param, ctx)


DURATION = Duration()
REQUEST_ID = RequestId(0)
LAST_MAX = 10_000
SCHEMA = 1

last_option = click.option(
    "--last",
    "-n",
    type=Number(1, LAST_MAX),
    metavar="N",
    help="Only the newest N  [default: 20, or all of --since]",
)
since_option = click.option(
    "--since", type=DURATION, metavar="TIME", help="Only those of the last 30s, 10m, 1h, 7d."
)


def offered(what: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """What a shell may complete an argument with; asked for only when a shell does."""

    def ask(context: click.Context, parameter: click.Parameter, typed: str) -> list[Any]:
        completion = importlib.import_module("tracer.commands.completion")
        found: list[Any] = getattr(completion, what)(context, parameter, typed)
        return found

    return ask


model_option = click.option(
    "--model",
    "-m",
    metavar="NAME",
    shell_complete=offered("models"),
    help="Only those for this model.",
)


def client(context: click.Context, timeout_s: float | None = None) -> Client:
    """The daemon that the options name."""
    from tracer.client import TIMEOUT_S, Client

    given = context.find_root().params.get("socket")
    patience = TIMEOUT_S if timeout_s is None else timeout_s
    return Client(given or DEFAULT_SOCKET, patience, given not in (None, DEFAULT_SOCKET))


def json_option(command: F) -> F:
    """`--json`, on everything that lists."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(
        command
    )


def parse(body: bytes) -> Any:
    """The JSON of an answer."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise TtftError(
            "the daemon's answer is not JSON", "is another program listening on this socket?"
        ) from error


def decode(body: bytes) -> Any:
    """The JSON of an answer, in the schema that this version reads."""
    answer = parse(body)
    check_schema(answer)
    return answer


def check_schema(answer: object, key: str = "schema") -> None:
    """What another version means by its words is not guessed. `key` has its number."""
    first = answer[0] if isinstance(answer, list) and answer else answer
    if first == []:
        return
    schema = first.get(key, first.get("schema")) if isinstance(first, dict) else None
    if not isinstance(schema, int):
        raise TtftError(
            "the daemon's answer is not one of ttftd",
            "is another program listening on this socket?",
        )
    if schema != SCHEMA:
        older, newer = ("ttft", "ttftd") if schema > SCHEMA else ("ttftd", "ttft")
        hint = "update ttft" if older == "ttft" else "update ttftd and restart it"
        raise TtftError(
            f"ttftd answers in schema {schema}, this ttft reads schema {SCHEMA}: "
            f"{older} is older than {newer}",
            f"{hint}; ttft --version and ttftd --version tell them apart",
        )


def print_json(value: object) -> None:
    """Indented JSON with a newline."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    write(harmless(orjson.dumps(value, option=options)))


def json_line(value: object) -> bytes:
    """JSON on one line."""
    return harmless(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))


def harmless(data: bytes) -> bytes:
    """The same JSON, with what a terminal might obey written as `\\u` escapes.

    Names come from whoever sends a request. Only within strings JSON has other than ASCII.
    """
    if data.isascii() and b"\x7f" not in data:
        return data
    return json_safe(data.decode()).encode()


def write(data: bytes) -> None:
    """To standard output, and out of here: a closed pipe shows now."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_lines(lines: Iterable[str]) -> None:
    """Text; characters that the terminal's encoding lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    text = "".join(line + "\n" for line in lines)
    write(text.encode(encoding, "backslashreplace"))


def paint() -> Paint:
    """Colours on a terminal, unless NO_COLOR is set."""
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return colour if wanted and os.environ.get("TERM") != "dumb" else plain


def block() -> str:
    """What bars are drawn with."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return "\u2588" if encoding == "utf8" else "#"


def none_found(since: str | None, model: str | None) -> str:
    """What to say where no request was kept that fits."""
    whose = f" for {model}" if model else ""
    when = f" in the last {since}" if since else ""
    return f"No requests{whose}{when}. ttft status says what is watched."


def say(text: str) -> None:
    """Progress, to standard error."""
    click.echo(clean(text), err=True)


def run(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run it and return the exit code: 0 fine, 1 failed, 2 wrong usage, 3 no daemon."""
    _standard_streams()
    try:
        result = command.main(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _wrong_usage(error, name)
    except TtftError as error:
        return _complain(name, error.message, error.hint, error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain(name, "interrupted", None)
    except (BrokenPipeError, SystemExit) as error:
        # SystemExit is click's own way of ending at a closed pipe, and after completing a word.
        return _silence(sys.stdout) if getattr(error, "code", 1) else 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(name, f"{where}{error.strerror or error}", _hint(error))
    return result if isinstance(result, int) else 0


def _hint(error: OSError) -> str | None:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space there, or write elsewhere"
    return "give a path in a folder that is there, and that you may use" if error.filename else None


def _standard_streams() -> None:
    """Those the caller closed lead nowhere, so that no file of ours gets their numbers."""
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


def _wrong_usage(error: click.ClickException, name: str) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"see: {context.command_path if context else name} -h"
    if context and context.parent and getattr(error, "option_name", None) == "--socket":
        root = context.find_root()
        if any("--socket" in parameter.opts for parameter in root.command.params):
            command = context.command_path.removeprefix(f"{name} ")
            hint = f"--socket goes before the command: {name} --socket PATH {command}"
    # Some of click's messages are lists of several lines.
    return _complain(name, " ".join(error.format_message().split()), hint, error.exit_code)


def _silence(stream: TextIO) -> int:
    """Nobody takes our output any more: let the interpreter's last flush go nowhere."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
    return 1


def _complain(name: str, message: str, hint: str | None, exit_code: int = 1) -> int:
    try:
        click.echo(f"{name}: {clean(message)}", err=True)
        if hint:
            click.echo(f"hint: {clean(hint)}", err=True)
    except OSError:
        _silence(sys.stderr)
    return exit_code
