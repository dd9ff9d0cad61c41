"""What the kernel counts of each program's runs."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from tracer.kernel import libbpf
from tracer.kernel.probes import Program

#: struct bpf_prog_info up to recursion_misses, which is its last field here.
_SIZE = 216
_AT = 192


@dataclass(frozen=True)
class RunStats:
    """How long a program ran. `missed`: runs that were left out because it was running.

    None where the kernel does not count them: before 9ed9e9ba2337 (5.12).
    """

    program: str
    run_ns: int
    runs: int
    missed: int | None


def of(programs: Mapping[str, Program]) -> list[RunStats]:
    """Of each program by name."""
    found = []
    for name, program in programs.items():
        fd = libbpf.program_fd(program.handle)
        run_ns, runs, missed = struct.unpack_from("<QQQ", libbpf.info(fd, _SIZE), _AT)
        counted = libbpf.info_size(fd, _SIZE) >= _SIZE
        found.append(RunStats(name, run_ns, runs, missed if counted else None))
    return found
