"""Both sides agree on every byte, in the objects of both architectures."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import build_bpf
from tests.bpf.btf import Btf, elf_section
from tracer.kernel import layouts, wire
from tracer.kernel.layouts import Layout

ROOT = Path(__file__).parents[2]
MACHINES = {"x86_64": 1, "aarch64": 2, "x86_64.plain": 1, "aarch64.plain": 2}


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    return dict(zip(MACHINES, build_bpf.build(ROOT), strict=True))


@pytest.mark.parametrize("machine", MACHINES)
def test_names(objects: dict[str, Path], machine: str) -> None:
    assert objects[machine].name == f"ttft.{machine}.bpf.o"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "layout", (*layouts.RECORDS, *layouts.MAPS), ids=lambda layout: layout.name
)
def test_struct(objects: dict[str, Path], machine: str, layout: Layout) -> None:
    btf = Btf(objects[machine])
    assert btf.members(layout.name) == layout.members()
    assert btf.size(layout.name) == layout.size


@pytest.mark.parametrize("machine", MACHINES)
def test_enums(objects: dict[str, Path], machine: str) -> None:
    btf = Btf(objects[machine])
    kinds = {name: value for name, value in btf.enum("ttft_kind").items() if "COUNT" not in name}
    assert kinds == {f"TTFT_{name.upper()}": value for value, name in layouts.KINDS.items()}
    ops = {name: value for name, value in btf.enum("ttft_op").items() if "COUNT" not in name}
    assert ops == {f"TTFT_OP_{name.upper()}": value for value, name in wire.OPS.items()}
    assert btf.enum("ttft_loss")["TTFT_LOSS_COUNT"] == len(layouts.LOSSES)
    assert btf.enum("ttft_kind")["TTFT_KIND_COUNT"] <= layouts.KIND_SLOTS


@pytest.mark.parametrize("machine", MACHINES)
def test_every_record_is_compared(objects: dict[str, Path], machine: str) -> None:
    records = {f"ttft_{name}" for name in layouts.KINDS.values()}
    assert records <= {layout.name for layout in layouts.RECORDS}
    assert records <= Btf(objects[machine]).structs()


@pytest.mark.parametrize("machine", MACHINES)
def test_object_is_for_its_machine(objects: dict[str, Path], machine: str) -> None:
    options = elf_section(objects[machine], ".rodata.options")
    assert layouts.OPTIONS.packer.unpack(options)[0] == MACHINES[machine]
    assert struct.unpack_from("<H", objects[machine].read_bytes(), 18) == (247,)  # EM_BPF
    assert elf_section(objects[machine], "license") == b"Dual BSD/GPL\0"


def test_objects_differ(objects: dict[str, Path]) -> None:
    kinds = {name: "raw_tp" if "plain" in name else "tp_btf" for name in objects}
    code = {elf_section(path, f"{kinds[name]}/sys_enter") for name, path in objects.items()}
    assert len(code) == 4
