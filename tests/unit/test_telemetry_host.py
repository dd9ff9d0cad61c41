"""What is told of devices by /proc and /sys, on hosts made of folders."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.telemetry_host import BUS, ZONE, Host
from tracer.records import Holder, Telemetry
from tracer.telemetry import fdinfo, kernel, texts
from tracer.telemetry.facts import facts
from tracer.telemetry.held import Device, Finder
from tracer.telemetry.places import Places, present
from tracer.telemetry.reader import Reader

RENDER = (226, 128)
LINK = {
    "current_link_speed": "16.0 GT/s PCIe\n",
    "current_link_width": "16\n",
    "max_link_speed": "16.0 GT/s PCIe\n",
    "max_link_width": "16\n",
}
AMD = LINK | {
    "gpu_busy_percent": "98\n",
    "mem_info_vram_used": "5368709120\n",
    "mem_info_vram_total": "8589934592\n",
    "pp_dpm_sclk": "0: 500Mhz \n1: 800Mhz *\n2: 2100Mhz \n",
    "pp_dpm_mclk": "0: 96Mhz \n1: 1000Mhz *\n",
    "power_dpm_force_performance_level": "auto\n",
}
FDINFO = """pos:\t0
drm-driver:\tamdgpu
drm-client-id:\t7
drm-pdev:\t0000:01:00.0
drm-memory-vram:\t4096 KiB
drm-memory-gtt: \t9999 KiB
drm-engine-gfx:\t1000 ns
drm-engine-compute:\t23 ns
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def reading(host: Host, *tgids: int) -> Telemetry:
    """The one device that these processes hold."""
    reader = Reader(host.places, pytest.fail, lambda what: None)
    (found,) = reader.read(tgids)
    return found


def held(host: Host) -> Telemetry:
    """The device that process 300 holds by its render node."""
    host.holds(300, 9, "/dev/dri/renderD128", RENDER)
    return reading(host, 300)


# --- who holds what --------------------------------------------------------------


def test_devices_are_told_by_their_numbers(host: Host) -> None:
    host.nvidia(minor=3, bus="0000:65:00.0")
    host.drm("amdgpu", {})
    host.holds(300, 4, "/dev/nvidia3", (195, 3))
    host.holds(300, 5, "/dev/nvidiactl", (195, 255))
    host.holds(300, 6, "/dev/nvidia-uvm", (511, 0))
    host.holds(300, 7, "/dev/dri/renderD128", RENDER)
    host.holds(301, 8, "/dev/dri/card1", RENDER)
    host.holds(301, 9, "/models/nvidia0", None)
    host.holds(301, 10, "pipe:[77]", None)
    host.holds(301, 11, "/dev/nvidia9", (1, 3))
    found = Finder(host.places).held([300, 301, 302])
    assert {d.key: (d.driver, users) for d, users in found.items()} == {
        "0000:65:00.0": ("nvidia", {300: [4]}),
        BUS: ("amdgpu", {300: [7], 301: [8]}),
    }


def test_a_node_that_only_is_there_is_no_device(host: Host) -> None:
    """cuInit makes nvidiactl as root even where no driver is."""
    host.holds(300, 4, "/dev/nvidiactl", (195, 255))
    assert Finder(host.places).held([300]) == {}
    assert not present(host.places)


def test_a_device_without_an_address(host: Host) -> None:
    host.holds(300, 4, "/dev/nvidia0", (195, 0))
    ((device, users),) = Finder(host.places).held([300]).items()
    assert (device.key, device.address, users) == ("nvidia0", None, {300: [4]})


def test_a_device_that_sleeps_is_not_asked(host: Host) -> None:
    host.drm("amdgpu", AMD | {"power/runtime_status": "suspended\n"})
    host.holds(300, 9, "/dev/dri/renderD128", RENDER)
    reader = Reader(host.places, pytest.fail, lambda what: None)
    assert reader.read([300]) == []
    host.write(f"sys/{ZONE}/{BUS}/power/runtime_status", "active\n")
    assert len(reader.read([300])) == 1


# --- drivers ---------------------------------------------------------------------


def test_amd(host: Host) -> None:
    host.drm("amdgpu", AMD)
    host.write("proc/300/fdinfo/9", FDINFO)
    found = held(host)
    assert found == Telemetry(
        ts_ns=found.ts_ns,
        device=BUS,
        source="amdgpu",
        holders=(Holder(tgid=300, memory_bytes=4 << 20, engines_ns=1023),),
        busy_percent=98,
        memory_used_bytes=5 << 30,
        memory_total_bytes=8 << 30,
        clock_mhz=800,
        clock_max_mhz=2100,
        memory_clock_mhz=1000,
        memory_clock_max_mhz=1000,
        link_generation=4,
        link_width=16,
        link_generation_max=4,
        link_width_max=16,
    )


@pytest.mark.parametrize(("level", "limits"), [("low", ("setting",)), ("profile_peak", None)])
def test_an_amd_device_with_a_forced_level(
    host: Host, level: str, limits: tuple[str, ...] | None
) -> None:
    host.drm("amdgpu", AMD | {"power_dpm_force_performance_level": level})
    found = held(host)
    assert (found.profile, found.limits) == (level, limits)


def test_a_slow_slot_shows_above_a_card_that_has_a_switch(host: Host) -> None:
    host.drm("amdgpu", LINK)
    for name, text in {**LINK, "current_link_width": "4", "current_link_speed": "2.5 GT/s"}.items():
        host.write(f"sys/{ZONE}/{name}", text)
    found = held(host)
    assert (found.link_generation, found.link_width) == (1, 4)
    assert (found.link_generation_max, found.link_width_max) == (4, 16)


I915 = {
    "drm/card0/gt/gt0/rps_act_freq_mhz": "600\n",
    "drm/card0/gt/gt0/rps_RP0_freq_mhz": "2400\n",
    "drm/card0/gt/gt0/rps_max_freq_mhz": "2400\n",
    "drm/card0/gt/gt0/throttle_reason_status": "1\n",
    "drm/card0/gt/gt0/throttle_reason_pl1": "1\n",
    "drm/card0/gt/gt0/throttle_reason_thermal": "1\n",
    "drm/card0/gt/gt0/throttle_reason_prochot": "0\n",
    "drm/card0/gt/gt0/throttle_reason_new_one": "1\n",
}
OLD_I915 = {
    "drm/card0/gt_act_freq_mhz": "300\n",
    "drm/card0/gt_RP0_freq_mhz": "1100\n",
    "drm/card0/gt_max_freq_mhz": "800\n",
}
XE = {
    "tile0/gt0/freq0/act_freq": "0\n",
    "tile0/gt0/freq0/rp0_freq": "2000\n",
    "tile0/gt0/freq0/max_freq": "2000\n",
    "tile0/gt0/freq0/throttle/status": "0\n",
    "tile0/gt0/freq0/throttle/reason_pl1": "0\n",
}


@pytest.mark.parametrize(
    ("driver", "files", "clock", "most", "limits"),
    [
        ("i915", I915, 600, 2400, ("other", "power", "thermal")),
        ("i915", OLD_I915, 300, 1100, ("setting",)),
        ("xe", XE, None, 2000, ("idle",)),
        ("xe", XE | {"tile0/gt0/freq0/act_freq": "1900"}, 1900, 2000, ()),
        ("vgem", {}, None, None, None),
    ],
)
def test_intel_and_others(
    host: Host, driver: str, files: dict[str, str], clock: int | None, most: int | None,
    limits: tuple[str, ...] | None,
) -> None:  # fmt: skip
    host.drm(driver, files)
    found = held(host)
    assert (found.source, found.clock_mhz, found.clock_max_mhz) == (driver, clock, most)
    assert found.limits == limits


# --- who holds it no more ----------------------------------------------------------


def test_who_closed_a_device_is_told_once(host: Host) -> None:
    """Also where nobody has it open any more: then it is not asked for that."""
    host.drm("amdgpu", AMD)
    for tgid in (300, 301):
        host.holds(tgid, 9, "/dev/dri/renderD128", RENDER)
    steps: list[str] = []
    reader = Reader(host.places, pytest.fail, steps.append)
    assert gone(reader.read((300, 301))) == {}
    host.lets_go(300)
    (found,) = reader.read((300, 301))
    assert [h.tgid for h in found.holders if not h.gone] == [301]
    assert found.clock_mhz == 800
    assert gone([found]) == {300: (0, BUS)}
    assert gone(reader.read((300, 301))) == {}
    host.lets_go(301)
    reader.release()
    steps.clear()
    (found,) = reader.read((300, 301))
    assert replace(found, ts_ns=0) == Telemetry(
        ts_ns=0, device=BUS, source="amdgpu",
        holders=(Holder(tgid=301, memory_bytes=0, gone=True),),
    )  # fmt: skip
    assert steps == ["/proc/PID/fd"]
    assert reader.read((300, 301)) == []


def test_who_was_not_asked_for_has_let_nothing_go(host: Host) -> None:
    """A device that sleeps is open all the same; a process that ended is nobody's to ask."""
    host.drm("amdgpu", AMD)
    for tgid in (300, 301, 302):
        host.holds(tgid, 9, "/dev/dri/renderD128", RENDER)
    reader = Reader(host.places, pytest.fail, lambda what: None)
    reader.read((300, 301, 302))
    assert gone(reader.read((300,))) == {}
    host.write(f"sys/{ZONE}/{BUS}/power/runtime_status", "suspended\n")
    assert reader.read((300, 301)) == []
    shutil.rmtree(host.proc / "302")
    host.lets_go(301)
    assert gone(reader.read((300,))) == {}
    assert gone(reader.read((300, 301))) == {301: (0, BUS)}
    assert gone(reader.read((300, 301, 302))) == {}


def gone(found: Iterable[Telemetry]) -> dict[int, tuple[int | None, str]]:
    return {h.tgid: (h.memory_bytes, r.device) for r in found for h in r.holders if h.gone}


# --- fdinfo -----------------------------------------------------------------------


def test_descriptors_of_one_client_count_once(host: Host) -> None:
    for fd in (9, 10):
        host.write(f"proc/300/fdinfo/{fd}", FDINFO)
    host.write("proc/300/fdinfo/11", FDINFO.replace("client-id:\t7", "client-id:\t8"))
    found = fdinfo.holder(host.proc, 300, [9, 10, 11, 12])
    assert found == Holder(tgid=300, memory_bytes=8 << 20, engines_ns=2046)


@pytest.mark.parametrize(
    ("lines", "memory"),
    [
        ("drm-total-local0:\t12 MiB\ndrm-resident-local0:\t8 MiB\n", 8 << 20),
        ("drm-total-vram0:\t12 MiB\ndrm-total-system0:\t90 MiB\n", 12 << 20),
        ("drm-memory-vram:\t512\n", 512),
        ("drm-memory-vram:\t1 GiB\n", None),
        ("drm-memory-vram:\t-5 KiB\n", None),
        ("drm-memory-vram:\t99999999999999999999 KiB\n", None),
        ("drm-memory-vram:\t9999999999999999999 MiB\n", None),
        ("drm-cycles-rcs:\t5\n", None),
    ],
)
def test_memory_of_the_device_itself(host: Host, lines: str, memory: int | None) -> None:
    host.write("proc/300/fdinfo/9", "drm-client-id:\t1\n" + lines)
    assert fdinfo.holder(host.proc, 300, [9]) == Holder(tgid=300, memory_bytes=memory)


# --- what anybody may have written there ---------------------------------------------

HOSTILE = [
    "", "\0" * 9000, "-1", "1e9", "NaN", "99999999999999999999999", "\x1b[2J\x1b[31m1",
    "0x10", "\xff\xfe", "1: 99999999999Mhz *", "1: 800Mhz *\n" * 4000, "'; DROP TABLE x; --",
    "16.0 GT/s PCIe " * 5000, "Unknown", "4294967295", "18446744073709551615", "%s%n",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_no_figures(host: Host, text: str) -> None:
    """A figure is within its bounds, or unknown; a name is printable."""
    for driver, files in (("amdgpu", AMD), ("i915", I915), ("xe", XE)):
        where = Host(host.proc.parent / driver)
        where.drm(driver, dict.fromkeys(files, text))
        where.write("proc/300/fdinfo/9", text)
        found = held(where)
        assert found.device == BUS
        assert found.link_width is None or found.link_width <= 32
        assert found.clock_mhz is None or found.clock_mhz <= texts.MOST_MHZ
        assert found.profile is None
        assert found.busy_percent is None or 0 <= found.busy_percent <= 100


@given(st.binary(max_size=300))
def test_any_bytes_make_a_line_or_nothing(data: bytes) -> None:
    found = texts.label(data)
    assert found is None or (0 < len(found) <= 64 and found.isascii() and found.isprintable())


@given(st.text(max_size=200))
def test_any_text_is_a_number_within_bounds_or_none(words: str) -> None:
    found = texts.leading(words, 1000)
    assert found is None or 0 <= found <= 1000


def test_a_real_node_has_its_number(tmp_path: Path) -> None:
    file = tmp_path / "nvidia0"
    file.write_text("")
    with open("/dev/null", "rb") as null, file.open("rb") as plain:
        places = Places()
        assert places.number_of(f"/proc/self/fd/{null.fileno()}") == (1, 3)
        assert places.number_of(f"/proc/self/fd/{plain.fileno()}") is None
    assert places.number_of(str(tmp_path / "none")) is None


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert texts.text(tmp_path) is None
    assert texts.text(tmp_path / "no" / "file") is None
    assert texts.text(tmp_path / "\0") is None


def test_a_device_with_a_name_that_is_no_name(host: Host) -> None:
    path = host.drm("amdgpu", AMD)
    odd = path.with_name("\x1b[31m evil")
    path.rename(odd)
    link = host.sys / "dev/char/226:128/device"
    link.unlink()
    link.symlink_to(odd)
    found = held(host)
    assert (found.device, found.clock_mhz) == ("drm128", 800)


def test_a_driver_that_is_none(host: Host) -> None:
    path = host.drm("amdgpu", AMD)
    (path / "driver").unlink()
    host.holds(300, 9, "/dev/dri/renderD128", RENDER)
    assert Finder(host.places).held([300]) == {}


def test_a_device_without_a_folder_has_no_figures() -> None:
    assert kernel.figures(Device("nvidia0", "nvidia")) == {}


# --- doctor -----------------------------------------------------------------------


def test_doctor_says_nothing_of_devices_that_are_not_there(host: Host) -> None:
    assert facts(host.places) == []


def test_doctor_tells_of_devices(host: Host) -> None:
    host.drm("amdgpu", AMD)
    host.nvidia()
    cache = host.write("ld.so.cache", b"\0libnvidia-ml.so.1\0/usr/lib\0")
    nvml, amd = facts(host.places, cache)
    assert (nvml.name, nvml.ok, amd.ok) == ("NVML", True, True)
    assert nvml.value == "nvidia-ml-py, driver 595.45.04; read while a request waits"
    assert (amd.name, amd.value) == ("amdgpu devices", "1, read while a request waits")


def test_doctor_says_what_to_install(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.nvidia()
    (fact,) = facts(host.places, host.write("ld.so.cache", b"libcuda.so.1\0"))
    assert (fact.ok, fact.value) == (None, "libnvidia-ml.so.1 is missing (driver 595.45.04)")
    assert fact.missing == "clocks, memory and throttling of NVIDIA devices"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (fact,) = facts(host.places)
    assert (fact.ok, fact.advice) == (None, "pip install nvidia-ml-py, where ttftd runs")


def test_doctor_says_that_the_unit_has_no_devices(host: Host) -> None:
    host.nvidia()
    (host.dev / "nvidiactl").unlink()
    (fact,) = facts(host.places, host.write("ld.so.cache", b"libnvidia-ml.so.1\0"))
    assert (fact.ok, fact.missing) == (None, "clocks, memory and throttling of NVIDIA devices")
    assert fact.value == "the device nodes are closed to it (driver 595.45.04)"
    assert "DeviceAllow=char-nvidia rw" in (fact.advice or "")
