"""In a guest: the object loads and attaches; what each program cost the verifier."""

from __future__ import annotations

import json
import os
import platform
import struct
import time
from dataclasses import asdict
from pathlib import Path

from tracer.kernel import libbpf
from tracer.kernel.loader import Kernel
from tracer.kernel.probes import CHEAPEST

#: struct bpf_prog_info of Linux 5.16, where `verified_insns` was added.
_INFO_SIZE = 232
_JITED_SIZE, _XLATED_SIZE, _VERIFIED = 16, 20, 216


def _sizes(fd: int) -> dict[str, int | None]:
    info = libbpf.info(fd, _INFO_SIZE)
    (verified,) = struct.unpack_from("<I", info, _VERIFIED)
    (jited, xlated) = struct.unpack_from("<II", info, _JITED_SIZE)
    return {"verified": verified or None, "xlated_bytes": xlated, "jited_bytes": jited or None}


def _programs(kernel: Kernel) -> dict[str, dict[str, int | None]]:
    loaded = kernel.probes.programs.items()
    return {name: _sizes(libbpf.program_fd(program.handle)) for name, program in loaded}


def _programs_by_fentry() -> dict[str, dict[str, int | None]]:
    """Those that take the place of others where fentry is preferred."""
    with Kernel.open(stays=tuple(CHEAPEST)) as kernel:
        return _programs(kernel)


def main() -> None:
    """Writes $OUT/object.json."""
    begun = time.monotonic_ns()
    with Kernel.open() as kernel:
        opened_ns = time.monotonic_ns() - begun
        programs = _programs(kernel)
        groups = [asdict(group) for group in kernel.groups()]
    found = {
        "kernel": platform.release(),
        "open_ms": round(opened_ns / 1e6, 1),
        "programs": _programs_by_fentry() | programs,
        "groups": groups,
    }
    (Path(os.environ["OUT"]) / "object.json").write_text(json.dumps(found, indent=1) + "\n")
    lacking = [group for group in groups if group["required"] and not group["attached"]]
    if lacking:
        raise SystemExit(f"needed and not attached: {lacking}")


if __name__ == "__main__":
    main()
