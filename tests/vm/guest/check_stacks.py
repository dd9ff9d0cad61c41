"""In a guest: code that a watched process runs is sampled, and nobody else's.

What was found is left in $OUT/stacks.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tracer.kernel.loader import Kernel
from tracer.kernel.probes import PROBES, SAMPLER
from tracer.records import Conn, HttpBody, HttpEnd, HttpRequest, Samples
from tracer.stacks.watch import StackWatch
from tracer.stacks.when import When

OTHERS = sorted({probe.group for probe in PROBES} - {"stacks", "lifecycle"})
CONN = Conn(0, "127.0.0.1", 8080, "127.0.0.1", 40000)
SPENDS_S = 2.0
WORK = f"""
import time
end = time.process_time() + {SPENDS_S}
while time.process_time() < end:
    pass
print(time.process_time())
"""


def spinner() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE)


def sample(kernel: Kernel) -> tuple[int, float, list[Samples], list[str]]:
    """A watched process, which says what it spent, and a stranger; what was found of whom."""
    said: list[str] = []
    watch = StackWatch(kernel, When(), said.append)
    found: list[Samples] = []
    now = time.monotonic_ns()
    asked = HttpRequest(ts_ns=now, xid=1, conn=CONN, method="POST", endpoint="/v1/completions")
    watch.note([asked, HttpBody(ts_ns=now, xid=1, bytes=1)])
    mine, other = spinner(), spinner()
    kernel.watch(mine.pid)
    while mine.poll() is None or other.poll() is None:
        found += [r for r in watch.collect(time.monotonic_ns()) if isinstance(r, Samples)]
        kernel.drain()
        time.sleep(0.1)
    watch.note([HttpEnd(ts_ns=time.monotonic_ns(), xid=1, why="client_gone")])
    found += [r for r in watch.collect(time.monotonic_ns()) if isinstance(r, Samples)]
    watch.close()
    spent_s = float(mine.communicate()[0])
    other.communicate()
    return mine.pid, spent_s, found, said


def main() -> int:
    """Exit code 1 where the facts are wrong; a kernel without the program says so."""
    with Kernel.open(off=OTHERS) as kernel:
        lacking = kernel.probes.missing.get(SAMPLER)
        pid, own_s, found, said = sample(kernel) if lacking is None else (0, 0.0, [], [lacking])
    counted: Counter[str] = Counter()
    for samples in found:
        for count, module, *_ in samples.stacks:
            counted[samples.modules[module].rpartition("/")[2]] += count
    spent_s = sum(s[0] * samples.period_ns for samples in found for s in samples.stacks) / 1e9
    result = {
        "lacking": lacking, "said": said, "modules": counted, "own_s": own_s, "spent_s": spent_s,
    }  # fmt: skip
    Path(os.environ["OUT"], "stacks.json").write_text(json.dumps(result))
    print(json.dumps(result))
    if {samples.tgid for samples in found} - {pid}:
        print("a stranger was sampled")
        return 1
    # An emulated processor may lose ticks.
    if lacking is not None or said or not 0.6 * own_s < spent_s < 1.3 * own_s:
        print("not what was spent")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
