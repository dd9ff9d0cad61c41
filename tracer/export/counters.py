"""Counters of a trace: weight bytes per second, page cache share, memory, clocks of devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from tracer.export.shared import FileKey, Shared
from tracer.export.tracks import Trace
from tracer.records import Span, Telemetry

PAGE = 4096
MIN_RUN_NS = 1_000_000  # a shorter run is drawn as if it took this long, not as a needle
PIECE_NS = 500_000_000  # a piece that came so long before the next did not take that long
Run = tuple[int, int, int]  # start, end, bytes


def of_weights(trace: Trace, shared: Shared, pid: int) -> None:
    """Counters of weight files on process `pid`: bytes per second, share in the page cache."""
    inserted: defaultdict[FileKey, list[Run]] = defaultdict(list)
    for put in shared.inserts:
        if shared.is_weights(put.dev, put.ino):
            inserted[put.dev, put.ino].append((put.ts_ns, put.end_ns, put.pages * PAGE))
    taken = [
        (one.ts_ns, one.end_ns, one.bytes)
        for one in shared.spans
        if shared.is_weights(one.dev, one.ino) and _brings_bytes(one)
    ]
    _rate(trace, pid, "from disk", [run for runs in inserted.values() for run in _paced(runs)])
    _rate(trace, pid, "into the process", taken)
    _cache_share(trace, shared, pid)


def of_memory(trace: Trace, shared: Shared, tgids: Collection[int]) -> None:
    """Resident memory of each real process that has tracks."""
    for one in shared.memory:
        if one.tgid in tgids:
            trace.counter(one.ts_ns, "resident memory", one.tgid, {"bytes": one.rss_bytes})
    last_ns = {one.tgid: one.ts_ns for one in shared.memory if one.tgid in tgids}
    for tgid, seen_ns in last_ns.items():
        ends = [life.exit_ns for life in shared.lives.get(tgid, ()) if life.exit_ns is not None]
        for end_ns in [ns for ns in ends if ns >= seen_ns][:1]:
            trace.counter(end_ns, "resident memory", tgid, {"bytes": 0})


def of_devices(trace: Trace, shared: Shared, tgids: Collection[int], sort: int) -> None:
    """Each device that was read, as a process of its own; its memory with who had it, too."""
    by_device: defaultdict[str, list[Telemetry]] = defaultdict(list)
    for one in shared.telemetry:
        by_device[one.device].append(one)
    for n, (device, readings) in enumerate(sorted(by_device.items())):
        name = readings[-1].name or readings[-1].source
        pid = trace.process(f"device {name} ({device})", sort + n)
        for one in readings:
            _reading(trace, one, pid)
    for one in shared.telemetry:
        for holder in one.holders:
            if holder.tgid in tgids and holder.memory_bytes is not None:
                trace.counter(
                    one.ts_ns, f"memory of {one.device}", holder.tgid,
                    {"bytes": holder.memory_bytes},
                )  # fmt: skip


def _reading(trace: Trace, one: Telemetry, pid: int) -> None:
    """What is known of it; a counter has no value for what is not."""
    told: dict[str, dict[str, int | None]] = {
        "clock in MHz": {"compute": one.clock_mhz, "memory": one.memory_clock_mhz},
        "memory used": {"bytes": one.memory_used_bytes},
        "busy percent": {"percent": one.busy_percent},
        "PCIe bytes per second": {"to the device": one.pcie_rx_rate, "from it": one.pcie_tx_rate},
    }
    for name, values in told.items():
        for key, value in values.items():
            if value is not None:
                trace.counter(one.ts_ns, name, pid, {key: value})


def _brings_bytes(span: Span) -> bool:
    """Reads, faults, and a mapping that is populated at once."""
    return span.op in ("read", "read_direct", "fault_minor", "fault_major") or (
        span.op == "mmap" and span.populate
    )


def _paced(runs: Iterable[Run]) -> Iterator[Run]:
    """Pieces of a file, each until the next came: readahead makes room for many pages at once, in
    which the disk then brings them. The last takes what the one before it took."""
    ordered = sorted(runs)
    paced = 0
    for n, (start, end, size) in enumerate(ordered):
        if n + 1 < len(ordered):
            paced = min(ordered[n + 1][0] - start, PIECE_NS)
        yield start, max(end, start + paced), size


def _rate(trace: Trace, pid: int, label: str, runs: Iterable[Run]) -> None:
    """A step function of bytes per second; each run is spread evenly over its time."""
    change: defaultdict[int, int] = defaultdict(int)
    for start, end, size in runs:
        length = max(end - start, MIN_RUN_NS)
        rate = size * 1_000_000_000 // length
        change[start] += rate
        change[start + length] -= rate
    level = 0
    for ns in sorted(change):
        if change[ns]:
            level += change[ns]
            trace.counter(ns, "weight bytes per second", pid, {label: level})


def _cache_share(trace: Trace, shared: Shared, pid: int) -> None:
    """Percent of each weight file that is in the page cache."""
    labels = _labels(shared)
    for one in shared.resident:
        file = shared.files.get((one.dev, one.ino))
        if file is None or file.size <= 0 or file.fmt is None:
            continue
        share = round(100 * min(one.cached_bytes, file.size) / file.size, 3)
        trace.counter(one.ts_ns, "page cache percent", pid, {labels[one.dev, one.ino]: share})


def _labels(shared: Shared) -> dict[tuple[int, int], str]:
    """File names, with the inode where two share a name."""
    names = [shared.label(*key) for key in shared.files]
    return {
        key: name if names.count(name) == 1 else f"{name} ({key[0]}, {key[1]})"
        for key, name in zip(shared.files, names, strict=True)
    }
