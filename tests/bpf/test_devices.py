"""Driver calls on real device nodes that are no accelerators: each counted, classed and timed.

Any device does: its number is given to the driver whose calls are to be tried, and ioctls that the
kernel itself answers for every file (FIOCLEX, FIONCLEX) take whatever argument and succeed.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.bpf.watching import collect
from tests.workloads import bpf
from tests.workloads.driver_calls import Drivers
from tests.workloads.waiting import wait_for
from tracer.devices.table import Driver, DriverCall, read, table
from tracer.devices.watch import DeviceWatch
from tracer.kernel.loader import Kernel
from tracer.kernel.objectfile import object_path
from tracer.kernel.wire import RawDevice
from tracer.records import DeviceCall, DeviceWhat

pytestmark = pytest.mark.kernel

RANDOM, TUN, ZERO = "/dev/random", "/dev/net/tun", "/dev/zero"
FIONCLEX, FIOCLEX = 0x5450, 0x5451
RNDGETENTCNT = 0x80045200
TUNSETIFF = 0x400454CA
ONE, ANOTHER = FIONCLEX & 0xFF, FIOCLEX & 0xFF
_IFF_TAP, _IFF_NO_PI = 2, 0x1000
_POLLS = ("7", "271", "73")  # poll and ppoll, of both architectures


@pytest.fixture
def kernel(built: Path, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """`plain`: the object for older kernels, here."""
    plain = getattr(request, "param", "") == "plain"
    path = object_path(plain=True) if plain else built
    off = ("sockets", "files", "faults", "libs", "stacks")
    with Kernel.open(off=off, path=path, plain=plain or None) as opened:
        opened.attach("devices")
        yield opened


@pytest.fixture
def watch(kernel: Kernel) -> DeviceWatch:
    made = DeviceWatch(kernel, table(), [RANDOM, TUN, ZERO])
    assert made.refresh()
    return made


@pytest.fixture
def drivers(kernel: Kernel) -> Iterator[Drivers]:
    with Drivers() as made:
        kernel.watch(made.pid)
        yield made


def rdev_of(path: str) -> int:
    number = os.stat(path).st_rdev
    return os.major(number) << 20 | os.minor(number)


def pose(kernel: Kernel, path: str, driver: Driver) -> None:
    """From now on a device counts as one of this driver's."""
    kernel.table("device_nodes").put(struct.pack("<I", rdev_of(path)), driver.node())


def calls(kernel: Kernel, watch: DeviceWatch, made: Drivers) -> list[DeviceCall]:
    """All that was recorded of a process, at its end; later states of a run replace earlier."""
    made.end()
    raws = [raw for raw in collect(kernel, made.pid) if isinstance(raw, RawDevice)]
    found = [call for raw in raws if (call := watch.record(raw)) is not None]
    found += watch.sweep(time.monotonic_ns())
    latest = {(c.tid, c.device, c.what, c.ts_ns): c for c in found if c.tgid == made.pid}
    return sorted(latest.values(), key=lambda c: c.ts_ns)


def total(found: Sequence[DeviceCall], what: DeviceWhat) -> tuple[int, int, int]:
    """(count, bytes, failed)."""
    mine = [c for c in found if c.what == what]
    return (
        sum(c.count for c in mine), sum(c.bytes or 0 for c in mine), sum(c.failed for c in mine)
    )  # fmt: skip


both = pytest.mark.parametrize("kernel", ["full", "plain"], indirect=True)


@both
def test_each_kind_of_call(kernel: Kernel, watch: DeviceWatch, drivers: Drivers) -> None:
    fd, _ = drivers.ask("open", RANDOM)
    again, _ = drivers.ask("open", RANDOM)
    drivers.ask("ioctl", fd, RNDGETENTCNT, 23, "00" * 4)
    drivers.ask("poll", [fd], 0, 7)
    zero, _ = drivers.ask("open", ZERO)
    drivers.ask("mmap", zero, 4096 * 5)
    drivers.ask("close", again)
    found = calls(kernel, watch, drivers)
    assert total(found, "open") == (3, 0, 0)
    assert [c.first for c in found if c.what == "open"] == [True, False, True]
    assert total(found, "map") == (1, 4096 * 5, 0)
    assert total(found, "other") == (23, 0, 0)
    assert {c.number for c in found if c.what == "other"} == {RNDGETENTCNT}
    assert total(found, "sync") == (7, 0, 0)
    assert total(found, "free") == (1, 0, 0)
    assert {(c.device, c.driver) for c in found} == {("random", "extra"), ("zero", "extra")}
    assert all(0 <= c.busy_ns <= c.end_ns - c.ts_ns for c in found)


@both
def test_every_one_of_very_many(kernel: Kernel, watch: DeviceWatch, drivers: Drivers) -> None:
    """And few records for them, whatever the rate: a run ends by a silence, or after a second."""
    fd, _ = drivers.ask("open", RANDOM)
    _, took_ns = drivers.ask("ioctl", fd, RNDGETENTCNT, 100_003, "00" * 4)
    found = [c for c in calls(kernel, watch, drivers) if c.what == "other"]
    assert sum(c.count for c in found) == 100_003
    assert len(found) <= 2 + 101 * took_ns // 1_000_000_000
    assert 0 < sum(c.busy_ns for c in found) <= took_ns
    assert kernel.lost().get("device", 0) == 0


def test_threads_at_once(kernel: Kernel, watch: DeviceWatch, drivers: Drivers) -> None:
    fd, _ = drivers.ask("open", RANDOM)
    drivers.ask("threads", fd, RNDGETENTCNT, 5003, 4)
    found = [c for c in calls(kernel, watch, drivers) if c.what == "other"]
    assert sum(c.count for c in found) == 4 * 5003
    assert len({c.tid for c in found}) == 4


def test_more_threads_than_the_table_has_room_for(built: Path) -> None:
    off = ("sockets", "files", "faults", "libs", "stacks")
    with Kernel.open(off=off, path=built, sizes={"device_runs": 2}) as small, Drivers() as made:
        small.attach("devices")
        watch = DeviceWatch(small, table(), [RANDOM])
        assert watch.refresh()
        small.watch(made.pid)
        fd, _ = made.ask("open", RANDOM)
        made.ask("threads", fd, RNDGETENTCNT, 50, 8)
        assert total(calls(small, watch, made), "other") == (400, 0, 0)
        assert small.lost() == {}


def test_time_in_slow_calls(kernel: Kernel, watch: DeviceWatch, drivers: Drivers) -> None:
    """A poll of 60 ms, and the making of network interfaces, by the caller's own clock."""
    made_ns = 0
    for n in range(5):
        tap, _ = drivers.ask("open", TUN)
        name = f"ttft{os.getpid() % 10000}x{n}".encode().ljust(16, b"\0")
        request = name + struct.pack("<H", _IFF_TAP | _IFF_NO_PI) + bytes(22)
        good, took_ns = drivers.ask("ioctl", tap, TUNSETIFF, 1, request.hex())
        assert good == 1
        made_ns += took_ns
    _, polled_ns = drivers.ask("poll", [tap], 60)
    found = calls(kernel, watch, drivers)
    (poll,) = (c for c in found if c.what == "sync")
    assert poll.count == 1 and poll.busy_ns == poll.end_ns - poll.ts_ns
    assert abs(poll.busy_ns - polled_ns) <= 0.05 * polled_ns
    busy_ns = sum(c.busy_ns for c in found if c.what == "other")
    assert abs(busy_ns - made_ns) <= max(0.05 * made_ns, 5 * 30_000)


ROWS = [(d.name, c) for d in table().drivers for c in d.own]


def posed(call: DriverCall) -> str:
    """The same row under the number of an ioctl that always succeeds, with what it looks up."""
    size = call.size
    amount = {
        "none": "", "u64": f" bytes={'out' if size.late else ''}@{size.offset}",
        "u32": f" bytes=u32@{size.offset}", "pointed": f" bytes=@{size.through}->@{size.offset}",
    }[size.kind] + ("+1" if size.plus else "")  # fmt: skip
    return f"{call.name} {call.what}{amount}"


def argument(call: DriverCall, amount: int, sub_offset: int | None = None) -> tuple[str, str]:
    """(argument, what it points to) in hex, so that the call is of so many bytes."""
    data, there = bytearray(256), bytearray(256)
    size, value = call.size, amount - call.size.plus
    if sub_offset is not None and call.sub is not None:
        struct.pack_into("<I", data, sub_offset, call.sub)
    text = data.hex()
    if size.kind == "pointed":
        struct.pack_into("<Q", there, size.offset, value)
        text = data.hex()
        text = text[: 2 * size.through] + "pp" * 8 + text[2 * size.through + 16 :]
    elif size.kind != "none":
        struct.pack_into("<Q" if size.kind == "u64" else "<I", data, size.offset, value)
        text = data.hex()
    return text, there.hex()


@both
def test_bytes_of_every_row(kernel: Kernel, watch: DeviceWatch, drivers: Drivers) -> None:
    """Each row of the table, by its own offsets: class and bytes."""
    fd, _ = drivers.ask("open", RANDOM)
    keys = kernel.table("device_calls")
    expected: dict[DeviceWhat, list[int]] = {}
    for n, (name, call) in enumerate(ROWS):
        driver = table()[name]
        pose(kernel, RANDOM, read(_plain(driver.number)).drivers[driver.number - 1])
        base, sub_offset = call, None
        if call.sub is not None:
            parent = driver.call(call.number)
            assert parent is not None and parent.by is not None
            base, sub_offset = parent, parent.by[0]
        key = DriverCall(ANOTHER, None, base.name, base.what, base.size, base.by, False)
        keys.put(key.key(driver.number), key.spec())
        if call.sub is not None:
            finer = DriverCall(ANOTHER, call.sub, call.name, call.what, call.size, None, False)
            keys.put(finer.key(driver.number), finer.spec())
        amount = 0 if call.size.kind == "none" else 4096 + n
        text, there = argument(call, amount, sub_offset)
        good, _ = drivers.ask("ioctl", fd, FIOCLEX, 3, text, there)
        assert good == 3, name
        count, size = expected.setdefault(call.what, [0, 0])
        expected[call.what] = [count + 3, size + 3 * amount]
    drivers.ask("ioctl", fd, FIOCLEX, 0)
    found = calls(kernel, watch, drivers)
    for what, (count, size) in expected.items():
        more = 1 if what == "open" else 0  # the open itself
        assert (what, *total(found, what)) == (what, count + more, size, 0)


def _plain(number: int) -> str:
    """Drivers up to this number whose ioctls have no type."""
    return "".join(f'[[driver]]\nname = "d{n}"\nsource = "s"\n' for n in range(1, number + 1))


@pytest.mark.parametrize("name", [d.name for d in table().drivers if d.own])
def test_every_number_is_classed(
    kernel: Kernel, watch: DeviceWatch, drivers: Drivers, name: str
) -> None:
    """By the numbers that the driver's programs use; this device refuses them, but they count."""
    driver = table()[name]
    pose(kernel, RANDOM, driver)
    fd, _ = drivers.ask("open", RANDOM)
    expected: dict[DeviceWhat, int] = {"open": 1}
    failed = 0
    letter = ord(driver.entry.type or "F") << 8
    for call in driver.calls:
        if call.wraps:
            continue
        number = call.number if driver.entry.whole else 0xC0000000 | 16 << 16 | letter | call.number
        parent = driver.call(call.number)
        offset = parent.by[0] if parent is not None and parent.by else None
        text, there = argument(call, 77, offset)
        good, _ = drivers.ask("ioctl", fd, number, 1, text, there)
        failed += 1 - good
        expected[call.what] = expected.get(call.what, 0) + 1
    found = calls(kernel, watch, drivers)
    assert {what: total(found, what)[0] for what in expected} == expected
    assert sum(c.failed for c in found) == failed
    assert total(found, "other") == (0, 0, 0)


@both
def test_a_wrapped_call(kernel: Kernel, watch: DeviceWatch, drivers: Drivers) -> None:
    """NV_ESC_IOCTL_XFER_CMD carries another call with an argument of its own."""
    pose(kernel, RANDOM, table()["nvidia"])
    fd, _ = drivers.ask("open", RANDOM)
    keys = kernel.table("device_calls")
    number = table()["nvidia"].number
    wrapper = table()["nvidia"].call(211)
    assert wrapper is not None
    spec = wrapper.spec()
    keys.put(DriverCall(ANOTHER, None, "X", "query", wrapper.size, None, True).key(number), spec)
    pin = next(c for c in table()["nvidia"].calls if (c.number, c.sub) == (0x27, 0x71))
    text, _ = argument(pin, 1 << 20, 12)
    outer = struct.pack("<II", 0x27, 48).hex() + "pp" * 8
    good, _ = drivers.ask("ioctl", fd, FIOCLEX, 5, outer, text)
    assert good == 5
    found = calls(kernel, watch, drivers)
    assert total(found, "pin") == (5, 5 << 20, 0)
    assert {c.number for c in found if c.what == "pin"} == {0x27}


@pytest.mark.parametrize("text", ["", "00" * 8])
def test_arguments_that_lead_nowhere(
    kernel: Kernel, watch: DeviceWatch, drivers: Drivers, text: str
) -> None:
    """A pointer that is none, a size that is all there is: counted, with no bytes."""
    one = '[[driver]]\nname = "x"\nsource = "s"\n[driver.calls]\n'
    made = read(one + f'"{ANOTHER}" = "A allocate bytes=@0->@8"\n"{ONE}" = "B allocate bytes=@0"')
    pose(kernel, RANDOM, made.drivers[0])
    for key, spec in made.calls():
        kernel.table("device_calls").put(key, spec)
    fd, _ = drivers.ask("open", RANDOM)
    drivers.ask("ioctl", fd, FIOCLEX, 4, text or "0100000000000000")
    drivers.ask("ioctl", fd, FIONCLEX, 4, "ff" * 8)
    found = calls(kernel, watch, drivers)
    assert total(found, "allocate") == (8, 0, 0)
    assert kernel.lost().get("device.lookup", 0) == (0 if text else 4)


def test_a_node_of_another_name(
    kernel: Kernel, watch: DeviceWatch, drivers: Drivers, tmp_path: Path
) -> None:
    """As in a container: what counts is the number of the device."""
    drivers.ask("node", str(tmp_path / "gpu"), *(rdev_of(RANDOM) >> 20, rdev_of(RANDOM) & 0xFFFFF))
    fd, _ = drivers.ask("open", str(tmp_path / "gpu"))
    drivers.ask("ioctl", fd, RNDGETENTCNT, 11, "00" * 4)
    found = calls(kernel, watch, drivers)
    assert total(found, "other") == (11, 0, 0)
    assert {c.device for c in found} == {"random"}


def test_in_a_mount_namespace_of_its_own(
    kernel: Kernel, watch: DeviceWatch, tmp_path: Path
) -> None:
    script = f'mount -t tmpfs none {tmp_path} && mknod {tmp_path}/gpu c 1 8 && exec "$@"'
    with Drivers("unshare", "-m", "sh", "-c", script, "sh") as made:
        kernel.watch(made.pid)
        assert not (tmp_path / "gpu").exists()
        fd, _ = made.ask("open", str(tmp_path / "gpu"))
        made.ask("ioctl", fd, RNDGETENTCNT, 11, "00" * 4)
        assert total(calls(kernel, watch, made), "other") == (11, 0, 0)


def test_others_are_left_alone(kernel: Kernel, watch: DeviceWatch, drivers: Drivers) -> None:
    """A process that is not watched, and devices that are not known."""
    with Drivers() as stranger:
        fd, _ = stranger.ask("open", RANDOM)
        stranger.ask("ioctl", fd, RNDGETENTCNT, 5, "00" * 4)
    null, _ = drivers.ask("open", "/dev/null")
    drivers.ask("ioctl", null, RNDGETENTCNT, 5, "00" * 4)
    drivers.ask("poll", [null], 0)
    assert calls(kernel, watch, drivers) == []
    assert list(kernel.table("device_runs").items()) == []


def test_a_device_that_nobody_told_of(kernel: Kernel, drivers: Drivers) -> None:
    """Told of once: its driver may have been loaded just now."""
    for _ in range(3):
        drivers.ask("open", TUN)
    drivers.end()
    raws = [r for r in collect(kernel, drivers.pid) if isinstance(r, RawDevice)]
    assert [(r.rdev, r.driver, r.unknown, r.count) for r in raws] == [(rdev_of(TUN), 0, True, 1)]


def test_a_process_that_is_killed_meanwhile(
    kernel: Kernel, watch: DeviceWatch, drivers: Drivers
) -> None:
    fd, _ = drivers.ask("open", RANDOM)
    drivers.ask("for_ever", fd, RNDGETENTCNT)
    runs = kernel.table("device_runs")
    wait_for(lambda: any(True for _ in runs.items()), 10, "calls in the kernel's table")
    drivers.kill()
    raws = [raw for raw in collect(kernel, drivers.pid) if isinstance(raw, RawDevice)]
    found = [call for raw in raws if (call := watch.record(raw)) is not None]
    watch.note([])
    assert found[0].what == "open"
    last = watch._runs.end_of(drivers.pid) if watch._runs else []
    assert sum(c.count for c in last) >= 1
    assert list(runs.items()) == [] and list(kernel.table("device_holders").items()) == []


def test_programs_that_two_groups_have(
    kernel: Kernel, watch: DeviceWatch, drivers: Drivers
) -> None:
    """Attached with the first of them, off with the last: others pay once."""
    names = {"ttft_sys_enter", "ttft_sys_exit"}
    assert bpf.linked(os.getpid()) >= names
    kernel.attach("files")
    fd, _ = drivers.ask("open", RANDOM)
    drivers.ask("ioctl", fd, RNDGETENTCNT, 5, "00" * 4)
    kernel.detach("files")
    assert bpf.linked(os.getpid()) >= names
    drivers.ask("ioctl", fd, RNDGETENTCNT, 7, "00" * 4)
    kernel.detach("devices")
    assert not bpf.linked(os.getpid()) & names
    kernel.attach("files")
    drivers.ask("ioctl", fd, RNDGETENTCNT, 9, "00" * 4)
    assert total(calls(kernel, watch, drivers), "other") == (12, 0, 0)
    assert kernel.lost() == {}


def test_a_call_that_goes_on_while_the_probes_were_away(
    kernel: Kernel, watch: DeviceWatch, drivers: Drivers
) -> None:
    """Its begin was seen by others than its end: no time is known of it."""
    tap, _ = drivers.ask("open", TUN)
    request = f"ttft{os.getpid() % 10000}y".encode().ljust(16, b"\0")
    request += struct.pack("<H", _IFF_TAP | _IFF_NO_PI) + bytes(22)
    assert drivers.ask("ioctl", tap, TUNSETIFF, 1, request.hex())[0] == 1
    answered = threading.Thread(target=drivers.ask, args=("poll", [tap], 500))
    answered.start()
    now = Path(f"/proc/{drivers.pid}/syscall")
    wait_for(lambda: now.read_text().split()[0] in _POLLS, 10, "the poll to wait")
    kernel.detach("devices")
    kernel.attach("devices")
    answered.join()
    assert total(calls(kernel, watch, drivers), "sync") == (0, 0, 0)


def test_nothing_is_seen_once_it_is_off(
    kernel: Kernel, watch: DeviceWatch, drivers: Drivers
) -> None:
    fd, _ = drivers.ask("open", RANDOM)
    kernel.detach("devices")
    drivers.ask("ioctl", fd, RNDGETENTCNT, 5, "00" * 4)
    kernel.attach("devices")
    drivers.ask("ioctl", fd, RNDGETENTCNT, 9, "00" * 4)
    assert total(calls(kernel, watch, drivers), "other") == (9, 0, 0)
