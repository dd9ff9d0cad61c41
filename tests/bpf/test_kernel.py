"""The loader: comings and goings, losses, load, and what is left behind."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bpf.watching import Watching, key_of
from tests.workloads import bpf
from tests.workloads.fileio import FileIo, drop_cache, make_file
from tests.workloads.waiting import wait_for
from tracer.errors import KernelError
from tracer.kernel import features, layouts, libbpf, variants
from tracer.kernel.loader import Kernel
from tracer.kernel.objectfile import Options, object_path
from tracer.kernel.probes import PROBES
from tracer.records import Span

pytestmark = pytest.mark.kernel
MIB = 1 << 20
#: Programs on functions of libraries, which older kernels do not get.
LIBS = {"ttft_call", "ttft_linked", "ttft_call_end", "ttft_open", "ttft_openat"}
ROOT = Path(__file__).parents[2]


def test_all_programs_attach(built: Path) -> None:
    began, began_cpu = time.monotonic_ns(), time.process_time_ns()
    with Kernel.open(path=built) as kernel:
        took_ms = (time.monotonic_ns() - began) / 1e6
        cpu_ms = (time.process_time_ns() - began_cpu) / 1e6
        assert kernel.probes.missing == {}
        off = {g.group: g.off_because for g in kernel.groups() if not g.attached}
        assert off == {"minor": "not needed now", "devices": "not needed now"}
        chosen = {probe.program for probe in kernel.probes.selection.probes}
        assert set(kernel.probes.programs) == chosen
        assert kernel.lost() == {}
    sys.stdout.write(f"\nopen to all attached: {took_ms:.1f} ms, {cpu_ms:.1f} ms of CPU\n")
    assert cpu_ms < 500  # a busy machine says nothing about us


def test_table_of_probes(built: Path) -> None:
    """The table names the programs and sections that are in the object."""
    inside = {}
    for plain in (False, True):
        handle = libbpf.open_object(str(object_path(plain=plain)))
        inside[plain] = {
            name: section.replace("raw_tp/", "tp_btf/")
            for name, section, _ in libbpf.programs(handle)
        }
        libbpf.close_object(handle)
    assert inside[False] == {probe.program: probe.section for probe in PROBES}
    assert inside[True].items() <= inside[False].items()
    assert inside[True].keys() == {p.program for p in PROBES if variants.in_plain(p)}


def test_plain_object(built: Path, workload: Path, disk: Path) -> None:
    """The one for older kernels gives the same, but for what it needs an older kernel for."""
    path = make_file(disk / "plain", 4 * MIB)
    drop_cache(path)
    with Kernel.open(plain=True, off=("sockets",)) as kernel:
        mapped = {p.program for p in PROBES if p.group == "faults" and p.variant in ("perf", "")}
        lacking = set() if features.detect().mm_rb else mapped
        assert set(kernel.probes.missing) == lacking | LIBS
        assert kernel.probes.selection.choices["faults"].variant == "perf"
        seen = Watching.run(kernel, workload, "threads", 101, 4096, [path])
        total = seen.totals[seen.pid, *key_of(path), "read"]
        assert (total.count, total.bytes) == (505, 505 * 4096)
        drop_cache(path)
        seen = Watching.run(kernel, workload, "reads", 5 * 64, 65536, [path])
        assert seen.pages[key_of(path)] == 1024
        assert kernel.lost() == {}
        threads = [int.from_bytes(key, "little") for key, _ in kernel.table("threads").items()]
        assert threads == []


def test_facts() -> None:
    """Here nothing is missing, and every fact that could be says what it would cost."""
    facts = features.facts()
    assert [f for f in facts if f.ok is False] == []
    assert {"BTF", "libbpf", "privilege", "cgroup v2", "BPF object"} <= {f.name for f in facts}
    absent = features.facts(btf="/absent")
    assert [(f.name, f.missing) for f in absent if f.ok is False] == [("BTF", "everything")]


def test_groups_can_be_off(built: Path) -> None:
    with Kernel.open(path=built, off=("sockets", "faults")) as kernel:
        off = {g.group: (g.off_because, g.unseen) for g in kernel.groups() if not g.attached}
    assert off == {
        "devices": ("not needed now", "calls into the drivers of accelerators"),
        "faults": ("off in the configuration", "faults that read weights"),
        "minor": ("not needed now", "time of minor faults"),
        "paging": (
            "off in the configuration",
            "minor faults, how long faults that read weights take",
        ),
        "sockets": (
            "off in the configuration",
            "requests, replies and first tokens, listening ports and connections, "
            "when the server read a request",
        ),
    }


def test_minor_faults_are_watched_where_weights_are_mapped_lazily(built: Path, disk: Path) -> None:
    path = make_file(disk / "lazy", 8 * MIB)
    with Kernel.open(path=built, off=("sockets",)) as kernel:
        kernel.watch(os.getpid())
        with path.open("rb") as file:
            populated = mmap.mmap(
                file.fileno(), 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ
            )
            kernel.drain()
            assert "minor" not in kernel.probes.attached
            lazy = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
            kernel.drain()
            assert "minor" in kernel.probes.attached
        assert sum(lazy[at] for at in range(0, 8 * MIB, 4096)) > 0
        total = kernel.totals()[os.getpid(), *key_of(path), "fault_minor"]
        assert total.count > 0
        assert (os.getpid(), *key_of(path), "fault_major") not in kernel.totals()
        populated.close()
        lazy.close()


def test_groups_come_and_go(kernel: Kernel) -> None:
    """Attach and detach within a tenth of a second each, perf-type ones would take seconds."""
    kernel.watch(os.getpid())
    for group in ("files", "faults", "minor", "cache"):
        times = []
        for _ in range(5):
            times.append((kernel.detach(group) / 1e6, kernel.attach(group) / 1e6))
        off, on = (sorted(column)[2] for column in zip(*times, strict=True))
        sys.stdout.write(f"\n{group}: detach {off:.2f} ms, attach {on:.2f} ms\n")
        assert off < 100 and on < 100
        assert group in kernel.probes.attached
    kernel.unwatch(os.getpid())


def test_a_tiny_ring_counts_what_it_loses(built: Path, workload: Path, disk: Path) -> None:
    """Every record is either delivered or counted, and totals stay exact."""
    path = make_file(disk / "busy", MIB)
    sizes = {"ring": 4096}
    options = Options(span_gap_ns=0)  # a record for each read
    with Kernel.open(path=built, off=("sockets", "faults"), sizes=sizes, options=options) as kernel:
        with FileIo(workload, "storm", 997, 4096, [path]) as work:
            kernel.watch(work.pid)
            with kernel.rings.held():
                work.go()
            spans = [r for r in kernel.drain() if isinstance(r, Span) and r.op == "read"]
            spans += [s for s in kernel.sweep(time.monotonic_ns()) if isinstance(s, Span)]
            ours = [s for s in spans if (s.dev, s.ino) == key_of(path)]
            lost = kernel.lost()
            total = kernel.totals()[work.pid, *key_of(path), "read"]
        assert lost["span"] > 900
        assert sum(s.count for s in ours) + lost["span"] == 997
        assert (total.count, total.bytes) == (997, 997 * 4096)


def test_a_hundred_thousand_reads_a_second(
    kernel: Kernel, watching: Callable[..., Watching], disk: Path
) -> None:
    path = make_file(disk / "storm", MIB)
    seen = watching("storm", 100_000, 4096, path)
    rate = 100_000 / seen.said["ns"] * 1e9
    sys.stdout.write(f"\n{rate:,.0f} reads a second\n")
    total = seen.total(path, "read")
    assert total is not None
    assert (total.count, total.bytes) == (100_000, 100_000 * 4096)
    assert kernel.lost() == {}
    assert len(seen.spans(path, "read")) < 1000


def test_full_tables_are_told(built: Path, workload: Path, disk: Path) -> None:
    files = [make_file(disk / f"{i}", MIB) for i in range(5)]
    sizes = {"files": 2}
    with Kernel.open(path=built, off=("sockets", "faults"), sizes=sizes) as kernel:
        with FileIo(workload, "reads", 3, 4096, files) as work:
            kernel.watch(work.pid)
            work.go()
        assert kernel.lost()["file.table"] >= 3


def test_killed_loader_leaves_nothing(built: Path) -> None:
    """No pin: programs and links end with the process, whatever ends it."""
    script = (
        "import sys, time\n"
        "from tracer.kernel.loader import Kernel\n"
        "kernel = Kernel.open(off=('sockets',))\n"
        "kernel.watch(1)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == b"ready\n"
        programs, links = bpf.held(it.pid)
        chosen = variants.select(PROBES, features.detect().lacks).probes
        assert len(programs) == len({probe.program for probe in chosen})
        assert links
        it.send_signal(signal.SIGKILL)
    wait_for(lambda: not programs & bpf.program_ids(), 10, "the programs to go")
    wait_for(lambda: not links & bpf.link_ids(), 10, "the links to go")


def test_sweep_tells_only_what_changed(kernel: Kernel, workload: Path, disk: Path) -> None:
    """A growing span is told again with the same start, and forgotten with its thread."""
    path = make_file(disk / "grow", MIB)
    with FileIo(workload, "reads", 5, 4096, [path]) as work:
        kernel.watch(work.pid)
        work.go()
        first = [s for s in kernel.sweep(time.monotonic_ns()) if s.ino == key_of(path)[1]]
        reads = [s for s in first if isinstance(s, Span) and s.op == "read"]
        assert [(s.count, s.bytes) for s in reads] == [(5, 5 * 4096)]
        again = kernel.sweep(time.monotonic_ns())
        assert [s for s in again if isinstance(s, Span) and s.ino == key_of(path)[1]] == []
        os.kill(work.pid, signal.SIGKILL)
    kernel.sweep(time.monotonic_ns() + 2_000_000_000)
    left = [layouts.SPAN_STATE.packer.unpack(v)[1] for _, v in kernel.table("spans").items()]
    assert work.pid not in left


def test_run_times(kernel: Kernel, watching: Callable[..., Watching], disk: Path) -> None:
    kernel.enable_stats()
    before = {s.program: s for s in kernel.run_stats()}
    path = make_file(disk / "cost", 16 * MIB)
    watching("storm", 10_000, 4096, path)
    watching("touches", 0, 0, path)
    for stats in kernel.run_stats():
        runs = stats.runs - before[stats.program].runs
        if runs:
            each = (stats.run_ns - before[stats.program].run_ns) / runs
            sys.stdout.write(f"\n{stats.program}: {runs} runs, {each:.0f} ns each")
            assert stats.missed == 0
    ran = {s.program: s.runs - before[s.program].runs for s in kernel.run_stats()}
    assert ran["ttft_sys_enter"] >= 10_000
    assert ran["ttft_fault_begin"] > 0


def test_test_run(kernel: Kernel) -> None:
    """Raw tracepoint programs cannot be test-run this way: the error is one of ours."""
    with pytest.raises(KernelError, match="test run failed"):
        libbpf.run_test(kernel.program("ttft_sys_enter"), b"x" * 14)


def test_errors_have_hints(built: Path, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="no BPF object for riscv64") as missing:
        object_path("riscv64")
    assert missing.value.hint is not None
    other = built.with_name("ttft.aarch64.bpf.o" if "x86_64" in built.name else "ttft.x86_64.bpf.o")
    with pytest.raises(KernelError, match="another machine"):
        Kernel.open(path=other)
    broken = tmp_path / "broken.o"
    broken.write_bytes(b"\x7fELF nothing")
    with pytest.raises(KernelError, match="cannot read the BPF object"):
        Kernel.open(path=broken)
    with pytest.raises(KernelError, match="no type information") as absent:
        Kernel.open(path=built, btf=tmp_path / "absent")
    assert "leave --btf out" in str(absent.value.hint)
    broken.write_bytes(b"nothing")
    with pytest.raises(KernelError, match="holds no type information"):
        Kernel.open(path=built, btf=broken)


def test_callbacks_and_threads(kernel: Kernel, workload: Path) -> None:
    """A wait in another thread ends at once when a record hurries."""
    woken = threading.Event()

    def wait() -> None:
        kernel.wait(30_000)
        woken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    with FileIo(workload, "children", 0, 0, []) as work:
        kernel.watch(work.pid)
        work.go()
        assert woken.wait(10)
    waiter.join()
    assert len(kernel.drain()) >= 3
