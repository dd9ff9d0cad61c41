"""NVIDIA's library through the real `pynvml`, on a stand-in that was compiled for the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.telemetry_host import BUS, HOLDER, Host, StandIn, compiled
from tracer.records import Holder, Telemetry
from tracer.telemetry import nvml as nvml_module
from tracer.telemetry.nvml import Nvml
from tracer.telemetry.reader import Reader

ROOT = Path(__file__).parents[2]
#: All error codes that the library has.
ERRORS = (*range(1, 31), 77, 999)
GETS = (
    "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
)  # fmt: skip
WHOLE = Telemetry(
    ts_ns=0,
    device=BUS,
    source="nvml",
    name="Stand-in [2J GPU",
    holders=(Holder(tgid=HOLDER, memory_bytes=2 << 30),),
    busy_percent=97,
    memory_used_bytes=3 << 30,
    memory_total_bytes=8 << 30,
    clock_mhz=210,
    clock_max_mhz=2100,
    memory_clock_mhz=405,
    memory_clock_max_mhz=7001,
    pstate=8,
    limits=("power", "thermal"),
    pcie_tx_rate=1000 << 10,
    pcie_rx_rate=2000 << 10,
    link_generation=1,
    link_generation_max=4,
    link_width=4,
    link_width_max=16,
)
#: What a function's failure leaves unknown.
UNKNOWN: dict[str, tuple[str, ...]] = {
    "nvmlDeviceGetName": ("name",),
    "nvmlDeviceGetMemoryInfo": ("memory_used_bytes", "memory_total_bytes"),
    "nvmlDeviceGetUtilizationRates": ("busy_percent",),
    "nvmlDeviceGetClockInfo": ("clock_mhz", "memory_clock_mhz"),
    "nvmlDeviceGetMaxClockInfo": ("clock_max_mhz", "memory_clock_max_mhz"),
    "nvmlDeviceGetPerformanceState": ("pstate",),
    "nvmlDeviceGetPcieThroughput": ("pcie_tx_rate", "pcie_rx_rate"),
    "nvmlDeviceGetCurrPcieLinkGeneration": ("link_generation",),
    "nvmlDeviceGetMaxPcieLinkGeneration": ("link_generation_max",),
    "nvmlDeviceGetCurrPcieLinkWidth": ("link_width",),
    "nvmlDeviceGetMaxPcieLinkWidth": ("link_width_max",),
    # Its older name is asked instead.
    "nvmlDeviceGetCurrentClocksEventReasons": (),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": (),
}


@pytest.fixture
def nvml() -> Iterator[StandIn]:
    found = StandIn()
    found.reset()
    yield found
    found.reset()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.nvidia()
    made.holds(HOLDER, 20, "/dev/nvidia0", (195, 0))
    return made


class Read:
    """A reader, and what it said."""

    def __init__(self, host: Host) -> None:
        self.said: list[str] = []
        self.steps: list[str] = []
        self.reader = Reader(host.places, self.said.append, self.steps.append)

    def once(self) -> Telemetry:
        (found,) = self.reader.read([HOLDER])
        return replaced(found, ts_ns=0)


def replaced(reading: Telemetry, **fields: object) -> Telemetry:
    from msgspec.structs import replace

    return replace(reading, **fields)


def test_all_that_it_tells(nvml: StandIn, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_module, "_RATE_EVERY_NS", 1 << 62)
    read = Read(host)
    assert read.once() == WHOLE
    assert read.once() == WHOLE
    assert read.said == []
    assert nvml.calls("nvmlInitWithFlags") == 1
    assert nvml.calls("nvmlDeviceGetMaxClockInfo") == 2, "what never changes is asked once"
    assert nvml.calls("nvmlDeviceGetPcieThroughput") == 2, "it takes 20 ms: not at each reading"
    assert nvml.calls("nvmlShutdown") == 0
    read.reader.release()
    assert nvml.calls("nvmlShutdown") == 1


def test_nothing_is_loaded_for_a_device_that_nobody_holds(nvml: StandIn, host: Host) -> None:
    read = Read(host)
    assert read.reader.read([HOLDER + 1]) == []
    assert nvml.calls("nvmlInitWithFlags") == 0
    assert [s for s in read.steps if s.startswith("nvml")] == []


def test_it_is_shut_down_when_the_last_one_lets_go(nvml: StandIn, host: Host) -> None:
    read = Read(host)
    read.once()
    host.lets_go(HOLDER)
    (last,) = read.reader.read([HOLDER])
    assert last.holders == (Holder(tgid=HOLDER, memory_bytes=0, gone=True),)
    assert last.source == "nvidia", "the library is not asked"
    assert read.reader.read([HOLDER]) == []
    assert nvml.calls("nvmlShutdown") == 1
    read.reader.release()
    assert nvml.calls("nvmlShutdown") == 1, "it was not begun again"


@pytest.mark.parametrize("function", GETS)
def test_each_function_may_fail_in_each_way(nvml: StandIn, host: Host, function: str) -> None:
    for code in ERRORS:
        nvml.reset()
        nvml.fails(function, code)
        read = Read(host)
        expected = WHOLE
        if function == "nvmlDeviceGetComputeRunningProcesses_v3":
            # 7 is how it says that there are more than were asked for.
            expected = replaced(WHOLE, holders=(Holder(tgid=HOLDER),))
        for field in UNKNOWN.get(function, ()):
            expected = replaced(expected, **{field: None})
        assert read.once() == read.once() == expected, code
        told = 0 if function == "nvmlDeviceGetCurrentClocksEventReasons" else 1
        assert len(read.said) == told, (code, read.said)
        assert all(s.isprintable() and function in s for s in read.said)
        read.reader.release()


@pytest.mark.parametrize("code", ERRORS)
def test_a_device_that_cannot_be_had(nvml: StandIn, host: Host, code: int) -> None:
    """What the kernel tells is told all the same, and who holds it."""
    nvml.fails("nvmlDeviceGetHandleByPciBusId_v2", code)
    read = Read(host)
    found = read.once()
    assert found == Telemetry(
        ts_ns=0, device=BUS, source="nvidia", holders=(Holder(tgid=HOLDER),)
    )  # fmt: skip
    read.once()
    assert len(read.said) == 1
    assert nvml.calls("nvmlDeviceGetHandleByPciBusId_v2") == 1


@pytest.mark.parametrize("code", ERRORS)
def test_it_may_not_begin(nvml: StandIn, host: Host, code: int) -> None:
    nvml.fails("nvmlInitWithFlags", code)
    read = Read(host)
    assert read.once().source == read.once().source == "nvidia"
    assert nvml.calls("nvmlInitWithFlags") == 1, "not again at once"
    (said,) = read.said
    assert said.startswith("NVML cannot be used: ")
    read.reader.release()
    assert nvml.calls("nvmlShutdown") == 0


def test_it_may_not_end(nvml: StandIn, host: Host) -> None:
    nvml.fails("nvmlShutdown", 999)
    read = Read(host)
    read.once()
    read.reader.release()
    assert read.once() == WHOLE


ABSURD = 0xFFFF_FFFF
VALUES: dict[str, tuple[int, tuple[str, ...]]] = {
    "nvmlDeviceGetMemoryInfo": (1 << 63, ("memory_used_bytes",)),
    "nvmlDeviceGetUtilizationRates": (ABSURD, ("busy_percent",)),
    "nvmlDeviceGetClockInfo": (ABSURD, ("clock_mhz", "memory_clock_mhz")),
    "nvmlDeviceGetMaxClockInfo": (0, ("clock_max_mhz", "memory_clock_max_mhz")),
    "nvmlDeviceGetPerformanceState": (32, ("pstate",)),
    "nvmlDeviceGetCurrPcieLinkGeneration": (0, ("link_generation",)),
    "nvmlDeviceGetMaxPcieLinkGeneration": (255, ("link_generation_max",)),
    "nvmlDeviceGetCurrPcieLinkWidth": (64, ("link_width",)),
    "nvmlDeviceGetMaxPcieLinkWidth": (ABSURD, ("link_width_max",)),
    "nvmlDeviceGetName": (1, ("name",)),
}


@pytest.mark.parametrize("function", VALUES)
def test_values_that_make_no_sense_are_unknown(nvml: StandIn, host: Host, function: str) -> None:
    value, fields = VALUES[function]
    nvml.tells(function, value)
    assert Read(host).once() == replaced(WHOLE, **dict.fromkeys(fields))


def test_a_process_with_memory_that_is_not_told(nvml: StandIn, host: Host) -> None:
    for value in (ABSURD << 32 | ABSURD, 1 << 62):
        nvml.tells("nvmlDeviceGetComputeRunningProcesses_v3", value)
        assert Read(host).once() == replaced(WHOLE, holders=(Holder(tgid=HOLDER),))


def test_reasons_that_are_not_known_yet(nvml: StandIn, host: Host) -> None:
    nvml.tells("nvmlDeviceGetCurrentClocksEventReasons", 1 << 40 | 0x1C3)
    limits = Read(host).once().limits
    assert limits == ("idle", "setting", "thermal", "power", "display", "other")
    nvml.tells("nvmlDeviceGetCurrentClocksEventReasons", 0)
    assert Read(host).once().limits == ()


def test_a_device_whose_address_is_not_told(nvml: StandIn, tmp_path: Path) -> None:
    """Any other device could be the one: it is read only where there is but one."""
    host = Host(tmp_path / "bare")
    host.holds(HOLDER, 20, "/dev/nvidia0", (195, 0))
    assert Read(host).once() == replaced(WHOLE, device="nvidia0")
    nvml.tells("nvmlDeviceGetCount_v2", 2)
    assert Read(host).once().source == "nvidia"
    nvml.tells("nvmlDeviceGetCount_v2", 1)
    nvml.tells("nvmlDeviceGetMinorNumber", 5)
    assert Read(host).once().source == "nvidia"


def test_what_fails_in_one_reading_is_said_in_one_line(nvml: StandIn, host: Host) -> None:
    for function in GETS[:6]:
        nvml.fails(function, 3)
    read = Read(host)
    read.once()
    assert read.said == [
        f"NVML does not tell all of {BUS}: Not Supported: nvmlDeviceGetMemoryInfo,"
        " nvmlDeviceGetUtilizationRates, nvmlDeviceGetName, nvmlDeviceGetMaxClockInfo,"
        " nvmlDeviceGetClockInfo, nvmlDeviceGetPerformanceState"
    ]


def test_without_the_package(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    read = Read(host)
    assert read.once().source == read.once().source == "nvidia"
    assert read.said == [
        "clocks and memory of NVIDIA devices need nvidia-ml-py: pip install nvidia-ml-py"
    ]


PROGRAM = """
    import sys
    from pathlib import Path
    from tests.unit.telemetry_host import HOLDER, Host
    from tracer.telemetry.reader import Reader
    host = Host(Path(sys.argv[1]))
    host.nvidia()
    host.holds(HOLDER, 20, "/dev/nvidia0", (195, 0))
    reader = Reader(host.places, print, lambda what: None)
    (found,) = reader.read([HOLDER])
    reader.read([HOLDER])
    print(found.source, found.limits, found.clock_mhz, found.holders[0].memory_bytes)
    reader.release()
"""


def elsewhere(folder: Path, libraries: Path) -> list[str]:
    """What a process says that finds libraries in a folder."""
    program = textwrap.dedent(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "-c", program, str(folder)], cwd=ROOT, capture_output=True, text=True,
        check=True, env={**os.environ, "LD_LIBRARY_PATH": str(libraries)},
    )  # fmt: skip
    return ran.stdout.splitlines()


def test_a_driver_of_old(tmp_path: Path) -> None:
    """It lacks functions: what they would tell is unknown, or asked by its older name."""
    compiled(tmp_path, "-DOLD_DRIVER")
    said, found = elsewhere(tmp_path / "host", tmp_path)
    assert found == f"nvml ('power', 'thermal') 210 {2 << 30}"
    assert said == (
        f"NVML does not tell all of {BUS}: Function Not Found:"
        " nvmlDeviceGetGraphicsRunningProcesses_v3"
    )


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library at all\n"])
def test_a_library_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(content)
    said, found = elsewhere(tmp_path / "host", tmp_path)
    assert found == "nvidia None None None"
    assert said == (
        "NVML cannot be used: NVML Shared Library Not Found; install the driver's libnvidia-ml.so.1"
    )


def test_a_step_is_told_before_each_call(nvml: StandIn, host: Host) -> None:
    steps: list[str] = []
    one = Nvml(pytest.fail, steps.append)
    (device,) = Read(host).reader._finder.held([HOLDER])
    one.figures(device, [HOLDER])
    one.close()
    assert steps[:2] == ["", "nvmlInit"], "a slow disk is no hang"
    assert steps[-1] == "nvmlShutdown"
    # Two of clocks, of highest clocks, of directions; loading, beginning, finding it, ending.
    assert len(steps) == len(GETS) + 7
