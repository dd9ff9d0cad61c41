"""The BPF object of this machine, made ready to load: options, sizes, what can be had."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tracer.errors import KernelError
from tracer.kernel import features, layouts, libbpf
from tracer.kernel.probes import BY_PROGRAM, Program

OBJECTS = Path(__file__).parent / "objects"
_ARCH_TAGS = {"x86_64": 1, "aarch64": 2}


@dataclass(frozen=True)
class Options:
    """What the programs are told; sizes in bytes, times in ns. None: the object's default."""

    min_file_size: int | None = None
    span_gap_ns: int | None = None
    span_max_ns: int | None = None
    insert_gap_ns: int | None = None
    insert_max_ns: int | None = None


def object_path(machine: str | None = None) -> Path:
    """The object for this machine; KernelError where there is none."""
    name = machine or platform.machine()
    path = OBJECTS / f"ttft.{name}.bpf.o"
    if not path.exists():
        raise KernelError(
            f"there is no BPF object for {name} ({path})",
            "in a checkout run `python build_bpf.py`; else install ttft anew",
        )
    return path


def prepare(
    handle: int, btf: str | None, sizes: Mapping[str, int], options: Options
) -> tuple[dict[str, Program], dict[str, str]]:
    """Options, sizes, and which programs this kernel can take."""
    programs = {n: Program(handle, BY_PROGRAM[n]) for n, _, handle in libbpf.programs(handle)}
    known = features.detect([p.probe.section for p in programs.values()], btf)
    missing = {}
    for name, program in list(programs.items()):
        if not known.has(program.probe.section):
            if program.probe.required:
                raise KernelError(
                    f"{btf or 'this kernel'} lacks {program.probe.section}, needed for "
                    f"{program.probe.without}", "see `ttft doctor`",
                )  # fmt: skip
            libbpf.set_autoload(program.handle, False)
            missing[name] = f"this kernel lacks {program.probe.section}"
            del programs[name]
    for name, size in sizes.items():
        libbpf.set_map_size(libbpf.find_map(handle, name), size)
    _set_options(handle, options, known.rdonly_cast)
    return programs, missing


def _set_options(handle: int, options: Options, rdonly_cast: bool) -> None:
    memory = libbpf.initial_value(libbpf.find_map(handle, ".rodata.options"))
    values = dict(
        zip(layouts.OPTIONS.names, layouts.OPTIONS.packer.unpack(memory.raw), strict=True)
    )
    if values["arch"] != _ARCH_TAGS.get(platform.machine()):
        raise KernelError(
            f"the BPF object was built for another machine than {platform.machine()}",
            "install ttft anew, or run `python build_bpf.py` in a checkout",
        )
    given = {n: getattr(options, n) for n in options.__dataclass_fields__}
    values |= {n: v for n, v in given.items() if v is not None}
    values |= {"token_secret": secrets.randbits(64), "rdonly_cast": int(rdonly_cast)}
    memory.raw = layouts.OPTIONS.packer.pack(*values.values())
