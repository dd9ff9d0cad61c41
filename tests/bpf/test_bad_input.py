"""Kernels that lack something, made from this one's types; and processes that may too little."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bpf.watching import Watching, key_of
from tests.workloads.fileio import drop_cache, make_file
from tracer.errors import KernelError
from tracer.kernel import features, libbpf, perf
from tracer.kernel.loader import Kernel
from tracer.kernel.objectfile import object_path

pytestmark = pytest.mark.kernel
MIB = 1 << 20
ROOT = Path(__file__).parents[2]
Doctored = Callable[..., Path]


@pytest.fixture
def types(tmp_path: Path) -> Doctored:
    """This kernel's types in a file, as if none of `names` were in them."""

    def write(*names: str) -> Path:
        data = features.BTF.read_bytes()
        for name in names:
            old = b"\0%s\0" % name.encode()
            assert old in data
            data = data.replace(old, b"\0%s~\0" % name.encode()[:-1])
        path = tmp_path / "types"
        path.write_bytes(data)
        return path

    return write


def lost_groups(kernel: Kernel) -> dict[str, tuple[str | None, str | None]]:
    off = {g.group: (g.off_because, g.unseen) for g in kernel.groups() if not g.attached}
    fine = ("not needed now", "off in the configuration")
    return {name: told for name, told in off.items() if told[0] not in fine}


def test_types_from_a_file(types: Doctored, built: Path, workload: Path, disk: Path) -> None:
    """As for a kernel that has none itself: everything works."""
    path = make_file(disk / "cold", MIB)
    drop_cache(path)
    with Kernel.open(btf=types(), off=("sockets",)) as kernel:
        assert lost_groups(kernel) == {}
        seen = Watching.run(kernel, workload, "reads", 5 * 16, 65536, [path])
        assert seen.pages[key_of(path)] == MIB // 4096


def test_no_types_of_its_own(
    types: Doctored, built: Path, workload: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused with what to do; with a file the object does that asks the kernel for none."""
    file = types()
    monkeypatch.setattr(features, "BTF", disk / "absent")
    with pytest.raises(KernelError, match="no type information") as refused:
        Kernel.open()
    assert "--btf FILE" in str(refused.value.hint)
    path = make_file(disk / "cold", MIB)
    drop_cache(path)
    with Kernel.open(btf=file, off=("sockets",)) as kernel:
        seen = Watching.run(kernel, workload, "reads", 5 * 16, 65536, [path])
        assert seen.pages[key_of(path)] == MIB // 4096
    handle = libbpf.open_object(str(object_path(plain=True)))
    kinds = {section.partition("/")[0] for _, section, _ in libbpf.programs(handle)}
    libbpf.close_object(handle)
    assert kinds == {"raw_tp", "perf_event", "cgroup_skb"}
    told = {fact.name: fact.value for fact in features.facts(str(file))}
    assert told["BTF"] == str(file)
    assert told["BPF object"] == "plain (this kernel lacks types of its own (BTF))"


def test_doctor_with_types_from_a_file(types: Doctored, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from tracer.cli import main; main()", "doctor", "--json"]
    found = {}
    for place in (types(), tmp_path / "absent"):
        done = subprocess.run(
            [*command, "--btf", place], cwd=ROOT, capture_output=True, text=True, check=False
        )
        facts = {fact["name"]: fact for fact in json.loads(done.stdout)["facts"]}
        found[place.name] = (done.returncode, facts["BTF"]["value"], facts["BTF"]["ok"])
    assert found == {
        "types": (0, str(tmp_path / "types"), True),
        "absent": (1, f"no {tmp_path / 'absent'}", False),
    }


def test_a_tracepoint_is_missing(types: Doctored, built: Path) -> None:
    btf = types("btf_trace_mm_filemap_add_to_page_cache")
    with Kernel.open(btf=btf, off=("sockets",)) as kernel:
        why = "this kernel lacks tp_btf/mm_filemap_add_to_page_cache"
        assert kernel.probes.missing == {"ttft_insert": why}
        assert lost_groups(kernel)["cache"] == (why, "bytes from disk")
    told = {fact.name: fact for fact in features.facts(str(btf))}
    fact = told["tracepoint mm_filemap_add_to_page_cache"]
    assert (fact.value, fact.ok, fact.missing) == ("missing", None, "bytes from disk")
    assert fact.advice


def test_part_of_a_group_is_missing(types: Doctored, built: Path) -> None:
    with Kernel.open(btf=types("btf_trace_signal_generate"), off=("sockets",)) as kernel:
        why = "this kernel lacks tp_btf/signal_generate"
        assert lost_groups(kernel)["lifecycle"] == (why, "who stopped a process")
        assert "lifecycle" in kernel.probes.attached


def test_a_needed_tracepoint_is_missing(types: Doctored, built: Path) -> None:
    with pytest.raises(KernelError, match="lacks tp_btf/sched_process_fork, needed for child"):
        Kernel.open(btf=types("btf_trace_sched_process_fork"))


def test_another_variant_where_tracepoints_are_missing(types: Doctored, built: Path) -> None:
    btf = types("btf_trace_mm_filemap_map_pages")
    with Kernel.open(btf=btf, off=("sockets",), variant="tracepoint") as kernel:
        assert kernel.probes.selection.choices["faults"].variant == "perf"
        assert "faults" not in lost_groups(kernel)


def test_a_tracepoint_of_another_format(types: Doctored, built: Path) -> None:
    """A field that a program reads is not there: that one is left out, by name and reason."""
    with Kernel.open(btf=types("mapping"), off=("sockets",)) as kernel:
        assert set(kernel.probes.missing) == {"ttft_insert"}
        assert kernel.probes.missing["ttft_insert"].startswith("this kernel refuses it: ")
        assert lost_groups(kernel)["cache"][1] == "bytes from disk"
        told = features.facts(loaded=kernel.probes.selection)
    fact = next(f for f in told if f.name == "tracepoint mm_filemap_add_to_page_cache")
    assert fact.ok is None and fact.value.startswith("this kernel refuses it")


def test_a_needed_field_is_missing(types: Doctored, built: Path) -> None:
    with pytest.raises(KernelError, match=r"needed for requests .*this kernel refuses it"):
        Kernel.open(btf=types("skc_net"))


def test_perf_events_are_refused(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: int, tid: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(perf, "open_event", refuse)
    with Kernel.open(off=("sockets",), variant="tracepoint") as kernel:
        why, unseen = lost_groups(kernel)["faults"]
        assert "perf events are refused: Permission denied (kernel.perf_event_paranoid" in str(why)
        assert "faults that read weights" in str(unseen)
    told = [f for f in features.facts() if f.name == "program ttft_fault_major"]
    assert [f.missing for f in told] == (
        ["faults that read weights"] if features.fentry_refusal() else []
    )


def test_too_little_locked_memory(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before 5.11 count maps so; a map that cannot be made is refused as there."""
    real = features.detect()

    def older(*_: object, **__: object) -> features.Features:
        fields = {name: getattr(real, name) for name in real.__dataclass_fields__}
        return features.Features(**fields | {"locks_maps": True})

    def refuse(_: int) -> None:
        raise libbpf.failure("the kernel refused the BPF object", 1)

    monkeypatch.setattr(features, "detect", older)
    monkeypatch.setattr(features, "locked_memory", lambda: 65536)
    monkeypatch.setattr(libbpf, "load_object", refuse)
    with pytest.raises(KernelError, match=r"too little locked memory .*: 64 KiB") as caught:
        Kernel.open()
    assert "LimitMEMLOCK" in str(caught.value.hint)
    fact = next(f for f in features.facts() if f.name == "locked memory")
    assert (fact.value, fact.ok, fact.missing) == ("64 KiB", False, "everything")
