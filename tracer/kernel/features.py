"""Facts about this host, gathered before anything is decided; `ttft doctor` prints them."""

from __future__ import annotations

import errno
import os
import platform
import resource
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tracer.errors import KernelError
from tracer.kernel import cgroup, libbpf, namespaces, perf, rights
from tracer.kernel.btf import names as names_of
from tracer.kernel.probes import PROBES, Probe, Selection
from tracer.kernel.variants import MAPPED, in_plain, select

BTF = Path("/sys/kernel/btf/vmlinux")
ARCHITECTURES = ("x86_64", "aarch64")
BTF_ADVICE = "use a kernel with CONFIG_DEBUG_INFO_BTF=y, or give its types by --btf FILE"
SYSFS_ADVICE = "mount -t sysfs sysfs /sys"
NEWER = "use a newer kernel"
PARANOID_ADVICE = "sysctl kernel.perf_event_paranoid=2, or give ttftd CAP_SYS_ADMIN"
LOCKDOWN_ADVICE = "boot without lockdown=confidentiality; lockdown=integrity takes nothing away"
HOST_ADVICE = "run ttftd on the host itself: from there it sees the servers in containers, too"
MEMLOCK_ADVICE = "LimitMEMLOCK=infinity in the unit, ulimit -l unlimited in a shell"
#: All maps and programs take less than this.
LOCKED_BYTES = 64 << 20
NOT_IN_PLAIN = "not in the object for older kernels"
LACKS = "this kernel lacks "
FENTRY = ("fentry", "fexit")
#: Names in the kernel's types without which only the plain object loads (bpf/compat.bpf.h).
FULL_NEEDS = (
    "BPF_MAP_TYPE_TASK_STORAGE", "BPF_FUNC_task_storage_get", "BPF_FUNC_get_current_task_btf",
    "BPF_FUNC_for_each_map_elem", "BPF_FUNC_find_vma", "BPF_FUNC_loop",
)  # fmt: skip
_PROG_RAW_TRACEPOINT, _PROG_TRACING = 17, 26
_FENTRY = 24
_RETURN_0 = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
#: r0 = 0; *(u64 *)(r10 - 8) = r0; r0 = cmpxchg(r10 - 8, r0, r0); r0 = 0; exit
_EXCHANGE = (
    struct.pack("<BBhi", 0xB7, 0, 0, 0)
    + struct.pack("<BBhi", 0x7B, 0x0A, -8, 0)
    + struct.pack("<BBhi", 0xDB, 0x0A, -8, 0xF1)
    + _RETURN_0
)
#: r3 = 0; r2 = 8; r1 = r10 - 8; bpf_probe_read_kernel(r1, r2, r3); r0 = 0; exit
_READ_KERNEL = (
    struct.pack("<BBhi", 0xB7, 0x03, 0, 0)
    + struct.pack("<BBhi", 0xB7, 0x02, 0, 8)
    + struct.pack("<BBhi", 0xBF, 0xA1, 0, 0)
    + struct.pack("<BBhi", 0x07, 0x01, 0, -8)
    + struct.pack("<BBhi", 0x85, 0, 0, 113)
    + _RETURN_0
)
_MAP_RINGBUF = 27
#: `enum bpf_attach_type`: one link for many functions of a file.
UPROBE_MULTI = 48
_CAPABILITIES = {12: "CAP_NET_ADMIN", 38: "CAP_PERFMON", 39: "CAP_BPF"}
CAP_SYS_ADMIN = 21
_CAP_SYS_RESOURCE = 24


@dataclass(frozen=True)
class Fact:
    """`ok` None: only told. Unless it is True, `missing` is lost and `advice` says what to do."""

    name: str
    value: str
    ok: bool | None = None
    missing: str | None = None
    advice: str | None = None


@dataclass(frozen=True)
class Features:
    """What the kernel has: enough to choose programs and options.

    `names`: those asked for that its types hold. `fentry`: why it takes no fentry programs,
    None where it does not refuse them, `perf` likewise for perf events. `plain`: what is missing
    for the full object. `mm_rb`: the plain one can tell what is mapped. `misses`: runs that were
    left out are counted. `locks_maps`: maps count as locked memory, against RLIMIT_MEMLOCK.
    """

    names: frozenset[str]
    fentry: str | None
    rdonly_cast: bool
    uprobe_multi: bool = False
    plain: str | None = None
    perf: str | None = None
    mm_rb: bool = True
    misses: bool = True
    locks_maps: bool = False

    def lacks(self, probe: Probe) -> str | None:
        """Why a program cannot be had here; None where it can."""
        kind = probe.section.partition("/")[0]
        refused = self.fentry if kind in FENTRY else self.perf if kind == "perf_event" else None
        if refused:
            return refused
        for name in wanted(probe):
            if name not in self.names:
                return LACKS + (name if name in probe.needs else probe.section)
        return self._plain_lacks(probe) if self.plain else None

    def _plain_lacks(self, probe: Probe) -> str | None:
        if not in_plain(probe):
            return NOT_IN_PLAIN
        if probe.group in MAPPED and not self.mm_rb:
            return f"{LACKS}mm_rb, by which the object for older kernels finds mappings"
        return None


def wanted(probe: Probe) -> list[str]:
    """Names that the kernel's types must hold for a program."""
    kind, _, target = probe.section.partition("/")
    if kind == "tp_btf":
        return [f"btf_trace_{target}", *probe.needs]
    return [target, *probe.needs] if kind in FENTRY else list(probe.needs)


def detect(table: Iterable[Probe] = PROBES, btf: str | None = None) -> Features:
    """Look up what the programs of a table need.

    A name that BTF's strings hold is a type or function of the kernel: no need to parse it,
    which libbpf does once more at load and takes a twentieth of a second for.
    """
    types = names_of(Path(btf) if btf else BTF, btf_advice(btf))
    names = {name for probe in table for name in wanted(probe)}
    found = (name for name in names if b"\0%s\0" % name.encode() in types)
    may = not missing_capabilities()  # without them everything is refused, which says nothing
    return Features(
        frozenset(found),
        fentry_refusal() if may else None,
        b"\0bpf_rdonly_cast\0" in types,
        b"\0BPF_TRACE_UPROBE_MULTI\0" in types,
        _plain_because(types),
        perf_refusal() if may else None,
        b"\0mm_rb\0" in types,
        b"\0recursion_misses\0" in types,
        b"\0BPF_FUNC_ktime_get_coarse_ns\0" not in types,  # as old as accounting by cgroups
    )


def _plain_because(types: bytes) -> str | None:
    """The first thing missing for the full object, None where all is there."""
    if not BTF.exists():
        return "types of its own (BTF)"
    for name in FULL_NEEDS:
        if b"\0%s\0" % name.encode() not in types:
            return name
    refused = libbpf.try_program(_PROG_RAW_TRACEPOINT, _EXCHANGE) in (errno.EINVAL, libbpf.ENOTSUPP)
    return "atomic exchange" if refused else None


def fentry_refusal() -> str | None:
    """Why the kernel takes no fentry programs, None where it does not refuse them at once.

    Tried with a target that is no function: whoever forbids fentry says so before that is seen.
    """
    number = libbpf.try_program(_PROG_TRACING, _RETURN_0, _FENTRY, attach_btf_id=1)
    if number in (errno.EPERM, errno.EACCES):
        return f"this kernel refuses fentry: {os.strerror(number)}"
    return None


def perf_refusal() -> str | None:
    """Why page faults cannot be watched by perf events; None where they can."""
    try:
        os.close(perf.open_event(perf.PAGE_FAULTS, os.getpid()))
    except OSError as error:
        strict = _sysctl("kernel/perf_event_paranoid")
        return f"perf events are refused: {error.strerror} (kernel.perf_event_paranoid is {strict})"
    return None


def may_read_kernel() -> bool:
    """Whether programs may read kernel memory; all of ours do. Lockdown may forbid it.

    Where not even an empty program is taken, that is not the reason.
    """
    if libbpf.try_program(_PROG_RAW_TRACEPOINT, _READ_KERNEL) == 0:
        return True
    return libbpf.try_program(_PROG_RAW_TRACEPOINT, _RETURN_0) != 0


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return "unknown"


def locked_memory() -> int | None:
    """Bytes that may be locked, None for no limit or one that libbpf can lift by itself."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    lifted = capabilities() >> _CAP_SYS_RESOURCE & 1
    return None if soft == resource.RLIM_INFINITY or lifted else soft


def btf_advice(given: str | None) -> str:
    """What to do where there are no types. `given`: by --btf."""
    if given:
        return "give a file that holds the types of this kernel, or leave --btf out"
    return BTF_ADVICE if Path("/sys/kernel").exists() else SYSFS_ADVICE


def missing_capabilities() -> list[str]:
    """Those of the needed capabilities this process lacks; in a container's terms they are none."""
    mask = 0 if namespaces.foreign("user") else capabilities()
    if mask >> CAP_SYS_ADMIN & 1:
        return []
    return [name for bit, name in sorted(_CAPABILITIES.items()) if not mask >> bit & 1]


def capabilities() -> int:
    """The effective ones of this process, a bit each."""
    status = Path("/proc/self/status").read_text()
    return next(int(s.split()[1], 16) for s in status.splitlines() if s.startswith("CapEff:"))


def _lockdown(library: Fact) -> Fact:
    try:
        text = Path("/sys/kernel/security/lockdown").read_text()
        value = text.partition("[")[2].partition("]")[0] or text.strip()
    except OSError:
        value = "unknown (securityfs is not mounted)"
    if not library.ok or missing_capabilities() or may_read_kernel():
        return Fact("lockdown", value)
    value += ": programs may not read kernel memory"
    return Fact("lockdown", value, False, "everything", LOCKDOWN_ADVICE)


def _fact(name: str, ok: bool, value: str, missing: str, advice: str) -> Fact:
    if ok:
        return Fact(name, value, True)
    return Fact(name, value, False, missing, advice)


def _privilege() -> Fact:
    lacking = missing_capabilities()
    value = f"uid {os.geteuid()}"
    if namespaces.foreign("user"):
        value += " of an unprivileged container (a user namespace)"
        return Fact("privilege", value, False, "everything", HOST_ADVICE)
    unseen = {} if lacking else rights.blind(capabilities())
    without = ", ".join(lacking or unseen)
    value += f", without {without}" if without else ""
    if unseen:
        return Fact(
            "privilege", value, False, "; ".join(dict.fromkeys(unseen.values())), rights.ADVICE
        )
    return _fact("privilege", not lacking, value, "everything", "run ttftd as root")


def _processes() -> list[Fact]:
    """Told only where the host's are not seen."""
    if not namespaces.foreign("pid"):
        return []
    value = "a container's own (a pid namespace), the host's are not seen"
    return [Fact("processes", value, False, "everything", HOST_ADVICE)]


def _cgroup() -> Fact:
    place = cgroup.mounted()
    if place is not None:
        return Fact("cgroup v2", os.fsencode(place).decode("utf-8", "replace"), True)
    if missing_capabilities() and not namespaces.foreign("cgroup"):
        return Fact("cgroup v2", "not mounted; whether ttftd may is not known without root")
    why = cgroup.refusal()
    if why is None:
        return Fact("cgroup v2", "not mounted; ttftd mounts it for itself alone", True)
    return Fact("cgroup v2", why, False, "requests", cgroup.advice())


def _library() -> Fact:
    try:
        return Fact("libbpf", libbpf.version(), True)
    except KernelError as error:
        return Fact("libbpf", error.message, False, "everything", error.hint)


def _host(library: Fact) -> list[Fact]:
    machine = platform.machine()
    return [
        Fact("kernel", platform.release()),
        _fact(
            "machine", machine in ARCHITECTURES, machine, "everything",
            "x86_64 and aarch64 are supported",
        ),
        _privilege(),
        *_processes(),
        _lockdown(library),
        _cgroup(),
    ]  # fmt: skip


def facts(btf: str | None = None, loaded: Selection | None = None) -> list[Fact]:
    """All facts; nothing is loaded, no root is needed.

    `loaded`: what the running daemon chose and could have, which only a try can tell for sure.
    """
    library = _library()
    place = btf or str(BTF)
    there = Path(place).exists()
    value = place if there else f"no {place}"
    known = [*_host(library), library, _fact("BTF", there, value, "everything", btf_advice(btf))]
    if not there or not library.ok:
        return known
    found = detect(btf=btf)
    selection = loaded or select(PROBES, found.lacks)
    told = [_probe(probe, selection.lacking.get(probe.program)) for probe in selection.probes]
    known += {fact.name: fact for fact in chain.from_iterable(told)}.values()
    may = not missing_capabilities()
    if not found.misses:
        known.append(Fact("runs left out", "not counted by this kernel"))
    known += [
        Fact(f"probes {name}", str(choice) if may or loaded else "not known without root")
        for name, choice in selection.choices.items()
    ]
    known.append(Fact("bpf_rdonly_cast", _yes(found.rdonly_cast)))
    plain = f"plain (this kernel lacks {found.plain})" if found.plain else "full"
    known.append(Fact("BPF object", plain))
    if found.locks_maps:
        known.append(_locked_memory())
    return known + (_probed() if may else [])


def _probe(probe: Probe, lacking: str | None) -> list[Fact]:
    """Tracepoints, there or not; of all else what cannot be had."""
    kind, _, name = probe.section.partition("/")
    if kind == "tp_btf" and lacking != NOT_IN_PLAIN:
        value = _yes(False) if (lacking or "").startswith(LACKS) else lacking or _yes(True)
        name = f"tracepoint {name}"
        return [_lacking(name, value, probe, NEWER) if lacking else Fact(name, value, True)]
    if not lacking:
        return []
    advice = PARANOID_ADVICE if kind == "perf_event" else NEWER
    return [_lacking(f"program {probe.program}", lacking, probe, advice)]


def _lacking(name: str, value: str, probe: Probe, advice: str) -> Fact:
    """Only what is required is wrong to lack."""
    return Fact(name, value, False if probe.required else None, probe.without, advice)


def _locked_memory() -> Fact:
    """Maps of kernels before 5.11 are locked memory of the process."""
    limit = locked_memory()
    value = "unlimited" if limit is None else f"{limit >> 10} KiB"
    enough = limit is None or limit >= LOCKED_BYTES
    return _fact("locked memory", enough, value, "everything", MEMLOCK_ADVICE)


def _probed() -> list[Fact]:
    """What only a try can tell."""
    ring = libbpf.has_map_type(_MAP_RINGBUF)
    return [_fact("ring buffer", ring, _yes(ring), "everything", "Linux 5.8 or newer")]


def _yes(there: bool) -> str:
    return "there" if there else "missing"
