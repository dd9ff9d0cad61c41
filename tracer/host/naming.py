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
#: So many names of servers that are gone are remembered, and as many again as there are others.
_ROOM = 256


class Names:
    """Names given so far, by where a server listens."""

    def __init__(self) -> None:
        self._given: dict[Place, tuple[str, str]] = {}
        #: Where each name is, by network namespace: servers may come and go all the time.
        self._places: dict[str, dict[int, set[Place]]] = {}
        self._room = _ROOM

    def give(self, base: str, tgid: int, place: Place, living: Container[Place]) -> str:
        """`base`, with the container's name where a living server of another has it.

        A server that listens at the same place again keeps its name.
        """
        before = self._given.get(place)
        if before is not None and before[0] == base:
            return before[1]
        self._forget(place)
        if len(self._given) >= self._room:
            for gone in [p for p in self._given if p not in living]:
                self._forget(gone)
            self._room = _ROOM + 2 * len(self._given)
        taken = self._elsewhere(base, place[0], living)
        name = f"{base}@{_container(tgid, place[0])}" if taken else base
        self._given[place] = (base, name)
        self._places.setdefault(name, {}).setdefault(place[0], set()).add(place)
        return name

    def _elsewhere(self, name: str, netns: int, living: Container[Place]) -> bool:
        """Whether a living server of another namespace has it; those that are gone have not."""
        others = [space for space in self._places.get(name, ()) if space != netns]
        for space in others:
            while place := next(iter(self._places.get(name, {}).get(space, ())), None):
                if place in living:
                    return True
                self._forget(place)
        return False

    def _forget(self, place: Place) -> None:
        _, name = self._given.pop(place, ("", ""))
        spaces = self._places.get(name, {})
        places = spaces.get(place[0], set())
        places.discard(place)
        if not places:
            spaces.pop(place[0], None)
        if not spaces:
            self._places.pop(name, None)


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
