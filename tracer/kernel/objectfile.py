"""The BPF object of this machine, made ready to load: options, sizes, what can be had."""

from __future__ import annotations

import errno
import os
import platform
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tracer.errors import KernelError
from tracer.kernel import features, layouts, libbpf
from tracer.kernel.probes import PROBES, UPROBE, Probe, Program, Selection
from tracer.kernel.variants import AUTO, select

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


def object_path(machine: str | None = None, plain: bool = False) -> Path:
    """The object for this machine, or for its older kernels; KernelError where there is none."""
    name = machine or platform.machine()
    path = OBJECTS / f"ttft.{name}.{'plain.' if plain else ''}bpf.o"
    if not path.exists():
        raise KernelError(
            f"there is no BPF object for {name} ({path})",
            "in a checkout run `python build_bpf.py`; else install ttft anew",
        )
    return path


@dataclass(frozen=True)
class Request:
    """What is to be loaded. `btf`: the kernel's types, where it has none itself.

    `plain`: the object for older kernels; None leaves it to what this one has. `stays`: groups
    that are never detached.
    """

    btf: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    options: Options = Options()
    variant: str = AUTO
    plain: bool | None = None
    path: Path | None = None
    stays: Collection[str] = ()


@dataclass(frozen=True)
class Loaded:
    """The object in the kernel; nothing is attached."""

    handle: int
    programs: dict[str, Program]
    selection: Selection


def load(request: Request, left_out: dict[str, str]) -> Loaded:
    """Load what this kernel takes. `left_out`: programs it will not, and why; grows here.

    What it refuses, though it has all that is needed for it, is had in another way or, if it is
    not required, left out.
    """
    listening = False
    known = features.detect(PROBES, request.btf)
    if request.plain is not None:
        known = replace(known, plain="(asked for)" if request.plain else None)
    while True:
        path = request.path or object_path(plain=bool(known.plain))
        handle = libbpf.open_object(str(path), request.btf)
        try:
            programs, selection = prepare(handle, request, known, left_out)
            libbpf.load_object(handle)
            return Loaded(handle, programs, selection)
        except KernelError as error:
            libbpf.close_object(handle)
            if not listening:  # once more, for the reason
                libbpf.listen()
                listening = True
                continue
            _explain(error, known)
            culprit = libbpf.refused()
            if culprit is None or culprit[0] in left_out or _nothing_goes(culprit[0], error):
                raise
            left_out[culprit[0]] = f"this kernel refuses it: {culprit[1]}"


def _explain(error: KernelError, known: features.Features) -> None:
    """Raises a better error where it is known why nothing can be loaded."""
    limit = features.locked_memory()
    if known.locks_maps and limit is not None and limit < features.LOCKED_BYTES:
        raise KernelError(
            f"too little locked memory for the BPF maps: {limit >> 10} KiB are allowed, "
            f"{features.LOCKED_BYTES >> 10} are enough", features.MEMLOCK_ADVICE,
        ) from error  # fmt: skip
    if not features.may_read_kernel():
        raise KernelError(
            "this kernel is locked down: programs may not read its memory",
            features.LOCKDOWN_ADVICE,
        ) from error


def _nothing_goes(program: str, error: KernelError) -> bool:
    """Whether others would be refused like this one; fentry may be forbidden by itself."""
    sections = [probe.section for probe in PROBES if probe.program == program]
    fentry = any(section.startswith(features.FENTRY) for section in sections)
    return not fentry and os.strerror(errno.EPERM) in error.message


def prepare(
    handle: int, request: Request, known: features.Features, left_out: Mapping[str, str]
) -> tuple[dict[str, Program], Selection]:
    """Options, sizes, and which programs this kernel can take."""

    def lacks(probe: Probe) -> str | None:
        return left_out.get(probe.program) or known.lacks(probe)

    selection = select(PROBES, lacks, request.variant, request.stays)
    wanted: dict[str, Probe] = {}
    for probe in selection.probes:  # one that several groups have counts as the first one's
        wanted.setdefault(probe.program, probe)
    programs = {}
    for name, _, program in libbpf.programs(handle):
        if name in wanted and name not in selection.lacking:
            programs[name] = Program(program, wanted[name])
            if wanted[name].section == UPROBE and known.uprobe_multi:
                libbpf.set_attach_type(program, features.UPROBE_MULTI)
        else:
            libbpf.set_autoload(program, False)
    for name, why in selection.lacking.items():
        if wanted[name].required:
            raise KernelError(
                f"{request.btf or 'this kernel'} lacks {wanted[name].section}, needed for "
                f"{wanted[name].without} ({why})", "see `ttft doctor`",
            )  # fmt: skip
    for name, size in request.sizes.items():
        libbpf.set_map_size(libbpf.find_map(handle, name), size)
    _set_options(handle, request.options, known.rdonly_cast)
    return programs, selection


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
