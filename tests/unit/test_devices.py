"""Device nodes of a host, runs of driver calls, and when the probes for them are wanted."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_armer import Made
from tracer.devices import facts
from tracer.devices import runs as device_runs
from tracer.devices.nodes import find, traces
from tracer.devices.table import table
from tracer.devices.watch import DeviceWatch
from tracer.errors import RecordError
from tracer.kernel import layouts, wire
from tracer.kernel.loader import GroupState, Kernel
from tracer.kernel.maps import Table as KernelTable
from tracer.kernel.wire import RawDevice
from tracer.records import DeviceCall, Exec, Exit

ANY = layouts.ANY_MINOR

DEVICES = """Character devices:
  1 mem
 10 misc
195 nvidia
226 drm
235 nvidia-caps
511 nvidia-uvm
243 kfd

Block devices:
  7 loop
195 odd
"""


def host(
    root: Path, *, devices: str = "Character devices:\n  1 mem\n", misc: str = "",
    cards: dict[str, tuple[str, str, str | None]] | None = None,
) -> Path:  # fmt: skip
    """/proc and /sys of a host; `cards`: node to (number, device, driver)."""
    for folder in ("proc", "sys/class/drm", "sys/class/accel", "sys/dev/char", "dev"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "proc/devices").write_text(devices)
    (root / "proc/misc").write_text(misc)
    for name, (number, device, driver) in (cards or {}).items():
        place = root / "sys/devices" / device
        node = place / name
        node.mkdir(parents=True)
        (node / "dev").write_text(number + "\n")
        (node / "device").symlink_to(place)
        if driver is not None and not (place / "driver").exists():
            (root / "sys/drivers" / driver).mkdir(parents=True, exist_ok=True)
            (place / "driver").symlink_to(root / "sys/drivers" / driver)
        kind = "accel" if number.startswith("261") else "drm"
        (root / "sys/class" / kind / name).symlink_to(node)
    return root


def seen(root: Path, *patterns: str) -> dict[tuple[int, int], tuple[str, str]]:
    nodes = find(table(), patterns, root)
    return {(r >> 20, r & ANY): (nodes.name(r), n.driver.name) for r, n in nodes.nodes.items()}


def test_a_host_without_an_accelerator(tmp_path: Path) -> None:
    assert seen(host(tmp_path)) == {}
    assert seen(tmp_path / "nothing") == {}


def test_majors_that_are_given_out(tmp_path: Path) -> None:
    """By their names in /proc/devices, of character devices alone."""
    nodes = find(table(), (), host(tmp_path, devices=DEVICES))
    named = {rdev >> 20: node.driver.name for rdev, node in nodes.nodes.items()}
    assert named == {195: "nvidia", 235: "nvidia-caps", 511: "nvidia-uvm", 243: "kfd"}
    assert all(rdev & ANY == ANY for rdev in nodes.nodes)
    numbers = [195 << 20, 195 << 20 | 255, 511 << 20, 511 << 20 | 1, 235 << 20 | 2, 243 << 20]
    assert [nodes.name(n) for n in numbers] == [
        "nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps2", "kfd"
    ]  # fmt: skip
    assert nodes.of(7 << 20) is None
    assert nodes.name(7 << 20 | 3) == "7:3"


def test_cards_by_the_driver_that_sysfs_names(tmp_path: Path) -> None:
    """A card that only shows has no render node, and is none of ours."""
    cards = {
        "card0": ("226:0", "pci0/bmc", "ast"),
        "card1": ("226:1", "pci0/gpu", "amdgpu"),
        "renderD128": ("226:128", "pci0/gpu", "amdgpu"),
        "renderD129": ("226:129", "platform/vgem", None),
        "renderD130": ("226:130", "pci0/new", "somethingnew"),
        "card2": ("226:2", "faux/vgem", "faux_driver"),
        "renderD131": ("226:131", "faux/vgem", "faux_driver"),
        "accel0": ("261:0", "pci0/npu", "ivpu"),
        "card1-DP-1": ("", "pci0/connector", None),
    }
    root = host(tmp_path, devices=DEVICES + "\n", cards=cards)
    (root / "proc/devices").write_text("Character devices:\n226 drm\n261 accel\n")
    assert seen(root) == {
        (226, 1): ("card1", "amdgpu"),
        (226, 128): ("renderD128", "amdgpu"),
        (226, 129): ("renderD129", "vgem"),
        (226, 130): ("renderD130", "drm"),
        (226, 2): ("card2", "vgem"),
        (226, 131): ("renderD131", "vgem"),
        (261, 0): ("accel0", "accel"),
    }


def test_wsl(tmp_path: Path) -> None:
    root = host(tmp_path, misc="229 fuse\n 60 dxg\n")
    assert seen(root) == {(10, 60): ("dxg", "dxg")}


@pytest.mark.parametrize(
    "text",
    ["", "Character devices:", "garbage\n\x00\n195\n x nvidia\n-1 kfd\n", "195 \n", "²  kfd"],
)
def test_odd_lists_of_devices(tmp_path: Path, text: str) -> None:
    assert seen(host(tmp_path, devices=text, misc=text)) == {}


def test_nodes_of_the_configuration(tmp_path: Path) -> None:
    """By sysfs, as a service may not see /dev; files, links to nowhere and others are no nodes."""
    root = host(tmp_path)
    for number, name in (("10:200", "net/tun"), ("240:0", "npu0"), ("240:1", "npu1"), ("9:9", "x")):
        (root / "sys/dev/char" / number).mkdir()
        (root / "sys/dev/char" / number / "uevent").write_text(f"MAJOR=1\nDEVNAME={name}\n")
    (root / "dev/npu7").write_text("not a device")
    (root / "dev/npu8").symlink_to("nowhere")
    assert seen(root, "/dev/npu*", "/dev/net/tun", "/dev/[") == {
        (10, 200): ("tun", "extra"), (240, 0): ("npu0", "extra"), (240, 1): ("npu1", "extra")
    }  # fmt: skip
    assert seen(root) == {}


def test_the_table_goes_before_the_configuration(tmp_path: Path) -> None:
    root = host(tmp_path, misc=" 60 dxg\n")
    (root / "sys/dev/char/10:60").mkdir()
    (root / "sys/dev/char/10:60/uevent").write_text("DEVNAME=dxg\n")
    assert seen(root, "/dev/*") == {(10, 60): ("dxg", "dxg")}


def test_a_pattern_for_nodes_that_are_known_by_their_major(tmp_path: Path) -> None:
    root = host(tmp_path, devices=DEVICES)
    (root / "sys/dev/char/195:255").mkdir()
    (root / "sys/dev/char/195:255/uevent").write_text("DEVNAME=nvidiactl\n")
    assert find(table(), ["/dev/nvidia*"], root).nodes == find(table(), (), root).nodes


def test_a_real_node_by_its_path() -> None:
    nodes = find(table(), ["/dev/null"])
    stat = os.stat("/dev/null")
    rdev = os.major(stat.st_rdev) << 20 | os.minor(stat.st_rdev)
    assert nodes.nodes[rdev].driver.name == "extra"


def test_a_change_leaves_a_trace(tmp_path: Path) -> None:
    root = host(tmp_path)
    before = traces((), root)
    assert traces((), root) == before
    (root / "proc/devices").write_text(DEVICES)
    assert traces((), root) != before


# --- runs -----------------------------------------------------------------------------------


class Map:
    """A table of the kernel."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def items(self) -> list[tuple[bytes, bytes]]:
        return list(self.rows.items())

    def put(self, key: bytes, value: bytes, flags: int = 0) -> None:
        self.rows[key] = value

    def delete(self, key: bytes) -> bool:
        return self.rows.pop(key, None) is not None


def run(
    tid: int, what: int = 12, *, begin: int = 1, finish: int = 1, tgid: int = 5, start: int = 10,
    end: int = 30, busy: int = 7, count: int = 3, rdev: int = 195 << 20,
) -> tuple[bytes, bytes]:  # fmt: skip
    key = layouts.DEVICE_RUN_KEY.packer.pack(tid, rdev, what, 0)
    value = layouts.DEVICE_RUN.packer.pack(
        begin, tgid, start, end, busy, 99, 1, count, 1, 0x2B, 0, finish
    )
    return key, value


def named(raw: RawDevice) -> DeviceCall:
    return device_runs.record(raw, "nvidia0", "nvidia")


def make_runs(*rows: tuple[bytes, bytes]) -> tuple[device_runs.DeviceRuns, Map, Map]:
    runs, holders = Map(), Map()
    runs.rows.update(rows)
    made = device_runs.DeviceRuns(cast(KernelTable, runs), cast(KernelTable, holders), named)
    return made, runs, holders


def test_a_run_that_grows_is_told_when_it_changed() -> None:
    tid = os.getpid()
    runs, rows, _ = make_runs(run(tid, tgid=tid))
    (call,) = runs.sweep(40)
    assert call == DeviceCall(
        ts_ns=10, end_ns=30, tgid=tid, tid=tid, device="nvidia0", driver="nvidia", what="query",
        count=3, busy_ns=7, bytes=99, failed=1, number=0x2B,
    )  # fmt: skip
    assert runs.sweep(50) == []
    rows.rows.update([run(tid, tgid=tid, end=60, count=4, begin=2, finish=2)])
    assert [c.count for c in runs.sweep(70)] == [4]
    assert len(rows.rows) == 1


def test_runs_of_dead_threads_are_taken_out() -> None:
    runs, rows, _ = make_runs(run(2**22 + 1, tgid=2**22 + 1))
    assert len(runs.sweep(40)) == 1
    assert len(rows.rows) == 1
    assert runs.sweep(2_000_000_000) == []
    assert rows.rows == {}


def test_the_end_of_a_process_tells_its_runs_once() -> None:
    runs, rows, holders = make_runs(run(6), run(7), run(8, tgid=9))
    holders.rows[layouts.DEVICE_HOLDER.packer.pack(5, 1)] = b""
    holders.rows[layouts.DEVICE_HOLDER.packer.pack(9, 1)] = b""
    assert sorted(c.tid for c in runs.end_of(5)) == [6, 7]
    assert runs.end_of(5) == []
    assert [c.tid for c in runs.sweep(40)] == [8]
    assert len(rows.rows) == len(holders.rows) == 1


@pytest.mark.parametrize(
    "row", [run(6, begin=2), run(6, count=0), run(6, what=99), run(6, start=31)]
)
def test_a_copy_taken_during_an_update_or_an_odd_one(row: tuple[bytes, bytes]) -> None:
    runs, _, _ = make_runs(row)
    assert runs.sweep(40) == []


def test_busy_is_never_longer_than_the_run() -> None:
    runs, _, _ = make_runs(run(os.getpid(), tgid=os.getpid(), busy=1 << 60))
    assert [c.busy_ns for c in runs.sweep(40)] == [20]


def pack(what: int = 1, flags: int = 0, end: int = 20, count: int = 1, failed: int = 0) -> bytes:
    return layouts.DEVICE.packer.pack(
        10, 5, 6, 17, 0, flags, end, 10, 0, 195 << 20 | 255, 1, count, failed, what, 0
    )


def test_records_of_the_ring() -> None:
    assert wire.decode(pack(flags=3)) == RawDevice(
        ts_ns=10, end_ns=20, tgid=5, tid=6, rdev=195 << 20 | 255, driver=1, what="open", count=1,
        failed=0, bytes=0, busy_ns=10, number=0, first=True,
    )  # fmt: skip
    raw = wire.decode(pack(flags=7, failed=9))
    assert isinstance(raw, RawDevice) and raw.unknown and raw.failed == 1
    for odd in (pack(what=13), pack(end=9), pack() + b"\0", pack()[:-1]):
        with pytest.raises(RecordError):
            wire.decode(odd)


@given(st.binary(min_size=layouts.DEVICE.size, max_size=layouts.DEVICE.size))
def test_any_bytes_of_a_record(data: bytes) -> None:
    odd = data[:16] + struct.pack("<H", 17) + data[18:]
    try:
        raw = wire.decode(odd)
    except RecordError:
        return
    assert isinstance(raw, RawDevice)
    assert 0 <= raw.busy_ns <= raw.end_ns - raw.ts_ns
    assert 0 <= raw.failed <= raw.count


# --- the watch ------------------------------------------------------------------------------


_NONE = SimpleNamespace(program="none")


class FakeKernel:
    """Its maps, and a program of each group that it could have."""

    def __init__(self, *groups: str) -> None:
        self.maps: dict[str, Map] = {}
        self._programs = {group: SimpleNamespace(program=group) for group in groups}
        self.probes = SimpleNamespace(
            programs=self._programs,
            selection=SimpleNamespace(group=lambda group: [self._programs.get(group, _NONE)]),
        )

    def table(self, name: str) -> Map:
        return self.maps.setdefault(name, Map())


def watch(
    root: Path, kernel: FakeKernel | None = None, **kw: Any
) -> tuple[DeviceWatch, FakeKernel]:
    kernel = kernel or FakeKernel("files", "devices")
    return DeviceWatch(cast(Kernel, kernel), table(), root=root, **kw), kernel


def started(tgid: int = 5) -> Exec:
    return Exec(ts_ns=1, tgid=tgid, comm="llama-server")


def test_nothing_is_wanted_without_a_device(tmp_path: Path) -> None:
    made, kernel = watch(host(tmp_path))
    assert made.note([started()]) == []
    assert not made.wanted
    assert kernel.maps["device_runs"].rows == {} and "device_calls" not in kernel.maps


def test_nothing_is_wanted_without_a_watched_process(tmp_path: Path) -> None:
    made, kernel = watch(host(tmp_path, devices=DEVICES))
    assert made.refresh()
    assert not made.wanted
    made.note([started()])
    assert made.wanted
    assert len(kernel.maps["device_calls"].rows) == sum(len(d.calls) for d in table().drivers)
    assert struct.pack("<I", 195 << 20 | ANY) in kernel.maps["device_nodes"].rows


def test_a_driver_that_comes_later_and_one_that_goes(tmp_path: Path) -> None:
    made, kernel = watch(host(tmp_path))
    made.note([started()])
    (tmp_path / "proc/devices").write_text(DEVICES)
    made.note([Exit(ts_ns=2, tgid=77, code=0)])  # modprobe has done its work
    assert made.wanted
    (tmp_path / "proc/devices").write_text("Character devices:\n243 kfd\n")
    made.note([started(6)])
    assert list(kernel.maps["device_nodes"].rows) == [struct.pack("<I", 243 << 20 | ANY)]


def test_an_unknown_device_may_be_new(tmp_path: Path) -> None:
    """nvidia-uvm is loaded on demand, under a major that nobody knew before."""
    made, _ = watch(host(tmp_path))
    made.note([started()])
    raw = wire.device(
        start=1, end=2, busy=1, size=0, tgid=5, tid=5, rdev=511 << 20, driver=0, count=1,
        failed=0, what=1, number=0, flags=wire.DEVICE_FIRST | wire.DEVICE_UNKNOWN,
    )  # fmt: skip
    assert made.raw(raw) == []
    (tmp_path / "proc/devices").write_text(DEVICES)
    (call,) = made.raw(raw)
    assert isinstance(call, DeviceCall)
    assert (call.device, call.driver, call.first) == ("nvidia-uvm", "nvidia-uvm", True)


@pytest.mark.parametrize("off", [True, False])
def test_without_the_programs_all_of_it_does_nothing(tmp_path: Path, off: bool) -> None:
    kernel = FakeKernel("files", *(("devices",) if off else ()))
    made, _ = watch(host(tmp_path, devices=DEVICES), kernel, off=off)
    assert made.note([started()]) == [] and not made.refresh() and not made.wanted
    assert made.sweep(1) == []
    assert kernel.maps == {}


# --- beside the file probes -------------------------------------------------------------------


def test_the_group_comes_and_goes_with_the_file_probes() -> None:
    made = Made()
    (armed,) = made.armer.bring("devices")
    assert (armed.group, armed.on, armed.why) == ("devices", True, "start")
    assert made.armer.bring("devices") == []
    made.off()
    assert made.kernel.did[:3] == ["+devices", "-files", "-devices"]


def test_brought_while_the_file_probes_are_off_it_waits_for_them() -> None:
    made = Made()
    made.off()
    made.kernel.did.clear()
    assert made.armer.bring("devices") == []
    made.step(started())
    assert made.kernel.did == ["+files", "+devices"]


def test_one_that_cannot_be_attached_is_left_out() -> None:
    made = Made()
    made.kernel.full = True
    assert made.armer.bring("devices") == []


# --- what is said of it -------------------------------------------------------------------------


def test_doctor_names_drivers_once(tmp_path: Path) -> None:
    assert facts.facts((), host(tmp_path / "none")) == []
    cards: dict[str, tuple[str, str, str | None]] = {
        "renderD128": ("226:128", "pci0/gpu", "amdgpu"),
        "renderD129": ("226:129", "pci1/gpu", "amdgpu"),
    }
    root = host(tmp_path / "some", devices=DEVICES, cards=cards)
    (fact,) = facts.facts((), root)
    assert (fact.name, fact.ok) == ("driver calls", None)
    assert fact.value.startswith("of nvidia, nvidia-uvm, nvidia-caps, kfd, amdgpu; launches")


def test_status_says_why_it_is_off(tmp_path: Path) -> None:
    off = GroupState("devices", False, False, "not needed now", "calls")
    other = GroupState("minor", False, False, "not needed now", "faults")
    made, _ = watch(host(tmp_path))
    assert made.state(off) == replace(off, off_because="this host has no accelerator", unseen=None)
    assert made.state(other) is other
    (tmp_path / "proc/devices").write_text(DEVICES)
    made.refresh()
    assert (made.wanted, made.state(off).off_because) == (False, "no server is watched")
    made.note([started()])
    assert made.wanted
    assert made.state(off) is off
