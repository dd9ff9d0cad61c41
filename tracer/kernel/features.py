"""Facts about this host, gathered before anything is decided; `ttft doctor` prints them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tracer.errors import KernelError
from tracer.kernel import cgroup, libbpf
from tracer.kernel.probes import PROBES

BTF = Path("/sys/kernel/btf/vmlinux")
ARCHITECTURES = ("x86_64", "aarch64")
BTF_ADVICE = "use a kernel with CONFIG_DEBUG_INFO_BTF=y, or give its types by --btf FILE"
_MAGICS = (b"\x9f\xeb", b"\x7fELF")
_PROG_PERF_EVENT = 7
_MAP_RINGBUF, _MAP_TASK_STORAGE = 27, 29
_HELPER_FIND_VMA = 180
_CAPABILITIES = {12: "CAP_NET_ADMIN", 38: "CAP_PERFMON", 39: "CAP_BPF"}
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True)
class Fact:
    """`ok` None: only told. Where it is False, `missing` is lost and `advice` says what to do."""

    name: str
    value: str
    ok: bool | None = None
    missing: str | None = None
    advice: str | None = None


@dataclass(frozen=True)
class Features:
    """What the kernel's type information says: enough to choose programs and options."""

    tracepoints: frozenset[str]
    rdonly_cast: bool

    def has(self, section: str) -> bool:
        """Whether a program of this section can be loaded here."""
        kind, _, name = section.partition("/")
        return kind != "tp_btf" or name in self.tracepoints


def detect(sections: Iterable[str], btf: str | None = None) -> Features:
    """Look up the tracepoints that `sections` (`tp_btf/NAME`) need.

    A name that BTF's strings hold is a type or function of the kernel: no need to parse it,
    which libbpf does once more at load and takes a twentieth of a second for.
    """
    types = _read_btf(btf)
    names = [s.partition("/")[2] for s in sections if s.startswith("tp_btf/")]
    found = (n for n in names if b"\0btf_trace_%s\0" % n.encode() in types)
    return Features(frozenset(found), b"\0bpf_rdonly_cast\0" in types)


def _read_btf(btf: str | None) -> bytes:
    path = Path(btf) if btf else BTF
    try:
        types = path.read_bytes()
    except OSError as error:
        message = f"no type information (BTF) in {path}: {error.strerror}"
        raise KernelError(message, BTF_ADVICE) from None
    if not types.startswith(_MAGICS):
        raise KernelError(f"{path} holds no type information (BTF)", BTF_ADVICE)
    return types


def missing_capabilities() -> list[str]:
    """Those of the needed capabilities this process lacks."""
    status = Path("/proc/self/status").read_text()
    mask = next(int(s.split()[1], 16) for s in status.splitlines() if s.startswith("CapEff:"))
    if mask >> _CAP_SYS_ADMIN & 1:
        return []
    return [name for bit, name in sorted(_CAPABILITIES.items()) if not mask >> bit & 1]


def _lockdown() -> str:
    try:
        text = Path("/sys/kernel/security/lockdown").read_text()
    except OSError:
        return "unknown (securityfs is not mounted)"
    return text.partition("[")[2].partition("]")[0] or text.strip()


def _fact(name: str, ok: bool, value: str, missing: str, advice: str) -> Fact:
    if ok:
        return Fact(name, value, True)
    return Fact(name, value, False, missing, advice)


def _privilege() -> Fact:
    lacking = missing_capabilities()
    value = f"uid {os.geteuid()}" + (f", without {', '.join(lacking)}" if lacking else "")
    return _fact("privilege", not lacking, value, "everything", "run ttftd as root")


def _library() -> Fact:
    try:
        return Fact("libbpf", libbpf.version(), True)
    except KernelError as error:
        return Fact("libbpf", error.message, False, "everything", error.hint)


def _host() -> list[Fact]:
    machine, root = platform.machine(), cgroup.root()
    return [
        Fact("kernel", platform.release()),
        _fact(
            "machine", machine in ARCHITECTURES, machine, "everything",
            "x86_64 and aarch64 are supported",
        ),
        _privilege(),
        Fact("lockdown", _lockdown()),
        _fact("cgroup v2", root is not None, root or "not mounted", "requests", cgroup.ADVICE),
    ]  # fmt: skip


def facts(btf: str | None = None) -> list[Fact]:
    """All facts; nothing is loaded, no root is needed."""
    library = _library()
    place = btf or str(BTF)
    there = Path(place).exists()
    value = place if there else f"no {place}"
    known = [*_host(), library, _fact("BTF", there, value, "everything", BTF_ADVICE)]
    if not there or not library.ok:
        return known
    found = detect([probe.section for probe in PROBES], btf)
    for probe in PROBES:
        kind, _, name = probe.section.partition("/")
        if kind == "tp_btf":
            has = found.has(probe.section)
            known.append(
                _fact(f"tracepoint {name}", has, _yes(has), probe.without, "use a newer kernel")
            )
    known.append(Fact("bpf_rdonly_cast", _yes(found.rdonly_cast)))
    return known + (_probed() if not missing_capabilities() else [])


def _probed() -> list[Fact]:
    """What only a try can tell."""
    ring = libbpf.has_map_type(_MAP_RINGBUF)
    storage = libbpf.has_map_type(_MAP_TASK_STORAGE)
    vma = libbpf.has_helper(_PROG_PERF_EVENT, _HELPER_FIND_VMA)
    return [
        _fact("ring buffer", ring, _yes(ring), "everything", "Linux 5.8 or newer"),
        _fact("task storage", storage, _yes(storage), "everything", "Linux 5.12 or newer"),
        _fact("bpf_find_vma", vma, _yes(vma), "page faults", "Linux 5.17 or newer"),
    ]


def _yes(there: bool) -> str:
    return "there" if there else "missing"
