"""How long a server's listening ports may be taken to still hold their models. Pure.

What one server holds is no other's affair: a server is the tree of processes below its front.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

#: Later than anything.
FOREVER_NS = 1 << 62

#: Network namespace and port.
Port = tuple[int, int]
#: Endpoint, and whether it streams.
Kind = tuple[str | None, bool | None]


@dataclass(slots=True, eq=False)
class Listener:
    """A listening port. `open`: exchanges that are not over; `heard_ns`: when one last moved.

    `safe_ns`: the longest pause that a request came through warm. `fickle`: it took up weights
    after one that was safe, so no pause proves anything.
    """

    tgid: int
    heard_ns: int | None = None
    safe_ns: int = 0
    fickle: bool = False
    open: set[int] = field(default_factory=set)
    took: dict[Kind, deque[int]] = field(default_factory=dict)

    @property
    def doubted_ns(self) -> int:
        """From when on what it holds is no longer sure."""
        if self.open:
            return FOREVER_NS
        return (self.heard_ns or 0) + (0 if self.fickle else self.safe_ns)


class Trees:
    """Ports that served requests, by server. `parents`: of watched processes."""

    def __init__(self, listeners: Iterable[Listener], parents: Mapping[int, int]) -> None:
        self._parents = parents
        self._trees: dict[int, list[Listener]] = {}
        for at in listeners:
            if at.heard_ns is not None:
                self._trees.setdefault(self._root(at.tgid), []).append(at)

    def doubted_ns(self, at: Listener) -> int:
        """From when on some port of this one's server is in doubt."""
        tree = self._trees.get(self._root(at.tgid), ())
        return min((one.doubted_ns for one in tree), default=0)

    def heard_in_doubt(self, at_ns: int) -> Iterator[int]:
        """When servers that are in doubt by then were last heard of, ns."""
        for tree in self._trees.values():
            if min(at.doubted_ns for at in tree) < at_ns:
                yield max(at.heard_ns or 0 for at in tree)

    def _root(self, tgid: int) -> int:
        """The process at the top of its tree, as far as watched."""
        seen = {tgid}
        while (parent := self._parents.get(tgid, 0)) in self._parents and parent not in seen:
            seen.add(tgid := parent)
        return tgid
