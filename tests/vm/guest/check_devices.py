"""In a guest: calls into drivers, counted, classed, measured and timed as the program says itself.

The program and, where one was built for this kernel, the module that answers it are stand-ins: no
device is driven. `vgem` is the kernel's own, a real DRM driver without hardware.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.vm.guest import devices_known as known
from tests.vm.guest import devices_start
from tests.vm.guest.devices_known import Known
from tests.vm.guest.devices_scene import Key, Scene, Sums, scene
from tests.workloads.device_calls import DeviceCaller, Done, Field, encoded

STAND_INS = Path("build/stand-ins") / platform.release()
MODULE = "ttft_standin"
CALL_US, EVENT_US = 1000, 40_000
#: The program's time of calls, and ours, differ by no more.
NEAR = 0.05
#: A busy host stops a guest where it likes, also between the program's clock and ours: which makes
#: a try worse, never better.
TRIES = 6
#: Delays of the calls that are timed, and how many: one by one, and coalesced to runs.
_TIMED = ((150_000, 3), (8000, 40))
PAGE = 4096
#: A dumb buffer of vgem: 640 x 480 pixels of 4 bytes.
_WIDTH, _HEIGHT, _BUFFER = 640, 480, 640 * 480 * 4
_CAP_PRIME, _POLL_MS = 5, 100


@dataclass
class Trial:
    """What is wrong, and times of what was timed: (the program's, ours)."""

    scene: Scene
    wrong: list[str] = field(default_factory=list)
    times: dict[str, tuple[int, int]] = field(default_factory=dict)
    steps: int = 0

    def line(self, caller: DeviceCaller, line: str, key: Key, **expected: Any) -> Done:
        """A step that is this line."""
        return self.step(caller, line, key, lambda: caller.ask(line), **expected)

    def step(
        self, caller: DeviceCaller, name: str, key: Key, work: Callable[[], Done], **expected: Any
    ) -> Done:
        """One line of work, told as exactly that and nothing else. `expected`: of Sums."""
        before = self.scene.sums(caller.pid)
        done = work()
        found = self.scene.since(caller.pid, before)
        ours = found[key].busy_ns if key in found else 0
        wanted = {key: Sums(**{"count": 1, **expected}, busy_ns=ours)}
        if found != wanted:
            self.wrong.append(f"{name}: expected {wanted}, found {found}")
        if not 0 < ours <= done.ns:
            self.wrong.append(f"{name} took {ours} ns, the program says {done.ns}")
        self.steps += 1
        return replace(done, ours_ns=ours)

    def timed(self, name: str, work: Callable[[], Done]) -> None:
        """A step whose time is the program's."""
        for _ in range(TRIES):
            done = work()
            self.times[name] = done.ns, done.ours_ns
            if done.ours_ns >= (1 - NEAR) * done.ns:
                return
        self.wrong.append(f"{name}: {done.ours_ns} ns, the program says {done.ns}")

    def known(self, caller: DeviceCaller, slot: int, one: Known) -> Done:
        """A call whose kind and bytes are known."""
        name = f"{one.node} {one.number:#x} {one.fields}"
        size = None if one.bytes is None else one.bytes * one.count
        return self.step(
            caller, name, (one.node, one.what),
            lambda: caller.ioctl(slot, one.number, one.count, one.fields),
            count=one.count, bytes=size,
        )  # fmt: skip


def _set(**parameters: int) -> None:
    for name, value in parameters.items():
        Path(f"/sys/module/{MODULE}/parameters/{name}").write_text(str(value))


def _majors() -> dict[str, int]:
    lines = Path("/proc/devices").read_text().partition("Block")[0].splitlines()
    return {line.split()[1]: int(line.split()[0]) for line in lines if line[:3].strip().isdigit()}


def load_module(folder: Path) -> None:
    """Loads it and makes the nodes, as nvidia-modprobe does."""
    command = ["insmod", str(STAND_INS / f"{MODULE}.ko")]
    subprocess.run([*command, f"call_us={CALL_US}", f"event_us={EVENT_US}"], check=True)
    majors = _majors()
    folder.mkdir()
    for name, major, minor in (
        ("nvidia0", 195, 0), ("nvidiactl", 195, 255), ("nvidia-uvm", majors["nvidia-uvm"], 0),
        ("kfd", majors["kfd"], 0),
    ):  # fmt: skip
        os.mknod(folder / name, 0o600 | 0o020000, os.makedev(major, minor))


def check_drivers(trial: Trial, nodes: Path) -> None:
    """Every call of the list, and what is no ioctl."""
    with DeviceCaller(STAND_INS / "device_calls") as caller:
        trial.scene.adopt(caller.pid)
        slots = {name: slot for slot, name in enumerate((*known.NODES, "nvidia0"))}
        for name, slot in slots.items():
            trial.line(caller, f"open {slot} {nodes / name}", (name, "open"))
        for one in known.ALL:
            trial.known(caller, slots[one.node], one)
        _rest(trial, caller, slots)
        _times(trial, caller, slots, nodes)
        for name, slot in slots.items():
            trial.line(caller, f"close {slot}", (name, "free"))
        trial.scene.finish(caller)


def _rest(trial: Trial, caller: DeviceCaller, slots: dict[str, int]) -> None:
    """Mappings, waiting, calls that fail."""
    device, uvm, ctl = slots["nvidia0"], slots["nvidia-uvm"], slots["nvidiactl"]
    length = 16 * PAGE
    trial.line(caller, f"map {device} {length} 0", ("nvidia0", "map"), bytes=length)
    caller.ask("touch 16")
    caller.ask("unmap")
    trial.line(caller, f"map {uvm} {length} same", ("nvidia-uvm", "map"), bytes=length)
    caller.ask("unmap")
    trial.line(caller, f"poll {device} 3 5000", ("nvidia0", "sync"), count=3)
    trial.step(caller, "unknown", ("nvidia-uvm", "other"),
               lambda: _failing(caller, f"ioctl {uvm} 99 2 m0"), count=2, failed=2)  # fmt: skip
    caller.fill([Field(0, 4, 0x4A), Field(4, 4, 1 << 20), Field(8, 4, 2, 8), Field(88, 8, PAGE, 8)])
    refused = f"ioctl {ctl} {encoded('F', known.XFER, 16)} 1 m0"
    trial.step(caller, "an allocation that fails", ("nvidiactl", "allocate"),
               lambda: _failing(caller, refused), failed=1)  # fmt: skip


def _times(trial: Trial, caller: DeviceCaller, slots: dict[str, int], nodes: Path) -> None:
    """Calls of set delays. What a driver does at a close comes after the call: it is not timed."""
    uvm, device = slots["nvidia-uvm"], slots["nvidia0"]
    for delay_us, count in _TIMED:
        _set(call_us=delay_us)
        call = Known("nvidia-uvm", 51, "transfer", 5 * PAGE, (Field(8, 8, 5 * PAGE),), count)
        trial.timed(f"{count} ioctls of {delay_us} us", lambda: trial.known(caller, uvm, call))  # noqa: B023
    _set(call_us=CALL_US, map_us=_TIMED[0][0], open_us=_TIMED[0][0])
    trial.timed("mmap", lambda: _mapped(trial, caller, device))
    trial.timed("poll", lambda: trial.line(
        caller, f"poll {device} 4 5000", ("nvidia0", "sync"), count=4
    ))  # fmt: skip
    trial.timed("open", lambda: _opened(trial, caller, device, nodes / "nvidia0"))
    _set(map_us=0, open_us=0)


def _mapped(trial: Trial, caller: DeviceCaller, slot: int) -> Done:
    done = trial.line(caller, f"map {slot} {PAGE} 0", ("nvidia0", "map"), bytes=PAGE)
    caller.ask("unmap")
    return done


def _opened(trial: Trial, caller: DeviceCaller, slot: int, node: Path) -> Done:
    """The last user closes it and opens it again, so that it is brought up."""
    trial.line(caller, f"close {slot}", ("nvidia0", "free"))
    return trial.line(caller, f"open {slot} {node}", ("nvidia0", "open"))


def _failing(caller: DeviceCaller, line: str) -> Done:
    return Done(*map(int, caller.tell(line).split()))


def check_container(trial: Trial) -> None:
    """In a mount namespace of its own, on a file system nobody else sees, by another name."""
    inside = Path("/mnt/control-of-nobody")
    inside.mkdir(parents=True, exist_ok=True)
    script = (
        f"mount -t tmpfs none {inside} && mknod {inside}/gpu c 195 0 && "
        f"cp {STAND_INS}/device_calls {inside} && exec {inside}/device_calls"
    )
    with DeviceCaller("unshare", "--mount", "sh", "-ec", script) as caller:
        caller.ask("clear")
        trial.scene.adopt(caller.pid)
        if (inside / "gpu").exists():
            trial.wrong.append("the container's node is seen outside")
        trial.line(caller, f"open 0 {inside}/gpu", ("nvidia0", "open"))
        number = encoded("F", 0x4E, 56)
        trial.step(
            caller, "map inside", ("nvidia0", "map"),
            lambda: caller.ioctl(0, number, 5, [Field(24, 8, 3 * PAGE)]),
            count=5, bytes=15 * PAGE,
        )  # fmt: skip
        trial.scene.finish(caller)


def check_vgem(trial: Trial) -> None:
    """Buffers, fences and waiting on the kernel's own driver."""
    card, render = (_drm(kind) for kind in ("card", "renderD"))
    with DeviceCaller(STAND_INS / "device_calls") as caller:
        trial.scene.adopt(caller.pid)
        for slot, name in enumerate((card, render)):
            trial.line(caller, f"open {slot} /dev/dri/{name}", (name, "open"))
        for number, size, what, fields in (
            (0x00, 64, "query", ()), (0x0C, 16, "query", (Field(0, 8, _CAP_PRIME),)),
        ):  # fmt: skip
            trial.known(caller, 1, Known(render, encoded("d", number, size), what, None, fields, 4))
        make = (Field(0, 4, _HEIGHT), Field(4, 4, _WIDTH), Field(8, 4, 32))
        trial.known(caller, 0, Known(card, encoded("d", 0xB2, 32), "allocate", _BUFFER, make, 7))
        _buffer(trial, caller, card, caller.ask("peek 16 4").result)
        trial.timed("poll of vgem", lambda: trial.line(
            caller, f"poll 0 3 {_POLL_MS}", (card, "sync"), count=3
        ))  # fmt: skip
        trial.line(caller, "close 1", (render, "free"))
        trial.scene.finish(caller)


def _buffer(trial: Trial, caller: DeviceCaller, card: str, handle: int) -> None:
    """The last buffer made: mapped, shared, fenced, destroyed."""
    there = (Field(0, 4, handle),)
    trial.known(caller, 0, Known(card, encoded("d", 0xB3, 16), "map", None, there, 1))
    offset = caller.ask("peek 8 8").result
    trial.line(caller, f"map 0 {_BUFFER} {offset}", (card, "map"), bytes=_BUFFER)
    caller.ask(f"touch {_BUFFER // PAGE}")
    caller.ask("unmap")
    trial.known(caller, 0, Known(card, encoded("d", 0x2D, 12), "share", None, there, 3))
    trial.known(caller, 0, Known(card, encoded("d", 0x41, 16), "sync", None, there, 1))
    fence = (Field(0, 4, caller.ask("peek 8 4").result),)
    trial.known(caller, 0, Known(card, encoded("d", 0x42, 8), "sync", None, fence, 1))
    trial.known(caller, 0, Known(card, encoded("d", 0xB4, 4), "free", None, there, 1))


def _drm(kind: str) -> str:
    return next(path.name for path in Path("/dev/dri").iterdir() if path.name.startswith(kind))


_CU_INIT = "import ctypes; input(); print(ctypes.CDLL('/tmp/libcuda.so.1').cuInit(0)); input()"


def check_library(trial: Trial, nodes: Path) -> dict[str, Any]:
    """NVIDIA's own library starting up on the stand-in: a real client's first calls."""
    Path("/tmp/libcuda.so.1").write_bytes((STAND_INS / "libcuda.so.1").read_bytes())
    for node in nodes.iterdir():
        if not Path("/dev", node.name).exists():
            os.mknod(f"/dev/{node.name}", 0o600 | 0o020000, node.stat().st_rdev)
    with subprocess.Popen(
        [sys.executable, "-c", _CU_INIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        trial.scene.adopt(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        answer = int(process.stdout.readline())
        sums = trial.scene.sums(process.pid)
        asked = [c.number for c in trial.scene.calls.values() if c.tgid == process.pid]
        process.communicate("\n")
    for key in (("nvidiactl", "open"), ("nvidiactl", "query")):
        if key not in sums:
            trial.wrong.append(f"of libcuda's cuInit no {key} is told: {sums}")
    told = {f"{device} {what}": asdict(found) for (device, what), found in sums.items()}
    return {"cuInit": answer, "calls": told, "numbers": asked}


def main() -> int:
    """Writes $OUT/devices.json and what is wrong."""
    if not (STAND_INS / "device_calls").exists():
        print(f"no stand-ins were built for {platform.release()}")
        return 0
    subprocess.run(["modprobe", "vgem"], check=True)
    module, nodes, library = (STAND_INS / f"{MODULE}.ko").exists(), Path("/run/nodes"), None
    if module:
        load_module(nodes)
    with scene() as opened:
        trial = Trial(opened)
        if module:
            check_drivers(trial, nodes)
            check_container(trial)
            library = check_library(trial, nodes)
        check_vgem(trial)
        lost = dict(opened.lost())
    if lost:
        trial.wrong.append(f"lost: {lost}")
    facts = {"module": module, "steps": trial.steps, "times": trial.times, "libcuda": library}
    out = Path(os.environ["OUT"])
    (out / "devices.json").write_text(json.dumps(facts, indent=1))
    if module:
        parameters = Path(f"/sys/module/{MODULE}/parameters")
        trial.wrong += devices_start.run(out, nodes, parameters)
    print("\n".join(trial.wrong) or f"{trial.steps} steps as expected")
    return 1 if trial.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
