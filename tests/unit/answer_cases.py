"""Hand-built requests for the tests of history, answers and interface."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tracer.derived import PHASES, Derived, Facts, Interval, Phases, Spike, Timeline
from tracer.evidence import Evidence, Exchange, Life, Other
from tracer.records import Command, Conn, File, Insert, Open, Resident, Says, Signal, Span, Warm

MS = 1_000_000
ARRIVAL = 5_000_000_000_000
WALL_OFFSET = 1_769_860_800_123_000_000 - ARRIVAL
"""So that the first request arrives at 2026-01-31T12:00:00.123Z."""

FRONT, OLD, RUNNER = 100, 101, 102
BETA = "/srv/models/beta.gguf"
BETA_SIZE = 253_113_024

STAGES: tuple[tuple[str, int, int], ...] = (
    ("queue.socket", 0, 200_000),
    ("evict.stop", 200_000, 50 * MS),
    ("evict.wait", 50 * MS, 59 * MS),
    ("spawn.exec", 59 * MS, 100 * MS),
    ("spawn.fit", 100 * MS, 325 * MS),
    ("load.meta", 325 * MS, 535 * MS),
    ("load.disk", 535 * MS, 1435 * MS),
    ("init.context", 1435 * MS, 1705 * MS),
    ("prefill.tokenize", 1705 * MS, 1710 * MS),
    ("prefill.prompt", 1710 * MS, 1912 * MS + 400_001),
)


def conn(port: int = 8080, client: int = 40_000) -> Conn:
    return Conn(0, "127.0.0.1", port, "127.0.0.1", client)


def phases(stages: tuple[tuple[str, int, int], ...], at: int) -> Phases:
    """Sums and intervals of stages given relative to arrival."""
    intervals = tuple(
        Interval(stage=stage, start_ns=at + start, end_ns=at + end, tgid=RUNNER, tid=RUNNER)
        for stage, start, end in stages
    )
    stages_ns: dict[str, int] = {}
    phases_ns: dict[str, int] = dict.fromkeys(PHASES, 0)
    for stage, start, end in stages:
        stages_ns[stage] = stages_ns.get(stage, 0) + end - start
        phases_ns[stage.split(".")[0]] += end - start
    return Phases(
        intervals=intervals,
        phases_ns=phases_ns,
        stages_ns=stages_ns,
        overlaps_ns={"transfer+load": 120 * MS},
    )


def evidence(number: int, at: int) -> Evidence:
    """A switch from alpha to beta on a router."""
    request = Exchange(
        xid=number * 2,
        conn=conn(),
        endpoint="/v1/chat/completions",
        arrival_ns=at,
        server_tgid=FRONT,
        body_ns=at + 100_000,
        read_ns=at + 200_000,
        head_ns=at + 1900 * MS,
        first_token_ns=at + 1912 * MS + 400_001,
        first_token_what="text",
        second_token_ns=at + 1926 * MS,
        end_ns=at + 2012 * MS,
        why="complete",
        status=200,
        stream=True,
        event_stream=True,
        model="beta",
        prompt_bytes=103,
        response_bytes=4096,
        tokens=8,
        says=Says(prompt_ms=201.6, prompt_n=26, cache_n=0),
    )
    hop = Exchange(
        xid=number * 2 + 1,
        conn=conn(43_210, 40_001),
        endpoint="/v1/chat/completions",
        arrival_ns=at + 1705 * MS,
        server_tgid=RUNNER,
        client_tgid=FRONT,
        status=200,
        why="complete",
        end_ns=at + 2011 * MS,
    )
    term = Signal(ts_ns=at + 300_000, target=OLD, signal=15, sender=FRONT)
    return Evidence(
        id=number,
        server="llama-server:8080",
        program="llama-server",
        front=FRONT,
        request=request,
        began_ns=at - 60_000 * MS,
        wall_offset_ns=WALL_OFFSET,
        hop=hop,
        runner=RUNNER,
        lives=(
            Life(tgid=FRONT, ppid=1, comm="llama-server", start_ns=at - 90_000 * MS),
            Life(
                tgid=OLD,
                ppid=FRONT,
                comm="llama-server",
                exit_ns=at + 50 * MS,
                exit_signal=15,
                signals=(term,),
            ),
            Life(
                tgid=RUNNER,
                ppid=FRONT,
                comm="llama-server",
                command=Command(program="llama-server", role="runner", model="beta"),
                fork_ns=at + 59 * MS,
                exec_ns=at + 60 * MS,
                listen_ns=at + 100 * MS,
            ),
        ),
        files=(
            File(
                ts_ns=at,
                dev=8,
                ino=77,
                size=BETA_SIZE,
                path=BETA,
                fmt="gguf",
                fs="ext4",
                device="sda1",
            ),
        ),
        opens=(Open(ts_ns=at + 325 * MS, tgid=RUNNER, tid=RUNNER, dev=8, ino=77, token=1),),
        spans=tuple(
            Span(
                ts_ns=at + (535 + 450 * part) * MS,
                end_ns=at + (985 + 450 * part) * MS,
                tgid=RUNNER,
                tid=RUNNER,
                dev=8,
                ino=77,
                token=1,
                op="read",
                count=100,
                bytes=126_556_512,
                busy_ns=400 * MS,
            )
            for part in range(2)
        ),
        inserts=(
            Insert(
                ts_ns=at + 535 * MS,
                end_ns=at + 1435 * MS,
                dev=8,
                ino=77,
                pages=61_796,
                tgid=RUNNER,
            ),
        ),
        resident=(Resident(ts_ns=at, dev=8, ino=77, cached_bytes=0),),
        others=(Other(xid=1, arrival_ns=at - 5000 * MS, id=number - 1, model="alpha", status=200),),
        previous_model="alpha",
        resident_before=False,
    )


def spike(number: int = 17, at: int = ARRIVAL) -> Derived:
    """A cold switch, explained."""
    kept = evidence(number, at)
    return Derived(
        evidence=kept,
        model="beta",
        kind="chat/stream",
        outcome="ok",
        died_in=None,
        ttft_ns=1912 * MS + 400_001,
        window_ns=1912 * MS + 400_001,
        first_decode_ns=13 * MS + 599_999,
        first_answer_ns=None,
        prompt_tokens=26,
        cached_tokens=0,
        tokens=8,
        timeline=Timeline(
            start_ns=at,
            end_ns=at + 1912 * MS + 400_001,
            claims=(),
            prompt_start_ns=at + 1710 * MS,
            triggered_by=number,
            waited_for=(),
            retry_of=(),
            engine_seen=True,
        ),
        phases=phases(STAGES, at),
        facts=Facts(
            weights=(BETA,),
            weights_bytes=BETA_SIZE,
            weights_bytes_from_disk=253_116_416,
            major_faults=0,
            minor_faults=2062,
            gpu_calls=None,
            processes_started=1,
            processes_exited=1,
            reclaim_ns=None,
            resident_before=False,
            switched_from="alpha",
        ),
        spike=Spike(
            is_spike=True,
            typical_ns=31 * MS,
            first_expanded="spawn",
            dominant="load",
            cause="load.disk",
            why=(),
            because="253 MB of beta.gguf came from disk at 281 MB/s after the switch from alpha.",
            advice="Keep both models resident (--models-max 2), or keep the file in the page "
            "cache.",
            switch_is_cause=True,
            confidence=0.97,
        ),
        warm=False,
        complete=True,
        incomplete_because=None,
    )


def warm(number: int, at: int = ARRIVAL, ttft_ns: int = 31 * MS, **changes: Any) -> Derived:
    """A request as they mostly are."""
    whole = spike(number, at)
    stages = (("queue.socket", 0, 200_000), ("prefill.prompt", 200_000, ttft_ns))
    quiet = replace(
        whole,
        ttft_ns=ttft_ns,
        window_ns=ttft_ns,
        phases=replace(phases(stages, at), overlaps_ns={}),
        timeline=replace(whole.timeline, end_ns=at + ttft_ns, prompt_start_ns=at + 200_000),
        facts=replace(whole.facts, weights_bytes=0, weights_bytes_from_disk=0, switched_from=None),
        spike=Spike(is_spike=False, typical_ns=31 * MS),
        warm=True,
    )
    return replace(quiet, **changes)


def warm_record(item: Derived) -> Warm:
    """The record of the baseline for a warm request."""
    assert item.model is not None and item.ttft_ns is not None
    return Warm(
        ts_ns=item.evidence.request.arrival_ns,
        server=item.evidence.server,
        model=item.model,
        kind=item.kind,
        ttft_ns=item.ttft_ns,
        prompt_tokens=item.prompt_tokens,
        phases_ns=dict(item.phases.phases_ns),
    )
