"""What a process has of a DRM device, as the driver tells in /proc/PID/fdinfo."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tracer.records import Holder
from tracer.telemetry.texts import MOST_BYTES, bounded, text

_LINE = re.compile(r"^(drm-[\w-]{1,64}):[ \t]*(\d{1,19})(?: ?(KiB|MiB|ns))?[ \t]*$", re.MULTILINE)
_CLIENT = "drm-client-id"
#: Memory of the device itself, not of the host's that it may use.
_LOCAL = ("vram", "local")
#: The first of these that a driver tells of a region counts.
_KINDS = ("drm-resident-", "drm-memory-", "drm-total-")
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_MOST_NS = 1 << 62
_MOST_FDS = 64


def holder(proc: Path, tgid: int, fds: Iterable[int]) -> Holder:
    """Sums over the process's clients of a device: descriptors of one client tell the same."""
    clients: dict[int, dict[str, tuple[int, str]]] = {}
    for fd in sorted(fds)[:_MOST_FDS]:
        told = {
            key: (int(digits), unit)
            for key, digits, unit in _LINE.findall(
                text(proc / str(tgid) / "fdinfo" / str(fd)) or ""
            )
        }
        if _CLIENT in told:
            clients[told[_CLIENT][0]] = told
    memory = [m for told in clients.values() if (m := _memory(told)) is not None]
    engines = [
        value
        for told in clients.values()
        for key, (value, unit) in told.items()
        if unit == "ns" and key.startswith("drm-engine-")
    ]
    return Holder(
        tgid=tgid,
        memory_bytes=bounded(sum(memory), MOST_BYTES) if memory else None,
        engines_ns=bounded(sum(engines), _MOST_NS) if engines else None,
    )


def _memory(told: dict[str, tuple[int, str]]) -> int | None:
    regions: dict[str, int] = {}
    for kind in _KINDS:
        for key, (value, unit) in told.items():
            region = key.removeprefix(kind)
            if key.startswith(kind) and region.startswith(_LOCAL) and unit in _UNITS:
                regions.setdefault(region, value * _UNITS[unit])
    return sum(regions.values()) if regions else None
