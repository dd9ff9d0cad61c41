"""The one table of programs, and their coming and going in groups."""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

from tracer.errors import KernelError
from tracer.kernel import libbpf
from tracer.kernel.links import Links
from tracer.kernel.perf import EVENTS, FaultEvents
from tracer.kernel.placing import Placement
from tracer.kernel.takes import Takes

#: Sections of programs at the begin and end of a function.
FUNCTIONS = ("fentry/", "fexit/")


@dataclass(frozen=True)
class Probe:
    """`without`: what is not recorded where the program cannot be had.

    `variant`: the way of getting the group's facts that it belongs to (see `VARIANTS`); empty:
    it belongs to all. `needs`: names that the kernel's types must hold, beside the target of
    the section: of a helper (`BPF_FUNC_find_vma`), a map type, a field, a function.
    """

    group: str
    program: str
    section: str
    required: bool
    without: str
    variant: str = ""
    needs: tuple[str, ...] = ()


_CALLS = "opens, reads and mappings of weights"
_READING = "faults that read weights"
_WAITING = "how long faults that read weights take"
_DRIVER = "calls into the drivers of accelerators"


#: What tells more of faults than that they were, at a cost to others: comes and goes with `files`.
PAGING = "paging"


def _calls() -> Iterator[Probe]:
    """End and begin of each call in which the file matters; of an open its end is enough.

    The end first: a call that was seen to begin before the other program was there would look as
    if the kernel had left that out.
    """
    prefix = "__x64_sys_" if platform.machine() == "x86_64" else "__arm64_sys_"
    calls = ("mmap", "read", "pread64", "madvise", "munmap")
    functions = {call: prefix + call for call in calls} | {"readv": "vfs_readv"}
    yield Probe("files", "ttft_open_done", "fexit/do_sys_openat2", False, _CALLS, "fentry")
    for name, function in functions.items():
        yield Probe("files", f"ttft_{name}_done", f"fexit/{function}", False, _CALLS, "fentry")
        yield Probe("files", f"ttft_{name}", f"fentry/{function}", False, _CALLS, "fentry")


def _driver_calls() -> Iterator[Probe]:
    """Begin and end of each call that may be on a device."""
    arm = platform.machine() == "aarch64"
    prefix = "__arm64_sys_" if arm else "__x64_sys_"
    calls = ("ioctl", "mmap", "close", "ppoll", *(() if arm else ("poll",)))
    functions = {call: prefix + call for call in calls} | {"open": "do_sys_openat2"}
    for name, function in functions.items():
        for ending, kind in (("_done", "fexit"), ("", "fentry")):
            program = f"ttft_device_{name}{ending}"
            yield Probe("devices", program, f"{kind}/{function}", False, _DRIVER, "fentry")


def _faults() -> Iterator[Probe]:
    """Three ways to see faults of files."""
    group = "faults"
    yield Probe(
        group, "ttft_fault_mapped", "fexit/filemap_map_pages", False, "minor faults", "fentry"
    )
    yield Probe(group, "ttft_fault_fill", "fentry/filemap_fault", False, _READING, "fentry")
    yield Probe(group, "ttft_fault_filled", "fexit/filemap_fault", False, _READING, "fentry")
    yield Probe(
        "minor",
        "ttft_fault_map",
        "fentry/filemap_map_pages",
        False,
        "time of minor faults",
        "fentry",
    )
    yield Probe(
        PAGING,
        "ttft_fault_near",
        "tp_btf/mm_filemap_map_pages",
        False,
        "minor faults",
        "tracepoint",
    )
    yield Probe(PAGING, "ttft_fault_miss", "tp_btf/mm_filemap_fault", False, _WAITING, "tracepoint")
    yield Probe(group, "ttft_fault_major", "perf_event", False, _READING, "tracepoint")
    yield Probe(group, "ttft_fault_major", "perf_event", False, _READING, "perf")
    yield Probe(group, "ttft_fault_begin", "perf_event", False, "minor faults", "perf")
    yield Probe(group, "ttft_fault_minor", "perf_event", False, "minor faults", "perf")


#: Runs at each tick of the clocks that tracer/stacks opens.
SAMPLER = "ttft_stack"

PROBES = (
    Probe("lifecycle", "ttft_fork", "tp_btf/sched_process_fork", True, "child processes"),
    Probe("lifecycle", "ttft_exec", "tp_btf/sched_process_exec", True, "servers started later"),
    Probe("lifecycle", "ttft_exit", "tp_btf/sched_process_exit", True, "ends of processes"),
    Probe("lifecycle", "ttft_signal", "tp_btf/signal_generate", False, "who stopped a process"),
    Probe("cache", "ttft_insert", "tp_btf/mm_filemap_add_to_page_cache", False, "bytes from disk"),
    Probe("files", "ttft_sys_exit", "tp_btf/sys_exit", False, _CALLS, "tracepoint"),
    Probe("files", "ttft_sys_enter", "tp_btf/sys_enter", False, _CALLS, "tracepoint"),
    *_calls(),
    *_faults(),
    Probe("devices", "ttft_sys_exit", "tp_btf/sys_exit", False, _DRIVER, "tracepoint"),
    Probe("devices", "ttft_sys_enter", "tp_btf/sys_enter", False, _DRIVER, "tracepoint"),
    *_driver_calls(),
    Probe("minor", "ttft_fault_begin", "perf_event", False, "time of minor faults", "tracepoint"),
    Probe("minor", "ttft_fault_minor", "perf_event", False, "time of minor faults", "tracepoint"),
    Probe("sockets", "ttft_ingress", "cgroup_skb/ingress", True, "requests"),
    Probe("sockets", "ttft_egress", "cgroup_skb/egress", True, "replies and first tokens"),
    Probe(
        "sockets",
        "ttft_state",
        "tp_btf/inet_sock_set_state",
        True,
        "listening ports and connections",
    ),
    Probe(
        "sockets",
        "ttft_take",
        "tp_btf/tcp_rcv_space_adjust",
        False,
        "when the server read a request",
    ),
    Probe(
        "libs", "ttft_call", "uprobe", False, "uploads, compilation and decoding in libraries",
        needs=("BPF_FUNC_get_attach_cookie",),
    ),
    Probe("libs", "ttft_open", "uprobe", False, "hits and misses of compile caches"),
    Probe("libs", "ttft_openat", "uprobe", False, "hits and misses of compile caches"),
    Probe("libs", "ttft_linked", "uprobe", False, "libraries of running servers at once"),
    Probe("libs", "ttft_call_end", "tp_btf/sched_process_exit", False, "ends of compilations"),
    Probe("stacks", SAMPLER, "perf_event", False, "functions that slow stages spent their time in"),
)  # fmt: skip
#: Section of programs that are attached to files as these are mapped (tracer/libs).
UPROBE = "uprobe"
#: Comes with requests (tracer/kernel/takes.py).
TAKES = "ttft_take"
#: Of programs that are attached where servers are (tracer/kernel/placing.py).
IN_CGROUP = "cgroup_skb/"
#: Groups that cost others next to nothing.
ALWAYS_ON = ("lifecycle", "cache", "sockets", "faults", "libs")
#: Attached to a process when it maps weights without populating: costs it 0.4 us a fault.
ON_DEMAND = ("minor",)
#: Groups that come and go with another one, where this host has what they are about: they cost
#: others as much as that one does.
BESIDE = {"devices": "files"}
#: Groups whose facts can be had in several ways, the preferred one first: the first whose
#: programs this kernel all takes is used, else the last as far as it goes. `files` comes and goes,
#: and has to come within the milliseconds before a waking server opens its weights: tracepoints
#: attach in 0.4 ms, thirteen fentry programs take 150 million instructions.
#: The tracepoints that tell faults of files are of 6.12 ("filemap: add trace events for get_pages,
#: map_pages, and fault"). Without them perf events tell all faults of watched processes, which
#: costs these as much as `minor` does.
VARIANTS: dict[str, tuple[str, ...]] = {
    "files": ("tracepoint", "fentry"),
    "faults": ("tracepoint", "fentry", "perf"),
}
#: The way that costs other processes least while attached, for groups that stay.
CHEAPEST = {"files": "fentry"}
#: Groups that come in the variant of another one.
FOLLOWS = {"minor": "faults", PAGING: "faults", "devices": "files"}


@dataclass(frozen=True)
class Choice:
    """The variant of a group, and why not those that were preferred: (variant, reason).

    `rest`: those that were not looked at.
    """

    group: str
    variant: str
    passed_over: tuple[tuple[str, str], ...] = ()
    rest: tuple[str, ...] = ()

    def __str__(self) -> str:
        reasons = "; ".join(f"not {name}: {why}" for name, why in self.passed_over)
        return f"{self.variant} ({reasons})" if reasons else self.variant


@dataclass(frozen=True)
class Selection:
    """The programs to use, those of them that this kernel lacks, and what was chosen."""

    probes: tuple[Probe, ...]
    lacking: dict[str, str]
    choices: dict[str, Choice]

    def group(self, name: str) -> list[Probe]:
        """The programs of a group, missing ones too."""
        return [probe for probe in self.probes if probe.group == name]


@dataclass(frozen=True)
class Program:
    """A program of the opened object."""

    handle: int
    probe: Probe


def _attached_once(probe: Probe) -> bool:
    return probe.section != UPROBE and not probe.section.startswith(IN_CGROUP)


class Probes:
    """The loaded programs, attached in groups; `attach` and `detach` from one thread at a time."""

    def __init__(self, programs: dict[str, Program], selection: Selection) -> None:
        self.programs = programs
        self.selection = selection
        self.missing = dict(selection.lacking)
        self._attached: set[str] = set()
        self._once: set[str] = set()
        self._links = Links()
        self.placement = Placement(libbpf.attach_cgroup, libbpf.destroy_link)
        self.takes = Takes(partial(self._attach_again, TAKES), partial(self._links.drop, TAKES))
        self._events: dict[str, FaultEvents] = {}

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(probe.group for probe in self.selection.probes))

    @property
    def attached(self) -> list[str]:
        return [g for g in self.groups if g in self._attached]

    def replaceable(self) -> dict[str, str]:
        """Programs that could not be attached, though another variant may do instead; why."""
        found = {}
        for probe in self.selection.probes:
            choice = self.selection.choices.get(FOLLOWS.get(probe.group, probe.group))
            failed = probe.program in self.missing and probe.program in self.programs
            if failed and probe.variant and choice is not None and choice.rest:
                found[probe.program] = self.missing[probe.program]
        return found

    def attach(self, group: str, tgids: list[int] | None = None) -> int:
        """Attach a group, perf events of it to these processes; ns, 0 where it was attached.

        KernelError where it was attached before and cannot be now: then none of it is.
        """
        if group in self._attached:
            return 0
        began, known = time.monotonic_ns(), set(self.missing)
        self._attached.add(group)
        rows = self.selection.group(group)
        chosen = {p.program: self.programs[p.program] for p in rows if p.program in self.programs}
        perf = {n: libbpf.program_fd(p.handle) for n, p in chosen.items() if n in EVENTS}
        if perf:
            self._events[group] = FaultEvents(perf)
            for tgid in tgids or []:
                self._events[group].add(tgid)
        for name, program in chosen.items():
            if name not in EVENTS and name != SAMPLER and _attached_once(program.probe):
                self._attach_one(name, program)
        in_cgroups = [p.handle for p in chosen.values() if p.probe.section.startswith(IN_CGROUP)]
        if in_cgroups:
            self.placement.begin(in_cgroups)
        self._check_again(group, known)
        return time.monotonic_ns() - began

    def _check_again(self, group: str, known: set[str]) -> None:
        """What could be attached once and cannot now is no lack of this kernel."""
        failed = self.missing.keys() - known
        if failed and group in self._once:
            why = "; ".join(dict.fromkeys(self.missing.pop(name) for name in sorted(failed)))
            self.detach(group)
            raise KernelError(why)
        self._once.add(group)

    def _attach_one(self, name: str, program: Program) -> None:
        if self._links.holds(name):  # another group has it, too
            return
        try:
            self._links.add(name, partial(libbpf.attach, program.handle))
        except KernelError as error:
            if program.probe.required:
                raise
            self.missing[name] = error.message

    def _attach_again(self, name: str) -> None:
        if name in self.programs and name not in self.missing:
            self._links.add(name, partial(libbpf.attach, self.programs[name].handle))

    def detach(self, group: str) -> int:
        """Detach a group; ns it took. Traced functions may be left only a little later."""
        began = time.monotonic_ns()
        self._attached.discard(group)
        shared = {row.program for other in self._attached for row in self.selection.group(other)}
        mine = dict.fromkeys(row.program for row in self.selection.group(group))
        for name in mine:
            if name not in self.programs or name in shared:
                continue
            program = self.programs[name]
            if program.probe.section.startswith(IN_CGROUP):
                self.placement.close()
            else:
                self._links.drop(name, later=program.probe.section.startswith(FUNCTIONS))
        if group in self._events:
            self._events.pop(group).close()
        return time.monotonic_ns() - began

    def settle(self) -> None:
        """Wait until what was detached is off."""
        self._links.settle()

    def cover(self, group: str, tgid: int) -> None:
        """Faults of a process, if the group is attached and it is not covered yet."""
        events = self._events.get(group)
        if events and tgid not in events.covered:
            events.add(tgid)

    def uncover(self, tgid: int) -> None:
        for events in self._events.values():
            events.remove(tgid)

    def forked(self, parent: int, child: int) -> None:
        """Events of a process go on in its children."""
        for events in self._events.values():
            events.forked(parent, child)

    def drop_events(self, ended: Collection[int]) -> None:
        """Give back the events of processes that ended long ago."""
        for events in self._events.values():
            events.ended(ended)

    def close(self) -> None:
        self._attached.clear()
        self.takes.close()
        self.placement.close()
        self._links.close()
        for group in list(self._events):
            self._events.pop(group).close()
