"""`python -m bench gpu_check`: on a machine with an NVIDIA GPU, is what the GPU is told to do seen?

Runs a small CUDA program with known uploads, allocations, launches and a graph (bench/cuda_work.py,
by ctypes on the driver's own interface; no PyTorch, no CUDA toolkit) as a watched server, in whose
only request it works, under a daemon of its own. Prints what was done against what was seen:

- calls into libcuda and, where it is there, NVRTC: count and bytes, which must be equal;
- calls into the kernel driver: which classes were seen on which device. Launches and copies make
  none; that those of bringing up, allocating, mapping and freeing show is what is asked;
- what ttft made of the request: its phases.

Needs root, a kernel that takes BPF, and this project with its virtual environment (scripts/setup.sh
test). Exit code 0: all seen; 1: something was missed; 2: no GPU here, or it cannot be watched.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench import cuda_work
from tests.workloads import bpf, llama
from tests.workloads.ttftd import Json, Ttftd
from tests.workloads.waiting import wait_for
from tracer.errors import TtftError
from tracer.libs.calls import Catalogue, shipped
from tracer.records import AnyRecord, Call, DeviceCall, Library

NAME = "gpu-check"
WORK = Path(cuda_work.__file__)
NO_GPU, MISSED = 2, 1
PROBE_S, WORK_S, SEEN_S = 120.0, 300.0, 90.0
#: Classes of driver calls that the work cannot do without, on any NVIDIA device.
CLASSES = ("open", "context", "allocate", "map", "free")
TROUBLE = (OSError, TtftError, RuntimeError, subprocess.SubprocessError, http.client.HTTPException)
#: Where NVRTC is found without being told, beside where the dynamic linker looks.
NVRTC = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so")
NVRTC_FOLDERS = ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib")
CONFIG = """
[probes]
arming = "always"

[[server]]
name = "{name}:{port}"
port = {port}
"""


@dataclass(frozen=True)
class Row:
    """One line: what was done, what was seen; `ok` None: nothing is asked."""

    what: str
    done: str
    seen: str
    ok: bool | None


@dataclass
class Seen:
    """Records of the watched process, those that were replaced left out."""

    calls: dict[tuple[object, ...], Call] = field(default_factory=dict)
    devices: dict[tuple[object, ...], DeviceCall] = field(default_factory=dict)
    libraries: set[str] = field(default_factory=set)

    def take(self, record: AnyRecord, tgid: int) -> None:
        match record:
            case Call(tgid=owner) if owner == tgid:
                key = (record.tid, record.library, record.symbol, record.ts_ns)
                self.calls[key] = record
            case DeviceCall(tgid=owner) if owner == tgid:
                self.devices[record.tid, record.device, record.what, record.ts_ns] = record
            case Library(tgid=owner) if owner == tgid:
                self.libraries.add(record.name)


def say(text: str) -> None:
    print(text, flush=True)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cuda", default="libcuda.so.1", metavar="FILE", help="the driver library")
    parser.add_argument("--nvrtc", metavar="FILE", help="NVRTC's library; looked for if not given")
    parser.add_argument(
        "--stand-in", action="store_true",
        help="--cuda is a stand-in for libcuda: no GPU is needed, and none is checked",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="keep the recording and log here"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The check; returns the exit code."""
    given = arguments(argv)
    if given.nvrtc is None and not given.stand_in:
        given.nvrtc = find_nvrtc()
    refusal = no_gpu(given) or bpf.refusal()
    if refusal is not None:
        print(f"error: cannot check here: {refusal}", file=sys.stderr)
        return NO_GPU
    if given.stand_in:
        say("A STAND-IN for libcuda: this shows that the script works, and nothing about a GPU.\n")
    with tempfile.TemporaryDirectory(prefix="ttft-gpu-") as scratch:
        folder: Path = given.out or Path(scratch)
        try:
            done, seen, answer = watched(given, folder)
        except TROUBLE as error:
            print(f"error: the check could not be run: {error}", file=sys.stderr)
            return NO_GPU
    return report(done, seen, answer, given.stand_in)


def no_gpu(given: argparse.Namespace) -> str | None:
    """Why there is no GPU to check; None where there is one. In a process of its own."""
    asked = [*command(given), "--probe"]
    try:
        probe = subprocess.run(asked, capture_output=True, text=True, timeout=PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the driver did not answer within {PROBE_S:.0f} s"
    if probe.returncode == 0:
        return None
    why = probe.stderr.strip().splitlines() or [f"the probe ended with {probe.returncode}"]
    return f"no NVIDIA GPU: {why[-1]}"


def find_nvrtc() -> str | None:
    """A file that can be loaded; None where NVRTC is not installed."""
    wheels = [str(Path(p) / "nvidia") for p in sys.path]
    found = [str(p) for w in wheels for p in sorted(Path(w).glob("*/lib/libnvrtc.so.1*"))]
    found += [f"{folder}/{name}" for folder in NVRTC_FOLDERS for name in NVRTC]
    for name in (*NVRTC, *found):
        code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
        tried = subprocess.run(
            [sys.executable, "-c", code, name], capture_output=True, check=False, timeout=PROBE_S
        )
        if tried.returncode == 0:
            return name
    return None


def command(given: argparse.Namespace) -> list[str]:
    """The program with its libraries."""
    more = ["--stand-in"] if given.stand_in else []
    more += ["--nvrtc", given.nvrtc] if given.nvrtc else []
    return [sys.executable, str(WORK), "--cuda", given.cuda, *more]


def watched(given: argparse.Namespace, folder: Path) -> tuple[Json, Seen, Json]:
    """What was done, what was seen, and how the request was explained."""
    folder.mkdir(parents=True, exist_ok=True)
    port, records = llama.free_port(), folder / "records.ndjson"
    config = CONFIG.format(name=NAME, port=port)
    with Ttftd(folder / "ttftd", config) as daemon, daemon.recording(records):
        with working(given, port) as process:
            daemon.wait_server(port)
            wanted = {"cuda", *(["nvrtc"] if given.nvrtc else [])}
            wait_for(lambda: wanted <= read(records, process.pid).libraries, SEEN_S, "the probes")
            reply = ask(process, port)
            (answer,) = daemon.explained([reply], SEEN_S)
            told, _ = process.communicate(timeout=WORK_S)
        detail = daemon.get(f"/v1/requests/{answer['id']}")
    return json.loads(told), read(records, process.pid), detail


@contextmanager
def working(given: argparse.Namespace, port: int) -> Iterator[subprocess.Popen[str]]:
    """The program, waiting for its request; `communicate` ends it."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*command(given), "--port", str(port)], text=True, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(process: subprocess.Popen[str], port: int) -> llama.Reply:
    """The request in which the work is done; RuntimeError where it failed."""
    try:
        with llama.Client("127.0.0.1", port, keep_alive=False) as client:
            return client.post("/v1/chat/completions", llama.chat_body(NAME, "work"))
    except (OSError, http.client.HTTPException):
        _, wrong = process.communicate(timeout=WORK_S)
        raise RuntimeError(f"the CUDA program failed: {wrong.strip()}") from None


def read(records: Path, tgid: int) -> Seen:
    """What a recording, that may still grow, holds of a process."""
    decoder, seen = msgspec.json.Decoder(AnyRecord), Seen()
    for line in records.read_bytes().split(b"\n")[1:]:
        try:
            seen.take(decoder.decode(line), tgid)
        except msgspec.MsgspecError:  # half a line, or the last one, with the count
            continue
    return seen


def compared(done: dict[str, list[int]], seen: Seen) -> Iterator[Row]:
    """A row for each function of the catalogue that was called, or seen though it was not."""
    known = {
        row.symbol: row for row in Catalogue(shipped()).rows if row.library in ("cuda", "nvrtc")
    }
    found: dict[str, list[int]] = {}
    for call in seen.calls.values():
        if call.library in ("cuda", "nvrtc"):
            sums = found.setdefault(call.symbol, [0, 0])
            sums[0] += call.count
            sums[1] += call.bytes or 0
    for symbol in dict.fromkeys([*(s for s in done if s in known), *found]):
        with_bytes = known[symbol].unit == "bytes"
        count, size = done.get(symbol, [0, 0])
        wanted = (count, size if with_bytes else 0)
        got = tuple(found.get(symbol, [0, 0]))
        yield Row(symbol, _figures(*wanted), _figures(*got), got == wanted)
    spins = done.get("cuLaunchKernel", [0, 0])[0]
    yield Row("cuLaunchKernel", _figures(spins, 0), "not probed, on purpose", None)


def _figures(count: int, size: int) -> str:
    return f"{count} x, {size:,} bytes" if size else f"{count} x"


def classes(seen: Seen, stand_in: bool) -> Iterator[Row]:
    """A row for each class of driver calls on each device; a missing class is a miss."""
    sums: dict[tuple[str, str], list[int]] = {}
    for call in seen.devices.values():
        counts = sums.setdefault((call.device, call.what), [0, 0, 0])
        for n, value in enumerate((call.count, call.bytes or 0, call.busy_ns)):
            counts[n] += value
    for (device, what), (count, size, busy) in sorted(sums.items()):
        yield Row(f"{device}: {what}", "", f"{_figures(count, size)}, {busy / 1e6:.1f} ms", None)
    for what in () if stand_in else CLASSES:
        of_class = sum(counts[0] for (_, w), counts in sums.items() if w == what)
        yield Row(f"any device: {what}", "1 x or more", f"{of_class} x", of_class > 0)
    unknown = sorted(
        {hex(c.number) for c in seen.devices.values() if c.what == "other" and c.number}
    )
    if unknown:
        yield Row("not in the table (last of each run)", "", " ".join(unknown), None)


def report(done: Json, seen: Seen, answer: Json, stand_in: bool) -> int:
    """Prints the tables; the exit code."""
    rows = list(compared(done["calls"], seen))
    drivers = list(classes(seen, stand_in))
    say(f"device: {done['device'] or 'unnamed'}")
    for title, part in (("calls into libraries", rows), ("calls into the driver", drivers)):
        say(f"\n{title}")
        for line in table(part) if part else ["  none seen, and none asked for"]:
            say(line)
    say("\nthe request, as it was explained")
    say(f"  phases_ms {used(answer['phases_ms'])}")
    say(f"  stages_ms {used(answer['stages_ms'])}")
    say(f"  transfer  {answer['evidence_detail'].get('transfer')}")
    wrong = [row for row in (*rows, *drivers) if row.ok is False]
    say(f"\n{len(wrong)} MISSED" if wrong else "\nall was seen")
    return MISSED if wrong else 0


def used(spent: dict[str, float]) -> str:
    return json.dumps({name: round(ms, 3) for name, ms in spent.items() if ms})


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines under each other."""
    words = {True: "ok", False: "MISSED", None: ""}
    cells = [("what", "done", "seen", ""), *((r.what, r.done, r.seen, words[r.ok]) for r in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(4)]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield f"  {'  '.join(padded)}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
