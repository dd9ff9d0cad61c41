"""In a guest: a daemon that may too little is told what is lost by it, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tracer.errors import KernelError
from tracer.kernel import features
from tracer.kernel.loader import Kernel

#: Capabilities of a service that is not root, without CAP_SYS_ADMIN.
_SERVICE = "+bpf,+perfmon,+net_admin,+sys_resource,+sys_ptrace,+dac_read_search"
_STRICT = {"kernel/perf_event_paranoid": "4", "kernel/unprivileged_bpf_disabled": "2"}


def _opened() -> None:
    """What the loader says here, as JSON."""
    try:
        with Kernel.open() as kernel:
            off = {g.group: g.off_because for g in kernel.groups() if not g.attached}
            print(json.dumps({"missing": kernel.probes.missing, "off": off}))
    except KernelError as error:
        print(json.dumps({"error": error.message, "hint": error.hint}))


def _under(*prefix: str) -> dict[str, Any]:
    command = [*prefix, sys.executable, __file__, "opened"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _write(values: dict[str, str]) -> dict[str, str]:
    """Set these of /proc/sys that can be set; what they were."""
    before = {}
    for name, value in values.items():
        path = Path("/proc/sys", name)
        if path.exists():
            before[name] = path.read_text().strip()
            path.write_text(value)
    return before


def _locked_memory(normal: dict[str, Any]) -> str | None:
    """Maps of old kernels are locked memory; later ones do not care."""
    drop = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")
    found = _under(*drop, "prlimit", "--memlock=65536:65536")
    if not features.detect().locks_maps:
        return None if found == normal else f"with little locked memory: {found}"
    told = "too little locked memory" in found.get("error", "") and "LimitMEMLOCK" in found["hint"]
    return None if told else f"too little locked memory is not told: {found}"


def _strict(normal: dict[str, Any]) -> list[str]:
    """The strictest settings do nothing to root; a service may lose its perf events."""
    before = _write(_STRICT)
    try:
        root = _under()
        service = _under("setpriv", f"--bounding-set=-all,{_SERVICE}", "--inh-caps=-all")
    finally:
        _write({k: v for k, v in before.items() if k != "kernel/unprivileged_bpf_disabled"})
    wrong = [] if root == normal else [f"root with strict settings: {root}"]
    lost = {n: w for n, w in service.get("missing", {}).items() if n not in normal["missing"]}
    if not all(w.startswith("perf events are refused") and "paranoid is 4" in w
               for w in lost.values()):  # fmt: skip
        wrong.append(f"a service with strict settings: {service}")
    if "error" in service or (lost and not service["off"].get("faults")):
        wrong.append(f"what a service loses is not told: {service}")
    return wrong


def main() -> int:
    """Writes what is wrong."""
    normal = _under()
    if "error" in normal:
        print(normal)
        return 1
    wrong = [*filter(None, [_locked_memory(normal)]), *_strict(normal)]
    print("\n".join(wrong) or "told as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["opened"]:
        _opened()
        sys.exit(0)
    os.chdir("/")
    sys.exit(main())
