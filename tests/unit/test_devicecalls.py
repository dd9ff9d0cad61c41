"""The table of driver calls: what it says, what it refuses, and that docs and BPF say the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from scripts import docs
from tracer.devices.table import DEVICE_CALLS, DriverCall, Size, Table, read, table
from tracer.errors import ConfigError
from tracer.kernel import layouts
from tracer.kernel.wire import DEVICE_WHATS
from tracer.records import DeviceWhat

ROOT = Path(__file__).parents[2]


def row(driver: str, number: int, sub: int | None = None) -> DriverCall:
    (found,) = (c for c in table()[driver].calls if (c.number, c.sub) == (number, sub))
    return found


def one(line: str, more: str = "") -> Table:
    return read(f'[[driver]]\nname = "x"\nsource = "s"\n{more}\n[driver.calls]\n{line}\n')


def test_known_rows() -> None:
    """A few, against the headers they are from."""
    assert row("nvidia", 0x2B, 0x40) == DriverCall(
        0x2B, 0x40, "RM_ALLOC:MEMORY_LOCAL", "allocate", Size("pointed", 64, 16), None, False
    )
    assert row("nvidia", 0x27, 0x71).size == Size("u64", 32, 0, 1)
    assert row("nvidia", 0xD3).wraps
    assert row("nvidia-uvm", 51) == DriverCall(
        51, None, "MIGRATE", "transfer", Size("u64", 8), None, False
    )
    assert row("kfd", 0x16).by == (36, 0x1C)
    assert row("amdgpu", 0x44).what == "submit"
    assert row("vgem", 0xB2).size == Size("u64", 24, 0, 0, True)
    assert row("i915", 0x5D).what == "transfer"


def test_drivers_that_share_calls() -> None:
    core = {c.number for c in table()["drm"].own}
    for driver in table().drivers:
        if driver.entry.also:
            assert core <= {c.number for c in driver.calls}
    assert table().drm("amdgpu").name == "amdgpu"
    assert table().drm("nvidia").name == "drm"
    assert table().drm("virtio_gpu").name == "virtio-gpu"


def test_every_class_but_the_unknown_one_is_used() -> None:
    used = {c.what for d in table().drivers for c in d.calls}
    assert used == set(get_args(DeviceWhat)) - {"other"}


def test_keys_are_one_to_one() -> None:
    keys = [key for key, _ in table().calls()]
    assert len(keys) == len(set(keys)) == sum(len(d.calls) for d in table().drivers)
    assert {len(key) for key in keys} == {layouts.DEVICE_KEY.size}
    assert {len(spec) for _, spec in table().calls()} == {layouts.DEVICE_SPEC.size}


def test_names_of_nodes() -> None:
    nvidia = table()["nvidia"]
    assert [nvidia.node_name(n) for n in (0, 3, 254, 255)] == [
        "nvidia0", "nvidia3", "nvidia-modeset", "nvidiactl"
    ]  # fmt: skip
    assert table()["nvidia-uvm"].node_name(1) == "nvidia-uvm-tools"
    assert table()["nvidia-caps"].node_name(2, "nvidia-nvswitch") == "nvidia-nvswitch2"


def test_docs_are_of_this_table() -> None:
    """python scripts/docs.py makes them."""
    assert (ROOT / "docs" / "driver-calls.md").read_text() == docs.driver_calls()
    text = docs.driver_calls()
    for driver in table().drivers:
        assert all(f"| {call.name} | `{call.what}` |" in text for call in driver.own)


def test_bpf_has_these_classes_and_sizes() -> None:
    """In this order; tests/bpf/test_layout.py holds the structs."""
    classes = re.search(r"enum ttft_device_what \{(.*?)\};", _source("records.h"), re.DOTALL)
    sizes = re.search(r"enum ttft_device_size \{(.*?)\};", _source("maps.h"), re.DOTALL)
    assert classes is not None and sizes is not None
    found = re.findall(r"TTFT_DEVICE_(\w+) = (\d+)", classes[1])
    assert found == [(w.upper(), str(n)) for n, w in enumerate(DEVICE_WHATS)] + [
        ("WHAT_COUNT", str(len(DEVICE_WHATS)))
    ]
    kinds = re.findall(r"TTFT_SIZE_(\w+) = (\d+)", sizes[1])
    assert kinds == [(w.upper(), str(n)) for n, w in enumerate(layouts.DEVICE_SIZES)]


def _source(name: str) -> str:
    return (ROOT / "bpf" / name).read_text()


def test_lines_of_each_form() -> None:
    forms = {
        "A query": Size(),
        "A allocate bytes=@8": Size("u64", 8),
        "A allocate bytes=u32@8": Size("u32", 8),
        "A pin bytes=@32+1": Size("u64", 32, 0, 1),
        "A allocate bytes=@16->@64": Size("pointed", 64, 16),
        "A pin bytes=@16->@24+1": Size("pointed", 24, 16, 1),
        "A allocate bytes=out@24": Size("u64", 24, 0, 0, True),
    }
    for line, size in forms.items():
        (call,) = one(f'"1" = "{line}"').drivers[0].calls
        assert call.size == size
    (call,) = one('"0x10" = "A query by=@12&0xf wraps"').drivers[0].calls
    assert (call.number, call.by, call.wraps) == (16, (12, 15), True)


@pytest.mark.parametrize(
    "line",
    [
        '"1" = "A"', '"1" = "a query"', '"1" = "A nonsense"', '"1" = "A other"',
        '"1" = "A allocate bytes="', '"1" = "A allocate bytes=8"', '"1" = "A allocate bytes=@"',
        '"1" = "A allocate bytes=@-8"', '"1" = "A allocate bytes=@99999"',
        '"1" = "A allocate bytes=out@8+1"', '"1" = "A query by=12"', '"1" = "A query by=@1&x"',
        '"1" = "A query wraps bytes=@8"', '"1" = "A query  "', '"" = "A query"',
        '"-1" = "A query"', '"0x" = "A query"', '"1/" = "A query"', '"1.5" = "A query"',
        '"0x100" = "A query"', '"4294967296" = "A query"', '"1/2" = "A query"',
        '"1" = "A query"\n"0x1" = "B query"', '"1" = "A query by=@4"\n"1/2" = "B query by=@8"',
        '"1" = "A query by=@4"\n"1/2" = "B query wraps"', '"1" = 5', '"1" = ["A query"]',
        "1 = ", "\0", '"1" = "A query\\u0000"',
    ],
)  # fmt: skip
def test_lines_that_mean_nothing(line: str) -> None:
    with pytest.raises(ConfigError):
        one(line)


@pytest.mark.parametrize(
    "more",
    ['also = "y"', "major = 0", "major = 4096", 'major = "195"', 'type = "dd"', 'type = ""',
     "devices = 5", "unknown = 1", 'drm = [1]', "whole = 1"],
)  # fmt: skip
def test_drivers_that_mean_nothing(more: str) -> None:
    with pytest.raises(ConfigError):
        one('"1" = "A query"', more)


def test_numbers_of_32_bits_where_all_of_them_count() -> None:
    (call,) = one('"0x30000001" = "A context"', "whole = true").drivers[0].calls
    assert call.number == 0x30000001


def test_one_name_once() -> None:
    with pytest.raises(ConfigError, match="two drivers"):
        read('[[driver]]\nname = "x"\nsource = "s"\n[[driver]]\nname = "x"\nsource = "s"\n')


def test_too_many_calls() -> None:
    lines = "\n".join(f'"{n}" = "A query"' for n in range(2049))
    with pytest.raises(ConfigError, match="2048"):
        one(lines, "whole = true")


def test_the_file_says_where_it_is_from() -> None:
    assert all(driver.entry.source for driver in table().drivers)
    assert "doorbell" in DEVICE_CALLS.read_text()
