"""Names of servers: those of two containers that would be called alike are told apart."""

from __future__ import annotations

import re
from collections.abc import Container

from tracer.host import reach
from tracer.host.place import place_of

Place = tuple[int, int]
"""(network namespace, port)"""
_HOSTNAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LIMIT = 256


class Names:
    """Names given so far, by where a server listens."""

    def __init__(self) -> None:
        self._given: dict[Place, tuple[str, str]] = {}

    def give(self, base: str, tgid: int, place: Place, living: Container[Place]) -> str:
        """`base`, with the container's name where a living server of another has it.

        A server that listens at the same place again keeps its name.
        """
        self._given = {p: names for p, names in self._given.items() if p in living or p == place}
        before = self._given.get(place)
        if before is not None and before[0] == base:
            return before[1]
        others = [name for (netns, _), (_, name) in self._given.items() if netns != place[0]]
        name = f"{base}@{_container(tgid, place[0])}" if base in others else base
        self._given[place] = (base, name)
        return name


def _container(tgid: int, netns: int) -> str:
    """Its owner's name for it, else its own, else the number of its network namespace."""
    place = place_of(tgid)
    if place is not None:
        return place.split()[-1]
    return hostname(tgid) or str(netns)


def hostname(tgid: int, path: str = "/etc/hostname") -> str | None:
    """The host name in a file that anyone may have written, as this process sees it."""
    found = reach.PATIENCE.ask(tgid, path, lambda: reach.text(tgid, path, _LIMIT))
    found = (found or "").strip()
    return found if _HOSTNAME.fullmatch(found) else None
