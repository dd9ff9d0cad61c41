"""Whose doing it is that processes keep us waiting: one's own, or of a family of them.

A process may start as many others as it likes, so what each costs is charged to all above it: to
those that started it and, as one can leave its parents behind, to the control groups they are in.
To blame is what is farthest down and has enough below it: not, for what one child does, the shell
that started others, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

Family = tuple[str | int, ...]
"""Control groups by path, the wider first, then processes of the same one by id, parents before
children; the last is the process itself. Groups that hold what has nothing to do with each other
are left out."""

#: Of Kubernetes: all pods of a class.
_CLASSES = frozenset(
    ("besteffort", "burstable", "kubepods-besteffort.slice", "kubepods-burstable.slice")
)
_PARENTS_MAX = 32
_TEXT_MAX = 1 << 16


def family_of(tgid: int) -> Family:
    """Of a process that is gone, itself alone. Nothing that is read here waits for the process."""
    group = _group(tgid)
    line = [tgid]
    while (parent := _parent(line[-1])) > 1 and len(line) < _PARENTS_MAX:
        if parent in line or _group(parent) != group:
            break
        line.append(parent)
    parts = [part for part in group.split("/") if part]
    paths = ["/" + "/".join(parts[: n + 1]) for n in range(len(parts)) if not _shared(parts, n)]
    return (*paths, *reversed(line))


def _shared(parts: list[str], at: int) -> bool:
    """Whether it holds other services or containers too: what is right below the root does."""
    return at + 1 < len(parts) and (at == 0 or parts[at] in _CLASSES)


def to_blame(costs: Iterable[tuple[Family, float]], enough: float) -> set[str | int]:
    """Who has `enough` below it that nobody farther down is to blame for."""
    found: set[str | int] = set()
    left = list(costs)
    for depth in range(max((len(family) for family, _ in left), default=0), 0, -1):
        sums: defaultdict[str | int, float] = defaultdict(float)
        for family, cost in left:
            if len(family) >= depth:
                sums[family[depth - 1]] += cost
        worst = {node for node, cost in sums.items() if cost >= enough}
        found |= worst
        left = [(f, cost) for f, cost in left if len(f) < depth or f[depth - 1] not in worst]
    return found


def _parent(tgid: int) -> int:
    for line in _read(tgid, "status").split(b"\n"):
        if line.startswith(b"PPid:"):
            return int(line.split()[1])
    return 0


def _group(tgid: int) -> str:
    """Its group in the hierarchy that service managers and runtimes use; "" where unknown."""
    lines = [
        line.split(":", 2) for line in _read(tgid, "cgroup").decode(errors="replace").split("\n")
    ]
    paths = {fields[1]: fields[2] for fields in lines if len(fields) == 3}
    found = paths.get("name=systemd", "/")
    return paths.get("", "/") if found == "/" else found


def _read(tgid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{tgid}/{name}", "rb") as file:
            return file.read(_TEXT_MAX)
    except OSError:
        return b""
