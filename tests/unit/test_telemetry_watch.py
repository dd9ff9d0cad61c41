"""When devices are read, and that nothing of it stays: threads, descriptors, a hung library."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.telemetry_host import BUS, HOLDER, Host, StandIn
from tracer.records import AnyRecord, Exit, Holder, Telemetry
from tracer.telemetry import worker as worker_module
from tracer.telemetry.watch import TelemetryWatch
from tracer.telemetry.worker import EVERY_NS, LINGER_NS, PATIENCE_NS, Worker

ROOT = Path(__file__).parents[2]
MS = 1_000_000
PATIENT_S = 20.0


def until(holds: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "ttft-devices"]


@pytest.fixture
def nvml() -> Iterator[StandIn]:
    found = StandIn()
    found.reset()
    yield found
    found.reset()
    until(lambda: not threads(), "its threads end")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.nvidia()
    made.holds(HOLDER, 20, "/dev/nvidia0", (195, 0))
    return made


class Watched:
    """What is told to a watch, and what it gives."""

    def __init__(self, host: Host, limit_ns: int = 5_000 * MS) -> None:
        self.said: list[str] = []
        self.found: list[AnyRecord] = []
        self.watch = TelemetryWatch(self.said.append, host.places, limit_ns=limit_ns)

    def turn(self, waiting: bool) -> int:
        """As the engine does with each look; how many readings there are so far."""
        self.found += self.watch.collect(time.monotonic_ns(), (HOLDER,) if waiting else ())
        return len(self.found)


def test_read_while_a_request_waits_and_once_after(nvml: StandIn, host: Host) -> None:
    one = Watched(host)
    began_ns = time.monotonic_ns()
    until(lambda: one.turn(True) >= 3, "it reads again and again")
    assert one.watch.state()["holding"]
    assert one.turn(False) == 3
    until(lambda: one.turn(False) == 4, "and once more")
    until(lambda: nvml.calls("nvmlShutdown") == 1, "then it lets go")
    assert nvml.calls("nvmlInitWithFlags") == 1
    assert one.turn(False) == 4
    times = [r.ts_ns - began_ns for r in one.found]
    assert times[0] >= PATIENCE_NS
    assert times[2] - times[0] >= 1.5 * EVERY_NS
    assert {r.device for r in one.found if isinstance(r, Telemetry)} == {BUS}
    assert one.said == []
    assert one.watch.state() == {
        "devices": {BUS: "Stand-in [2J GPU"}, "readings": 4, "holding": False, "troubles": (),
    }  # fmt: skip
    one.watch.close()


def test_a_request_that_hardly_waits_is_left_alone(nvml: StandIn, host: Host) -> None:
    """The patience begins anew with each."""
    one = Watched(host)
    one.turn(True)
    one.turn(False)
    again_ns = time.monotonic_ns()
    until(lambda: one.turn(True) >= 1, "the second is read")
    assert one.found[0].ts_ns - again_ns >= PATIENCE_NS
    assert nvml.calls("nvmlDeviceGetMemoryInfo") == 1
    one.watch.close()


def test_the_next_request_finds_it_open(nvml: StandIn, host: Host) -> None:
    one = Watched(host)
    until(lambda: one.turn(True) >= 1, "the first is read")
    one.turn(False)
    until(lambda: one.turn(True) >= 3, "so is the second")
    assert nvml.calls("nvmlInitWithFlags") == 1
    one.watch.close()
    assert nvml.calls("nvmlShutdown") == 1


def test_it_lets_go_at_once_when_the_process_ends(
    nvml: StandIn, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LINGER_NS", 1 << 62)
    one = Watched(host)
    until(lambda: one.turn(True) >= 1, "it is read")
    one.turn(False)
    until(lambda: one.turn(False) >= 2, "and after")
    one.watch.note([Exit(ts_ns=1, tgid=HOLDER + 1)])
    host.lets_go(HOLDER)
    one.watch.note([Exit(ts_ns=1, tgid=HOLDER)])
    until(lambda: nvml.calls("nvmlShutdown") == 1, "then it lets go")
    one.watch.close()


def test_it_lets_go_while_a_request_waits_for_the_next_runner(nvml: StandIn, host: Host) -> None:
    one = Watched(host)
    until(lambda: one.turn(True) >= 1, "it is read")
    host.lets_go(HOLDER)
    one.watch.note([Exit(ts_ns=1, tgid=HOLDER)])
    until(lambda: nvml.calls("nvmlShutdown") == 1, "nobody holds it")
    host.holds(HOLDER, 21, "/dev/nvidia0", (195, 0))
    until(lambda: nvml.calls("nvmlInitWithFlags") == 2, "the next one does")
    one.watch.close()


def test_who_lets_go_while_it_lives_is_told_of_and_counts_as_no_reading(
    nvml: StandIn, host: Host
) -> None:
    one = Watched(host)
    until(lambda: one.turn(True) >= 1, "it is read")
    readings = one.watch.state()["readings"]
    host.lets_go(HOLDER)

    def told() -> list[Holder]:
        one.turn(True)
        return [h for r in one.found if isinstance(r, Telemetry) for h in r.holders if h.gone]

    until(told, "it is told")
    assert told() == [Holder(tgid=HOLDER, memory_bytes=0, gone=True)]
    until(lambda: not one.watch.state()["holding"], "nobody holds it")
    state = one.watch.state()
    assert state["devices"] == {BUS: "Stand-in [2J GPU"}
    assert readings <= state["readings"] < len(one.found)
    one.watch.close()


def test_nothing_waits_on_a_host_without_devices(tmp_path: Path) -> None:
    one = Watched(Host(tmp_path / "none"))
    assert one.turn(True) == one.turn(False) == 0
    assert threads() == []
    one.watch.close()


def test_off(nvml: StandIn, host: Host) -> None:
    watch = TelemetryWatch(pytest.fail, host.places, off=True)
    assert watch.collect(0, (HOLDER,)) == []
    assert threads() == []


def test_a_library_that_hangs_is_left_behind_and_named_once(nvml: StandIn, host: Host) -> None:
    """The kernel goes on telling; the hung thread ends by itself, letting go, if it comes back."""
    one = Watched(host, limit_ns=50 * MS)
    nvml.hangs("nvmlDeviceGetClockInfo")
    until(lambda: one.turn(True) is not None and one.said, "it is named")
    assert one.said == [
        "nvmlDeviceGetClockInfo has not come back for 0.05 s;"
        " of NVIDIA devices only what the kernel tells is known from now on"
    ]
    until(lambda: one.turn(True) >= 2, "the rest goes on")
    kept = [r for r in one.found if isinstance(r, Telemetry)]
    assert {(r.source, r.clock_mhz, r.holders[0].tgid) for r in kept} == {("nvidia", None, HOLDER)}
    assert len(threads()) == 2
    assert nvml.calls("nvmlInitWithFlags") == 1, "no other thread touches it"
    assert one.watch.state()["troubles"] == tuple(one.said)
    one.watch.close()
    nvml.hangs("nvmlDeviceGetClockInfo", False)
    until(lambda: nvml.calls("nvmlShutdown") == 1, "it lets go")
    until(lambda: not threads(), "and ends")
    assert len(one.said) == 1


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlShutdown"])
def test_it_may_hang_where_it_begins_and_ends(nvml: StandIn, host: Host, function: str) -> None:
    one = Watched(host, limit_ns=50 * MS)
    nvml.hangs(function)
    if function == "nvmlShutdown":
        until(lambda: one.turn(True) >= 1, "it is read")
    until(lambda: one.turn(function != "nvmlShutdown") is not None and one.said, "it is named")
    began = time.monotonic()
    one.watch.close()
    assert time.monotonic() - began < 5, "the daemon ends all the same"
    assert one.said[0].startswith(f"{function.removesuffix('WithFlags')} has not come back")


def test_a_second_hang_ends_it(nvml: StandIn, host: Host) -> None:
    """The kernel's own files may hang as well."""
    blocked = threading.Event()
    number_of = host.places.number_of

    def slow(path: str) -> tuple[int, int] | None:
        blocked.wait(PATIENT_S)
        return number_of(path)

    host.places = replace(host.places, number_of=slow)
    one = Watched(host, limit_ns=50 * MS)
    until(lambda: one.turn(True) is not None and one.said, "it is named")
    assert one.said == ["/proc/PID/fd has not come back for 0.05 s; devices are not read any more"]
    assert one.turn(True) == 0
    blocked.set()
    until(lambda: not threads(), "it ends")
    assert one.watch.collect(time.monotonic_ns(), (HOLDER,)) == []
    assert nvml.calls("nvmlInitWithFlags") == nvml.calls("nvmlShutdown")


def test_a_pause_of_all_is_no_hang(nvml: StandIn, host: Host) -> None:
    """After a stop of the whole process the thread is a little behind, not lost."""
    one = Watched(host, limit_ns=4_000 * MS)
    nvml.hangs("nvmlDeviceGetClockInfo")
    until(lambda: one.turn(True) >= 0 and nvml.calls("nvmlDeviceGetClockInfo"), "it is called")
    late_ns = time.monotonic_ns() + 10_000 * MS
    assert one.watch.collect(late_ns, (HOLDER,)) == []
    assert one.watch._hung(("nvmlX", 0), late_ns) is None
    nvml.hangs("nvmlDeviceGetClockInfo", False)
    until(lambda: one.turn(True) >= 1, "it goes on")
    assert one.said == []
    one.watch.close()


def test_threads_and_descriptors_do_not_grow(nvml: StandIn, host: Host) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(3):
        one = Watched(host)
        until(lambda one=one: one.turn(True) >= 1, "it is read")  # type: ignore[misc]
        one.watch.close()
    until(lambda: not threads(), "all end")
    assert descriptors() == before
    assert nvml.calls("nvmlInitWithFlags") == nvml.calls("nvmlShutdown") == 3


def test_a_reader_that_breaks_takes_nothing_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released: list[bool] = []
    broken: list[object] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)

    class Broken:
        def read(self, tgids: tuple[int, ...]) -> list[Telemetry]:
            raise RuntimeError("a mistake")

        def release(self) -> None:
            released.append(True)

    one = Worker(lambda step: Broken())
    one.want((1,), 0)
    assert one.join(PATIENT_S)
    assert (released, len(broken)) == ([True], 1)


def test_it_reads_more_seldom_the_longer_it_takes() -> None:
    read: list[int] = []

    class Reads:
        def read(self, tgids: tuple[int, ...]) -> list[Telemetry]:
            read.append(time.monotonic_ns())
            return []

        def release(self) -> None:
            pass

    one = Worker(lambda step: Reads())
    one.want((1,), time.monotonic_ns() - 60_000 * MS)  # it waits for a minute by now
    until(lambda: len(read) >= 3, "it reads")
    one.leave()
    assert one.join(PATIENT_S)
    assert read[2] - read[1] >= 900 * MS
    assert LINGER_NS <= 1_000 * MS


PROGRAM = """
    import sys, threading, time
    from tracer.telemetry.places import Places
    from tracer.telemetry.watch import TelemetryWatch
    from pathlib import Path
    import tracer.backend
    watch = TelemetryWatch(print, Places(Path("/nowhere/proc"), Path("/nowhere/sys")))
    for tgids in ((1,), (), (1,)):
        assert watch.collect(time.monotonic_ns(), tgids) == []
    names = [t.name for t in threading.enumerate()]
    heavy = ("pynvml", "importlib.metadata", "tracer.telemetry.reader")
    print([m for m in heavy if m in sys.modules], names)
"""


def test_nothing_is_loaded_without_devices() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], cwd=ROOT, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "[] ['MainThread']\n"
