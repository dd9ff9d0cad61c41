"""A million requests through one daemon, and a server restarted a thousand times: what it holds.

`make soak`, or `python -m bench.soak --requests 100000 --restarts 100`. The server is a stand-in
without a model. Prints a table as it goes, writes build/bench/soak.json; exit code 1 if anything
grew.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.workloads import bpf, soak
from tests.workloads.soak import Sample, Soak
from tests.workloads.stub_server import StubServer
from tests.workloads.ttftd import UNIT_NICE, Ttftd

REQUESTS, RESTARTS = 1_000_000, 1_000
STEPS = 50
HEAD = ("requests", "s", "memory", "descriptors", "threads", "map entries", "history", "lost")


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--restarts", type=int, default=RESTARTS)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    given = parser.parse_args()
    refusal = bpf.refusal()
    if refusal is not None:
        print(f"cannot soak here: {refusal}", file=sys.stderr)
        return 1
    folder: Path = given.out.resolve() / "soak"
    shutil.rmtree(folder, ignore_errors=True)
    found = {
        "requests": list(told(folder / "requests", requests=given.requests)),
        "restarts": list(told(folder / "restarts", restarts=given.restarts)),
    }
    wrong = {name: soak.faults(samples, len(samples) // 4) for name, samples in found.items()}
    result = {
        "schema": 1,
        "kernel": platform.release(),
        "samples": {name: [asdict(one) for one in samples] for name, samples in found.items()},
        "grew": wrong,
    }
    (given.out / "soak.json").write_text(json.dumps(result, indent=1) + "\n")
    for name, faults in wrong.items():
        print(f"{name}: {'; '.join(faults) or 'nothing grew'}")
    return 1 if any(wrong.values()) else 0


def told(folder: Path, *, requests: int = 0, restarts: int = 0) -> Iterator[Sample]:
    """Each look at a daemon of its own while it is asked, also as a line of a table."""
    print(line(HEAD), line(["-" * 11] * len(HEAD)), sep="\n", flush=True)
    ports = soak.Ports()
    with (
        StubServer(chunks=2, port=ports.stub) as stub,
        Ttftd(folder, ports.config, UNIT_NICE) as daemon,
    ):
        daemon.wait_server(stub.port)
        soaked = Soak(daemon, ports)
        for step in range(min(STEPS, max(requests, restarts))):
            if requests:
                sample = soaked.send(share(requests, step))
            else:
                sample = soaked.restart(share(restarts, step))
            print(line(cells(sample, restarts and (step + 1) * restarts // STEPS)), flush=True)
            yield sample


def share(count: int, step: int) -> int:
    """How many of `count` belong to this step."""
    return count * (step + 1) // STEPS - count * step // STEPS


def cells(sample: Sample, restarts: int) -> tuple[str, ...]:
    """One look as words."""
    lost = ", ".join(f"{count} {kind}" for kind, count in sample.lost.items())
    return (
        f"{restarts or sample.requests:,}",
        f"{sample.seconds:.0f}",
        f"{sample.pss_bytes / 1e6:.1f} MB",
        str(sample.descriptors),
        str(sample.threads),
        str(sum(sample.entries.values())),
        f"{sample.database_bytes / 1e6:.1f} MB",
        lost or "0",
    )


def line(words: object) -> str:
    """A line of the table, as Markdown."""
    assert isinstance(words, list | tuple)
    return f"| {' | '.join(word.rjust(11) for word in words)} |"


if __name__ == "__main__":
    sys.exit(main())
