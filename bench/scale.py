"""Nothing lost under load, and a long history answered quickly."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.common import Plan, Row, limit_row, median_s, pss_mb, say, watching
from bench.footprint import cpu_percent, spikes
from tests.unit import answer_cases
from tests.workloads.fileio import FileIo, compiled, make_file
from tests.workloads.stub_clients import Seen, call, streams
from tests.workloads.stub_server import StubServer
from tests.workloads.ttftd import Json, Ttftd
from tests.workloads.waiting import wait_for
from tracer.recording import Recording
from tracer.records import AnyRecord, Span
from tracer.store import Store, bulk

STUB = '[[server]]\nname = "stub"\ncommand = "tests.workloads.stub_server"\n'
CLIENTS = 200
CHUNKS = 20
READS_PER_S = 100_000
READ_SIZE = 4096
HISTORY = 1_000_000
LONG_HISTORY = "[history]\nmax_age_days = 100000\nmax_mb = 1000000\n"


def run(plan: Plan) -> Iterator[Row]:
    """Streams, reads, history."""
    yield from _streams(plan)
    yield from _reads(plan)
    yield from _history(plan)


# --- 200 streaming clients ------------------------------------------------------------


def _streams(plan: Plan) -> list[Row]:
    rounds = plan.times(5, 50)
    say(f"{CLIENTS} streaming clients, {rounds} rounds")
    with StubServer(chunks=CHUNKS, delay_ms=2) as stub, watching(plan, stub.port, STUB) as daemon:
        seen: list[Seen] = []

        def work() -> None:
            for _ in range(rounds):
                seen.extend(asyncio.run(streams("127.0.0.1", stub.port, CLIENTS, call("stub"))))

        with _peak_memory(daemon.pid) as peak:
            share = cpu_percent(daemon.pid, work)
            told = _told(daemon, min(one.sent_ns for one in seen), len(seen))
        lost = daemon.get("/v1/status")["lost"]
    missing = len(seen) - len(told)
    odd = sum(not _whole(item) for item in told)
    off = [
        abs(item["ttft_ms"] - (one.first_ns - one.sent_ns) / 1e6)
        for item, one in zip(told, sorted(seen, key=lambda one: one.sent_ns), strict=False)
        if item["ttft_ms"] is not None
    ]
    worst = f"; lost {lost}" if lost else ""
    return [
        Row(
            f"{CLIENTS} streaming clients: lost of {len(seen):,}",
            f"{missing} requests, {odd} with marks missing{worst}",
            "0",
            missing == odd == sum(lost.values()) == 0,
            {
                "missing": missing,
                "odd": odd,
                "lost": lost,
                "requests": len(seen),
                "ttft_off_ms_median": statistics.median(off) if off else None,
            },
        ),
        limit_row("daemon memory (PSS), under load", peak.value, 55, "MB"),
        Row(f"daemon CPU, {CLIENTS} streams", f"{share:.1f} % of a core", data={"percent": share}),
    ]


def _whole(item: Json) -> bool:
    """Whether first token, second token and every chunk of a stream were seen."""
    return None not in (item["ttft_ms"], item["first_decode_ms"]) and item["tokens"] == CHUNKS


def _told(daemon: Ttftd, since_ns: int, wanted: int) -> list[Json]:
    """What the daemon knows of requests since then, once it knows all or nothing more comes."""
    told: list[Json] = []

    def all_told() -> bool:
        told[:] = [
            item
            for item in daemon.requests()
            if item["model"] == "stub"
            and item["outcome"] != "open"
            and item["at_ns"]["arrival"] >= since_ns
        ]
        return len(told) >= wanted

    with contextlib.suppress(TimeoutError):
        wait_for(all_told, 15, "the last streams to be explained", 0.2)
    return sorted(told, key=lambda item: int(item["at_ns"]["arrival"]))


@dataclass
class _Peak:
    value: float = 0.0
    over: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def _peak_memory(pid: int) -> Iterator[_Peak]:
    """The most PSS a process had while the block ran, looked at five times a second."""
    peak = _Peak()

    def look() -> None:
        while True:
            peak.value = max(peak.value, pss_mb(pid))
            if peak.over.wait(0.2):
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        peak.over.set()
        thread.join()


# --- 100,000 reads a second -----------------------------------------------------------


def _reads(plan: Plan) -> list[Row]:
    """A watched process reads as fast as it can; every read must be in the records."""
    count = plan.times(1_000_000, 10_000_000, 200_000)
    say(f"{count:,} reads")
    binary = compiled(plan.out)
    file = make_file(plan.out / "storm.gguf", 2 << 20)
    config = f'[[server]]\nname = "storm"\nexe = "{binary.resolve()}"\n'
    recording = plan.out / "storm.ttft"
    with (
        FileIo(binary, "storm", count, READ_SIZE, [file]) as storm,
        Ttftd(plan.out / "ttftd", config) as daemon,
    ):
        with daemon.recording(recording):
            taken = storm.go()["ns"]
            storm.end()
            # its last spans come with its exit
            wait_for(lambda: _has_exit(recording, storm.pid), 15, "the reader's exit recorded")
        lost = sum(daemon.get("/v1/status")["lost"].values())
    found = _reads_in(Recording(recording), storm.pid)
    rate = count / (taken / 1e9)
    return [
        Row(
            f"{rate:,.0f} traced reads a second: lost of {count:,}",
            f"{count - found:,} reads, {lost} records",
            "0",
            found == count and lost == 0 and rate >= READS_PER_S,
            {"reads": count, "found": found, "lost": lost, "rate": rate},
        ),
    ]


def _has_exit(recording: Path, tgid: int) -> bool:
    ends = (line for line in recording.read_bytes().splitlines() if b'"t":"exit"' in line)
    return any(b'"tgid":%d,' % tgid in line or b'"tgid":%d}' % tgid in line for line in ends)


def _reads_in(records: Iterable[AnyRecord], tgid: int) -> int:
    """Reads in the last version of every span of a process."""
    last: dict[tuple[int, int, int], int] = {}
    for record in records:
        if isinstance(record, Span) and record.tgid == tgid and record.op == "read":
            last[record.tid, record.ino, record.ts_ns] = record.count
    return sum(last.values())


# --- one million requests -------------------------------------------------------------


def _history(plan: Plan) -> list[Row]:
    """Written anew each time, and removed: it takes some gigabytes."""
    folder = plan.out / "million"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        count = plan.times(HISTORY, HISTORY, 10_000)
        _fill(folder / "state", count)
        say("`ttft spikes` on it")
        with Ttftd(folder, LONG_HISTORY) as daemon:
            taken = median_s(lambda: spikes(daemon), plan.times(10, 50))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [limit_row(f"{count:,} requests: `ttft spikes`", taken, 0.3, "s", 3)]


def _fill(state: Path, count: int) -> None:
    say(f"writing a history of {count:,} requests (a minute for a million)")
    state.mkdir(parents=True)
    store = Store(state / "history.db", max_age_days=100_000, max_mb=1_000_000, warn=say)
    bulk.fill(store, answer_cases.warm(1), count, answer_cases.spike(1))
    store.close()
