"""In a guest: one workload under each way to see calls and faults gives the same records.

Times are compared for sense only; how long the groups take to come and go is left in
$OUT/variants.json.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.bpf.watching import key_of, latest
from tests.vm.guest import facts_calls, facts_files
from tests.vm.guest.facts_files import MIB, PAGE, Worker, make_file
from tests.workloads.waiting import wait_for
from tracer.errors import KernelError
from tracer.kernel.loader import Kernel
from tracer.kernel.probes import PROBES
from tracer.kernel.wire import RawFile, RawMagic
from tracer.records import Exit, Fork, Insert, Open, Span

VARIANTS = ("tracepoint", "fentry")
GROUPS = ("files", "faults", "minor")
#: (work, whether its file is in the page cache before)
WORKS: tuple[tuple[Callable[[Path], dict[str, int]], bool], ...] = (
    (facts_files.reads, True), (facts_files.whole, False), (facts_files.direct, False),
    (facts_calls.opens, True), (facts_calls.short_reads, True), (facts_files.populate, False),
    (facts_calls.private, True), (facts_files.touch, False), (facts_calls.touch_cached, True),
    (facts_calls.threads, True), (facts_calls.child, True),
)  # fmt: skip
_SIZE = 4 * MIB + 3 * PAGE
_WAIT_S = 60.0
_ATTEMPTS = 8
#: Counted by a worker, but of the interpreter too, or different each time.
_OWN_AFFAIR = ("child", "minor")
#: Told again when the memory map is not locked, or programs that were left out: seen by `missed`.
_MAY_BE_LOST = {"span.lookup", "span.half", *(probe.program for probe in PROBES)}
Facts = dict[str, Any]


def watch(kernel: Kernel, worker: Worker) -> tuple[dict[str, int], list[Any]]:
    """Let it work; what it counted itself, and all records until it ended."""
    kernel.drain()
    kernel.watch(worker.pid)
    kernel.probes.cover("minor", worker.pid)
    said = worker.go()
    worker.end()
    found: list[Any] = []

    def ended() -> bool:
        found.extend(kernel.drain())
        return any(isinstance(raw, Exit) and raw.tgid == worker.pid for raw in found)

    wait_for(ended, _WAIT_S, "the end of the worker")
    return said, latest([*found, *kernel.sweep(time.monotonic_ns())])


def facts_of(kernel: Kernel, path: Path, worker: Worker) -> tuple[Facts, list[str]]:
    """What was recorded about the file, processes by their role; and what cannot be."""
    began_ns = time.monotonic_ns()
    said, records = watch(kernel, worker)
    own = [r for r in records if (getattr(r, "dev", 0), getattr(r, "ino", 0)) == key_of(path)]
    spans = [r for r in own if isinstance(r, Span)]
    opens = [r for r in own if isinstance(r, Open)]
    roles = {worker.pid: "worker"} | {r.child: "child" for r in records if isinstance(r, Fork)}
    totals = {
        f"{roles[tgid]} {op}": [total.count, total.bytes]
        for (tgid, dev, ino, op), total in kernel.totals().items()
        if (dev, ino) == key_of(path) and tgid in roles
    }
    tokens = {r.token for r in opens}
    maps = [[s.count, s.bytes, s.populate] for s in spans if s.op == "mmap"]
    facts = {
        "said": {k: v for k, v in said.items() if k not in _OWN_AFFAIR},
        "totals": dict(sorted(totals.items())),
        "threads": sorted(_by_thread(spans).values()),
        "opens": [len(opens), len(tokens)],
        "files": [[r.size, r.name == str(path)] for r in own if isinstance(r, RawFile)],
        "magic": [r.data.hex() for r in own if isinstance(r, RawMagic)],
        "maps": sorted(maps),
        "advice": sorted({(s.advice or 0) for s in spans if s.op == "madvise"}),
        "one_open_each": {s.token for s in spans if s.op != "fault_minor"} <= tokens,
        "inserted": sum(r.pages for r in own if isinstance(r, Insert)),
    }
    return facts, _senseless(spans, began_ns)


def _by_thread(spans: list[Span]) -> dict[tuple[int, str], list[Any]]:
    found: dict[tuple[int, str], list[Any]] = {}
    for span in spans:
        count = found.setdefault((span.tid, span.op), [span.op, 0, 0])
        count[1] += span.count
        count[2] += span.bytes
    return found


def _senseless(spans: list[Span], began_ns: int) -> list[str]:
    """Spans whose times cannot be."""
    now_ns = time.monotonic_ns()
    return [
        str(s)
        for s in spans
        if not (began_ns <= s.ts_ns < s.end_ns <= now_ns and 0 < s.busy_ns <= s.end_ns - s.ts_ns)
    ]


def missed(kernel: Kernel) -> int:
    """Runs that the kernel left out: it was preempted within the same program. It counts them."""
    return sum(stats.missed or 0 for stats in kernel.run_stats())


def come_and_go(kernel: Kernel, group: str) -> tuple[int, int, int]:
    """How long it takes to attach a group, to detach it, and until it is off, ns."""
    kernel.detach(group)
    kernel.probes.settle()
    attach_ns = kernel.attach(group)
    began_ns = time.monotonic_ns()
    detach_ns = kernel.detach(group)
    kernel.probes.settle()
    return attach_ns, detach_ns, time.monotonic_ns() - began_ns


def observe(variant: str, folder: Path) -> tuple[Facts, list[str], Facts]:
    """All works; facts by work, what makes no sense, and how long the groups take, ms."""
    facts: Facts = {}
    wrong, took = [], {}
    with Kernel.open(variant=variant, off=("sockets",)) as kernel:
        for group in GROUPS:
            took[group] = [round(ns / 1e6, 2) for ns in come_and_go(kernel, group)]
            kernel.attach(group)
        for work, cached in WORKS:
            for attempt in range(_ATTEMPTS):
                # Kept: an inode that is used again would not be seen for the first time.
                path = make_file(folder / f"{variant}-{work.__name__}-{attempt}", _SIZE)
                if cached:
                    path.read_bytes()
                before, halves = missed(kernel), kernel.lost().get("span.half", 0)
                found, senseless = facts_of(kernel, path, Worker(partial(work, path)))
                if missed(kernel) == before:
                    break
                print(f"{variant}, {work.__name__}: programs were left out, once more")
            else:
                halves = kernel.lost().get("span.half", 0) - halves
                if halves:  # what is missing is told; whether all the rest is equal cannot be
                    print(f"{variant}, {work.__name__}: {halves} halves of calls lost, and told")
                    found = None
            facts[work.__name__] = found
            wrong += [f"{variant}, {work.__name__}: {span}" for span in senseless]
        wrong += [f"{variant}: lost {kind}" for kind in kernel.lost().keys() - _MAY_BE_LOST]
        facts["chosen"] = {n: c.variant for n, c in kernel.probes.selection.choices.items()}
    return facts, wrong, took


def main() -> int:
    found, took, wrong = {}, {}, []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for variant in VARIANTS:
            try:
                found[variant], senseless, took[variant] = observe(variant, Path(folder))
            except KernelError as error:
                print(f"{variant}: {error.message}")
                continue
            wrong += senseless
            chosen = found[variant].pop("chosen")
            print(f"{variant}: {chosen}, ms to attach, to detach, till off: {took[variant]}")
    first = found[VARIANTS[0]]
    for variant, facts in found.items():
        for work, expected in first.items():
            if facts[work] != expected and None not in (facts[work], expected):
                wrong.append(f"{work}: {VARIANTS[0]} {expected}\n  {variant} {facts[work]}")
    if out := os.environ.get("OUT"):
        kept = {"facts": first, "variants": list(found), "attach_detach_off_ms": took}
        Path(out, "variants.json").write_text(json.dumps(kept, indent=1) + "\n")
    print("\n".join(wrong) or f"{len(first)} works, equal by {' and '.join(found)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
