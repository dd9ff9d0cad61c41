"""What the kernel's drivers tell of their devices in /sys: amdgpu, i915, xe, and any PCI device."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracer.records import Limit
from tracer.telemetry.held import Device
from tracer.telemetry.texts import (
    MOST_BYTES,
    MOST_MHZ,
    generation,
    lanes,
    leading,
    megahertz,
    number,
    text,
)

Figures = dict[str, Any]
"""Fields of `Telemetry`."""

_LEVEL = re.compile(r"^\s*[\dS]+:\s*(\d{1,6})Mhz\s*(\*?)\s*$", re.MULTILINE | re.IGNORECASE)
_FORCED = re.compile(r"(?:low|high|manual|profile_[a-z_]{1,32}|perf_determinism)")
_MOST_REASONS = 64
_BUSES = 8
#: What Intel's drivers name as reasons, by what it comes from.
_INTEL: dict[str, Limit] = {
    "pl1": "power", "pl2": "power", "pl4": "power", "vr_tdc": "power", "psys_pl1": "power",
    "psys_pl2": "power", "thermal": "thermal", "prochot": "thermal", "ratl": "thermal",
    "vr_thermalert": "thermal", "soc_thermal": "thermal", "mem_thermal": "thermal",
    "vr_thermal": "thermal", "soc_avg_thermal": "thermal",
}  # fmt: skip


def figures(device: Device) -> Figures:
    """All that is told of a device; nothing of one without a folder."""
    if device.path is None:
        return {}
    own = {"amdgpu": _amdgpu, "i915": _i915, "xe": _xe}.get(device.driver)
    return {**link(device.path), **(own(device.path) if own else {})}


# --- PCI Express ---------------------------------------------------------------


def link(path: Path) -> Figures:
    """The link as slow as it is on the way to the device, and what the device itself could.

    Cards with a switch of their own tell a full link to that: the slot is further up.
    """
    way = list(_buses(path))
    speeds = [g for p in way if (g := generation(text(p / "current_link_speed"))) is not None]
    widths = [w for p in way if (w := lanes(number(p / "current_link_width", 64))) is not None]
    return {
        "link_generation": min(speeds, default=None),
        "link_width": min(widths, default=None),
        "link_generation_max": generation(text(path / "max_link_speed")),
        "link_width_max": lanes(number(path / "max_link_width", 64)),
    }


def _buses(path: Path) -> Iterator[Path]:
    """The device and the bridges above it."""
    at = Path(os.path.realpath(path))
    for _ in range(_BUSES):
        if not (at / "current_link_width").exists():
            return
        yield at
        at = at.parent


# --- AMD -----------------------------------------------------------------------


def _amdgpu(path: Path) -> Figures:
    clock, most = _levels(text(path / "pp_dpm_sclk"))
    memory, memory_most = _levels(text(path / "pp_dpm_mclk"))
    level = (text(path / "power_dpm_force_performance_level") or "").strip()
    forced = level if _FORCED.fullmatch(level) else None
    limits: tuple[Limit, ...] | None = ("setting",) if forced in ("low", "manual") else None
    return {
        "busy_percent": number(path / "gpu_busy_percent", 100),
        "memory_used_bytes": number(path / "mem_info_vram_used", MOST_BYTES),
        "memory_total_bytes": number(path / "mem_info_vram_total", MOST_BYTES),
        "clock_mhz": clock,
        "clock_max_mhz": most,
        "memory_clock_mhz": memory,
        "memory_clock_max_mhz": memory_most,
        "profile": forced,
        "limits": limits,
    }


def _levels(words: str | None) -> tuple[int | None, int | None]:
    """`1: 800Mhz *` is the level it is at: (now, highest)."""
    levels = [(int(mhz), bool(star)) for mhz, star in _LEVEL.findall(words or "")]
    now = next((mhz for mhz, star in levels if star), None)
    return megahertz(now), megahertz(max((mhz for mhz, _ in levels), default=None))


# --- Intel ---------------------------------------------------------------------


def _i915(path: Path) -> Figures:
    card = next(iter(sorted(path.glob("drm/card*"))), None)
    if card is None:
        return {}
    new = card / "gt" / "gt0"
    if (new / "rps_act_freq_mhz").exists():
        reasons = _reasons(new, "throttle_reason_status", "throttle_reason_")
        return _intel(new, ("rps_act_freq_mhz", "rps_RP0_freq_mhz", "rps_max_freq_mhz"), reasons)
    return _intel(card, ("gt_act_freq_mhz", "gt_RP0_freq_mhz", "gt_max_freq_mhz"), None)


def _xe(path: Path) -> Figures:
    folder = path / "tile0" / "gt0" / "freq0"
    reasons = _reasons(folder / "throttle", "status", "reason_")
    return _intel(folder, ("act_freq", "rp0_freq", "max_freq"), reasons)


def _intel(folder: Path, names: tuple[str, str, str], reasons: tuple[Limit, ...] | None) -> Figures:
    """`names`: of the clock now, the highest it could have, the highest it is allowed."""
    now, most, allowed = (leading(text(folder / name), MOST_MHZ) for name in names)
    limits = list(reasons or ())
    if now == 0:  # asleep between two jobs
        limits.append("idle")
    if allowed and most and allowed < most:
        limits.append("setting")
    return {
        "clock_mhz": megahertz(now),
        "clock_max_mhz": megahertz(most) or megahertz(allowed),
        "limits": None if reasons is None and not limits else tuple(dict.fromkeys(limits)),
    }


def _reasons(folder: Path, status: str, prefix: str) -> tuple[Limit, ...] | None:
    """Why the clock is held; None where it is not told."""
    if number(folder / status, 1) is None:
        return None
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return None
    found: list[Limit] = []
    for name in [n for n in names if n.startswith(prefix)][:_MOST_REASONS]:
        if name != status and number(folder / name, 1) == 1:
            found.append(_INTEL.get(name.removeprefix(prefix), "other"))
    return tuple(dict.fromkeys(found))
