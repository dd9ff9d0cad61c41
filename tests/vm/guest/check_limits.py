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
from tracer.kernel.modtypes import without_module_types
from tracer.kernel.probes import PROBES

#: Capabilities of a service that is not root, without CAP_SYS_ADMIN.
_SERVICE = "+bpf,+perfmon,+net_admin,+sys_resource,+sys_ptrace,+dac_read_search"
_REFUSED = "perf events are refused"
_STRICT = {"kernel/perf_event_paranoid": "4", "kernel/unprivileged_bpf_disabled": "2"}


def _opened() -> None:
    """What the loader says here, as JSON."""
    without_module_types()
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


def _service(normal: dict[str, Any]) -> list[str]:
    """A service that is not root may lose its perf events to strict settings, nothing else."""
    found = _under("setpriv", f"--bounding-set=-all,{_SERVICE}", "--inh-caps=-all")
    if "error" in found:
        return [f"a service with strict settings: {found}"]
    lost = {n: w for n, w in found["missing"].items() if n not in normal["missing"]}
    reasons = [w for w in lost.values() if not w.startswith(_REFUSED) or "is 4" not in w]
    wrong = [f"a service with strict settings: {found}"] if reasons else []
    if not all(_groups(program) & found["off"].keys() for program in lost):
        wrong.append(f"what a service loses is not told: {found}")
    return wrong


def _groups(program: str) -> set[str]:
    """Which one it belongs to depends on the variant."""
    return {probe.group for probe in PROBES if probe.program == program}


def main() -> int:
    """Writes what is wrong. The strictest settings do nothing to root."""
    before = _write(_STRICT)
    try:
        normal = _under()
        if _REFUSED in json.dumps(normal) or "error" in normal:
            print(f"root with strict settings: {normal}")
            return 1
        wrong = [*filter(None, [_locked_memory(normal)]), *_service(normal)]
    finally:
        # The other one stays until the next boot.
        _write({"kernel/perf_event_paranoid": before["kernel/perf_event_paranoid"]})
    print("\n".join(wrong) or "told as it should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["opened"]:
        _opened()
        sys.exit(0)
    os.chdir("/")
    sys.exit(main())
