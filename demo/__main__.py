"""`python -m demo`: drive a real server, explain each first token, check the explanations.

Exit code 0 when every check holds, 1 when one does not or the demo could not come so far.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from http.client import HTTPException
from pathlib import Path

import msgspec

from demo import report
from demo.checks import Case, Json, checks
from demo.scenarios import WARMUP, Sent, drive
from tests.workloads import bpf, interrupts, llama
from tests.workloads.throttle import Throttle, ThrottleError
from tests.workloads.ttftd import UNIT_NICE, Ttftd, matched, ttft
from tracer import render_show, render_spikes
from tracer.errors import TtftError

RECORDING = Path(__file__).parent / "recording.ndjson.gz"
SENT = Path(__file__).parent / "recording.sent.json"
NAS_BYTES_PER_S = 100_000_000
#: The daemon explains within a second; beside other work on the machine it may take longer.
PATIENCE_S = 60.0
#: What waiting, servers and the daemon raise where they are disturbed; anything else is a bug here.
FAILURES = (
    OSError, RuntimeError, HTTPException, subprocess.SubprocessError, ThrottleError, TtftError,
)  # fmt: skip
OWN_SERVER = (
    "The demo's daemon is gone. To watch a server of your own, in two terminals:",
    "  sudo .venv/bin/ttftd run         # in the foreground, as root; Ctrl-C ends it",
    "  sudo .venv/bin/ttft watch        # or: status, spikes, show ID",
)


class Outcome(msgspec.Struct, frozen=True):
    """What the run gave: an answer for each request sent, one of them in detail, a trace.

    `spikes`: what `ttft spikes` printed; None where no daemon ran that could be asked.
    """

    answers: list[Json]
    sent: list[Sent]
    detail: Json
    trace: bytes
    spikes: str | None


def say(text: str = "") -> None:
    """One line, at once."""
    print(text, flush=True)


def main() -> int:
    """The whole demo; returns the exit code."""
    interrupts.heed()
    options = arguments()
    refusal = why_not_live(options.models)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if options.vulkan:
            return on_vulkan(options.models, options.out, refusal)
        return on_processor(options, refusal)
    except FAILURES as error:
        folder: Path = options.out / "vulkan" if options.vulkan else options.out
        return failed(error, None if refusal else folder)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1


def on_processor(options: argparse.Namespace, refusal: str | None) -> int:
    """The nine scenarios, or the recording of them where `refusal` says why not."""
    out: Path = options.out
    began = time.monotonic()
    if refusal is not None:
        outcome, size = replay(refusal)
    else:
        outcome, size = live(options), model_size(options.models)
    cases = list(map(Case, outcome.sent, outcome.answers))
    write(out, cases, outcome.trace)
    good = present(cases, outcome, size)
    files = ", ".join(str(out / name) for name in ("requests.json", "client.json", "trace.json"))
    say(f"wrote {files}")
    say("open the trace in https://ui.perfetto.dev")
    if refusal is not None:
        say(f"A RECORDING was replayed: {refusal}.")
    say(f"{'all checks hold' if good else 'CHECKS FAILED'}; {time.monotonic() - began:.0f} s")
    for line in () if refusal is not None else ("", *OWN_SERVER):
        say(line)
    return 0 if good else 1


def failed(error: BaseException, folder: Path | None) -> int:
    """Says why it ended early; `folder`: where its daemon and servers logged."""
    reason = str(error) or type(error).__name__
    print(f"error: the demo could not go on: {reason}", file=sys.stderr)
    if isinstance(error, TtftError) and error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    if folder is not None:
        print(
            f"hint: the daemon's log is {folder / 'ttftd.log'}, those of its servers are below "
            f"{folder}; another ttftd or a busy server on this machine can disturb the demo: "
            "end it, or try again once it is quiet",
            file=sys.stderr,
        )
    return 1


def on_vulkan(models: Path, out: Path, refusal: str | None) -> int:
    """The scenarios of `demo.vulkan`; they are not replayed where they cannot run."""
    from demo import vulkan

    refusal = refusal or vulkan.refusal()
    if refusal is not None:
        print(f"error: cannot run here: {refusal}", file=sys.stderr)
        return 1
    began = time.monotonic()
    good = vulkan.run(models, out, say)
    say(f"\n{'all checks hold' if good else 'CHECKS FAILED'}; {time.monotonic() - began:.0f} s")
    return 0 if good else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument(
        "--vulkan", action="store_true", help="uploads and compilation, on a software Vulkan device"
    )
    parser.add_argument("--record", action="store_true", help="renew the checked-in recording")
    return parser.parse_args()


def why_not_live(models: Path) -> str | None:
    """Why the demo cannot run for real here; None where it can."""
    if not (models / "alpha.gguf").exists():
        return f"no models in {models} (scripts/setup.sh demo puts them there)"
    try:
        llama.server_binary()
    except FileNotFoundError as error:
        return str(error)
    return bpf.refusal()


def model_size(models: Path) -> int:
    """Bytes of one model."""
    return (models / "alpha.gguf").stat().st_size


def live(options: argparse.Namespace) -> Outcome:
    """Drives the real server under a daemon of our own."""
    out: Path = options.out
    for stale in ("state", "logs"):
        shutil.rmtree(out / stale, ignore_errors=True)
    (out / "ttftd.log").unlink(missing_ok=True)
    models: Path = options.models.resolve()
    with slow_disk(models) as throttle:
        began = time.monotonic()
        with Ttftd(out.resolve(), nice=UNIT_NICE) as daemon:
            say(f"ttftd watches after {time.monotonic() - began:.1f} s")
            recording = daemon.recording(RECORDING.with_suffix("")) if options.record else None
            with recording or nullcontext():
                sent = drive(models, out / "logs", throttle, NAS_BYTES_PER_S, say)
                answers = daemon.explained(sent, PATIENCE_S)
            detail = daemon.get(f"/v1/requests/{number_of('cold_switch', sent, answers)}")
            trace = json.dumps(daemon.get("/v1/trace")).encode()
            spikes = _ttft("spikes", socket=daemon.socket)
    if options.record:
        keep_recording(sent)
    return Outcome(answers, sent, detail, trace, spikes)


@contextmanager
def slow_disk(models: Path) -> Iterator[Throttle | None]:
    """A throttle for the cold cases, or None; says which."""
    speed = f"{NAS_BYTES_PER_S / 1e6:.0f} MB/s"
    try:
        throttle = Throttle(models / "alpha.gguf")
        throttle.__enter__()
    except ThrottleError as error:
        say(f"cold cases read at the disk's own speed: {error}")
        yield None
        return
    try:
        say(f"cold cases: reads held to a NAS disk's {speed} by {throttle.by}")
        yield throttle
    finally:
        throttle.close()


def keep_recording(sent: Sequence[Sent]) -> None:
    """Compresses the new recording and keeps the client's figures beside it."""
    import gzip

    plain = RECORDING.with_suffix("")
    with plain.open("rb") as source, gzip.GzipFile(RECORDING, "wb", mtime=0) as target:
        shutil.copyfileobj(source, target)
    plain.unlink()
    SENT.write_bytes(msgspec.json.encode(list(sent)) + b"\n")
    say(f"wrote {RECORDING} ({RECORDING.stat().st_size / 1e3:.0f} kB)")


def replay(reason: str) -> tuple[Outcome, int]:
    """The checked-in recording of this demo, through the same pipeline."""
    say(f"NOT LIVE: {reason}.")
    say(f"Replaying {RECORDING.name}, a recording of this demo on another machine:")
    say("every figure below was measured there, none of them here.")
    sent = msgspec.json.decode(SENT.read_bytes(), type=list[Sent])
    found = matched(json.loads(_ttft("replay", str(RECORDING), "--json")), sent)
    answers = [answer for answer in found if answer is not None]
    number = number_of("cold_switch", sent, answers)
    detail = json.loads(_ttft("replay", str(RECORDING), "--show", str(number), "--json"))
    trace = _ttft("replay", str(RECORDING), "--trace", "-").encode()
    size = next(file["size"] for file in detail["evidence_detail"]["files"] if file["format"])
    return Outcome(answers, sent, detail, trace, None), size


def _ttft(*args: str, socket: Path | None = None) -> str:
    done = ttft(*args, socket=socket)
    if done.returncode != 0:
        raise RuntimeError(f"ttft {' '.join(args)} failed: {done.stderr}")
    return done.stdout


def number_of(scenario: str, sent: Sequence[Sent], answers: Sequence[Json]) -> int:
    """The id of a scenario's request."""
    pairs = zip(sent, answers, strict=True)
    return next(int(answer["id"]) for one, answer in pairs if one.scenario == scenario)


def write(out: Path, cases: Iterable[Case], trace: bytes) -> None:
    """The demo's three files."""
    shown = [case for case in cases if case.sent.scenario != WARMUP]
    keys = ("scenario", "model", "ttft_ms", "prompt_eval_ms")
    client = [{key: getattr(case.sent, key) for key in keys} for case in shown]
    requests = [case.answer for case in shown]
    (out / "requests.json").write_text(json.dumps(requests, indent=2) + "\n")
    (out / "client.json").write_text(json.dumps(client, indent=2) + "\n")
    (out / "trace.json").write_bytes(trace)


def present(cases: Sequence[Case], outcome: Outcome, size: int) -> bool:
    """Prints tables, verdicts and checks; returns whether all checks hold."""
    shown = [case for case in cases if case.sent.scenario != WARMUP]
    say()
    for line in (*report.phases(shown), "", *report.verdicts(shown)):
        say(line)
    if outcome.spikes is not None:
        say(f"\n$ ttft spikes\n{outcome.spikes.rstrip()}")
    else:
        say("\nwhat was slow, as `ttft spikes` lists it")
        for line in render_spikes.spikes(
            [c.answer for c in shown if c.answer["spike"]["is_spike"]]
        ):
            say(line)
    say(f"\n$ ttft show {outcome.detail['id']}        # cold_switch")
    for line in render_show.show(outcome.detail):
        say(line)
    found = checks(cases, size)
    say("\nchecks")
    for line in report.checked(found):
        say(line)
    say()
    return not any(check.wrong for check in found)


if __name__ == "__main__":
    sys.exit(main())
