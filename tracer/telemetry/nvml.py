"""NVIDIA's management library, through `nvidia-ml-py`; all of it in one thread.

Loaded at the first reading of a device that a watched process holds, and shut down when none does:
`nvmlInit` opens the driver, and a handle initialises its device.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from tracer.records import Holder, Limit
from tracer.telemetry.held import Device
from tracer.telemetry.texts import MOST_BYTES, bounded, label, lanes, megahertz

Figures = dict[str, Any]
Say = Callable[[str], None]

PACKAGE = "nvidia-ml-py"
#: How long it is left alone after it could not be begun, ns.
RETRY_NS = 60_000_000_000
#: A throughput is measured over 20 ms, in which the call does not come back.
_RATE_EVERY_NS = 500_000_000
_MOST_RATE = 1 << 40
_MOST_PROCESSES = 4096
_SM, _MEMORY = 1, 2
_TX, _RX = 0, 1
_REASONS: tuple[tuple[int, Limit], ...] = (
    (0x1, "idle"), (0x2, "setting"), (0x4, "power"), (0x8, "hardware"), (0x10, "sync"),
    (0x20, "thermal"), (0x40, "thermal"), (0x80, "power"), (0x100, "display"),
)  # fmt: skip
_KNOWN = 0x1FF
#: What a call may raise beside the library's own errors: texts and sizes that make no sense.
_NONSENSE = (ValueError, OverflowError, MemoryError, AttributeError, TypeError, OSError)


class Nvml:
    """`say` gets each trouble once. `step` is told what is called, before it is."""

    def __init__(self, say: Say, step: Say) -> None:
        self._say = say
        self._step = step
        self._lib: Any = None
        self._errors: tuple[type[Exception], ...] = _NONSENSE
        self._began = False
        self._retry_ns = 0
        self._handles: dict[Device, Any] = {}
        self._fixed: dict[Device, Figures] = {}
        self._rates: dict[Device, tuple[int, Figures]] = {}
        self._named: set[tuple[str, str]] = set()
        self._fresh: dict[str, list[str]] = {}

    def figures(self, device: Device, tgids: Iterable[int]) -> tuple[Figures, list[Holder]] | None:
        """All it tells of a device, and of these processes; None where it tells nothing."""
        if not self._begin():
            return None
        handle = self._handle(device)
        try:
            return None if handle is None else self._read(device, handle, tgids)
        finally:
            self._tell(device)

    def close(self) -> None:
        """Let go of all devices."""
        self._handles.clear()
        self._fixed.clear()
        self._rates.clear()
        if self._began:
            self._began = False
            self._ask("nvmlShutdown")

    # --- beginning -------------------------------------------------------------------

    def _begin(self) -> bool:
        if self._began:
            return True
        now_ns = time.monotonic_ns()
        if now_ns < self._retry_ns:
            return False
        self._retry_ns = now_ns + RETRY_NS
        if self._lib is None:
            self._step("")
            try:
                self._lib = lib = importlib.import_module("pynvml")
            except ImportError:
                self._once("", f"clocks and memory of NVIDIA devices need {PACKAGE}: "
                               f"pip install {PACKAGE}")  # fmt: skip
                return False
            # The second one is no kind of the first; older packages have it not.
            found = (getattr(lib, n, None) for n in ("NVMLError", "NVMLLibraryMismatchError"))
            self._errors = (*(e for e in found if e is not None), *_NONSENSE)
        self._step("nvmlInit")
        try:
            self._lib.nvmlInit()
        except self._errors as error:
            code = getattr(error, "value", None)
            self._once("nvmlInit", f"NVML cannot be used: {_words(error)}; {_help(code)}")
            return False
        self._began, self._retry_ns = True, 0
        return True

    def _handle(self, device: Device) -> Any:
        if device not in self._handles:
            # By its address, for a handle initialises its device, and no other may be woken.
            if device.address is not None:
                self._handles[device] = self._ask("nvmlDeviceGetHandleByPciBusId", device.address)
            else:
                self._handles[device] = self._by_minor(device.minor)
        return self._handles[device]

    def _by_minor(self, minor: int | None) -> Any:
        """Where /proc does not say which minor number is at which address: one device, or none."""
        count = bounded(self._ask("nvmlDeviceGetCount"), 1024)
        if count != 1 or minor is None:
            return None
        handle = self._ask("nvmlDeviceGetHandleByIndex", 0)
        known = None if handle is None else self._ask("nvmlDeviceGetMinorNumber", handle)
        return handle if known in (None, minor) else None

    # --- a reading -------------------------------------------------------------------

    def _read(
        self, device: Device, handle: Any, tgids: Iterable[int]
    ) -> tuple[Figures, list[Holder]]:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        total = bounded(getattr(memory, "total", None), MOST_BYTES, 1)
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        found: Figures = {
            **self._unchanging(device, handle),
            "memory_total_bytes": total,
            "memory_used_bytes": bounded(getattr(memory, "used", None), total or MOST_BYTES),
            "busy_percent": bounded(getattr(rates, "gpu", None), 100),
            "clock_mhz": megahertz(self._ask("nvmlDeviceGetClockInfo", handle, _SM)),
            "memory_clock_mhz": megahertz(self._ask("nvmlDeviceGetClockInfo", handle, _MEMORY)),
            "pstate": bounded(self._ask("nvmlDeviceGetPerformanceState", handle), 15),
            "limits": self._limits(handle),
            "link_generation": _generation(
                self._ask("nvmlDeviceGetCurrPcieLinkGeneration", handle)
            ),
            "link_width": lanes(self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle)),
            **self._throughput(device, handle),
        }
        return found, self._holders(handle, frozenset(tgids))

    def _unchanging(self, device: Device, handle: Any) -> Figures:
        if device not in self._fixed:
            widest = lanes(self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle))
            self._fixed[device] = {
                "name": label(self._ask("nvmlDeviceGetName", handle)),
                "clock_max_mhz": megahertz(self._ask("nvmlDeviceGetMaxClockInfo", handle, _SM)),
                "memory_clock_max_mhz": megahertz(
                    self._ask("nvmlDeviceGetMaxClockInfo", handle, _MEMORY)
                ),
                "link_generation_max": _generation(
                    self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)
                ),
                "link_width_max": widest,
            }
        return self._fixed[device]

    def _limits(self, handle: Any) -> tuple[Limit, ...] | None:
        found = self._ask(
            "nvmlDeviceGetCurrentClocksEventReasons", handle,
            older="nvmlDeviceGetCurrentClocksThrottleReasons",
        )  # fmt: skip
        bits = bounded(found, (1 << 64) - 1)
        if bits is None:
            return None
        limits = [limit for bit, limit in _REASONS if bits & bit]
        return tuple(dict.fromkeys(limits + (["other"] if bits & ~_KNOWN else [])))

    def _throughput(self, device: Device, handle: Any) -> Figures:
        now_ns = time.monotonic_ns()
        last = self._rates.get(device)
        if last is not None and now_ns - last[0] < _RATE_EVERY_NS:
            return last[1]
        found: Figures = {}
        for name, counter in (("pcie_tx_rate", _TX), ("pcie_rx_rate", _RX)):
            told = bounded(self._ask("nvmlDeviceGetPcieThroughput", handle, counter), _MOST_RATE)
            found[name] = None if told is None else told << 10
        self._rates[device] = (now_ns, found)
        return found

    def _holders(self, handle: Any, tgids: frozenset[int]) -> list[Holder]:
        memory: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            name = f"nvmlDeviceGet{kind}RunningProcesses"
            found = self._ask(f"{name}_v3", handle, older=f"{name}_v2") or ()
            for one in found[:_MOST_PROCESSES]:
                if one.pid in tgids:
                    used = bounded(one.usedGpuMemory, MOST_BYTES)
                    memory[one.pid] = max(used or 0, memory.get(one.pid) or 0) or used
        return [Holder(tgid=tgid, memory_bytes=memory.get(tgid)) for tgid in sorted(tgids)]

    # --- calls, and what they say when they fail ----------------------------------------

    def _ask(self, name: str, *args: Any, older: str | None = None) -> Any:
        """What a function returns, or its `older` one; None where it fails, which is told once."""
        self._step(name)
        try:
            return getattr(self._lib, name)(*args)
        except self._errors as error:
            if older is not None:
                self._step(older)
                with suppress(*self._errors):
                    return getattr(self._lib, older)(*args)
            self._fresh.setdefault(_words(error), []).append(name)
            return None

    def _tell(self, device: Device) -> None:
        """What failed in a reading and never did before, in one line."""
        parts = []
        for words, names in self._fresh.items():
            new = [n for n in dict.fromkeys(names) if (n, words) not in self._named]
            self._named.update((n, words) for n in new)
            if new:
                parts.append(f"{words}: {', '.join(new)}")
        self._fresh.clear()
        if parts:
            self._say(f"NVML does not tell all of {device.key}: {'; '.join(parts)}")

    def _once(self, what: str, words: str) -> None:
        if (what, words) not in self._named:
            self._named.add((what, words))
            self._say(words)


def _words(error: BaseException) -> str:
    """An error in its own words, which the library itself may have to give."""
    try:
        return label(str(error)) or type(error).__name__
    except _NONSENSE:
        return type(error).__name__


def _help(code: int | None) -> str:
    """What to do where it cannot be begun."""
    return {
        4: "its device nodes are closed to ttftd (as a service: docs/telemetry.md)",
        9: "the driver is not loaded, or its device nodes are closed to ttftd (docs/telemetry.md)",
        12: "install the driver's libnvidia-ml.so.1",
        18: "the driver was updated: restart the machine",
    }.get(code or 0, "it is tried again with later requests")


def _generation(value: object) -> int | None:
    return bounded(value, 8, 1)
