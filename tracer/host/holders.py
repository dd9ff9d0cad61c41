"""Which processes of a server hold its listening sockets.

Who opens and closes sockets, or starts others, may do so thousands of times a second. So one look
at a family is good for all that happened before it; and who keeps us busy with looks all the same
is looked at no more for a while: of him what the kernel side tells is taken as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from tracer.host import proc, reach, sockets

Port = tuple[int, int]
"""(network namespace, port)"""

#: A family may have so much of our time at once, and a twentieth of it in the long run.
_SPENT_MAX_S = 0.5
#: Looks are kept for events that wait to be read: not for longer, nor of more than so many.
_KEPT_NS = 1_000_000_000
_KEPT_MAX = 64


class _Family(msgspec.Struct):
    """What a look at `at_ns` found; `fresh`: processes that came since it was made."""

    at_ns: int
    holders: dict[Port, int] = {}
    fresh: list[int] = []


class Holders:
    """Asked about events in their order, by one thread."""

    def __init__(self) -> None:
        self._patience = reach.Patience(spent_max_s=_SPENT_MAX_S)
        self._families: dict[int, _Family] = {}
        #: Of a network namespace: when it was looked at, port of each listening socket.
        self._tables: dict[int, tuple[int, dict[int, int]]] = {}
        self._since_ns = 0

    def of(self, front: int, kin: Iterable[int], ts_ns: int) -> dict[Port, int]:
        """The first of `kin` that holds each port, as it was at some time after `ts_ns`.

        Nobody, where they have kept us busy too much.
        """
        family = self._families.get(front)
        if family is None or family.at_ns < ts_ns:
            family = self._families[front] = _Family(time.monotonic_ns(), {}, list(kin))
            self._forget(front)
        if family.fresh:
            fresh, family.fresh = family.fresh, []
            self._look(front, family, fresh)
        return family.holders

    def none_listens(self, port: Port, front: int, tgid: int, ts_ns: int) -> bool:
        """Whether at some time after `ts_ns` nobody listened at a port of this process's namespace.

        A look at its sockets alone costs less than one at who has them.
        """
        table = self._fresh(port[0], ts_ns)
        if table is None:
            self._forget(front)
            if not self._patience.may_ask(front):
                return False
            began = time.monotonic()
            theirs = proc.netns(tgid) == port[0]
            table = self._table(port[0], tgid, ts_ns) if theirs else {}
            self._patience.charge(front, time.monotonic() - began)
        return bool(table) and port[1] not in table.values()

    def joined(self, front: int, tgid: int) -> None:
        """A process that is one of the family from now on."""
        family = self._families.get(front)
        if family is not None:
            family.fresh.append(tgid)

    def _look(self, front: int, family: _Family, tgids: list[int]) -> None:
        if not self._patience.may_ask(front):
            return
        began = time.monotonic()
        for tgid in tgids:
            if time.monotonic() - began > _SPENT_MAX_S:
                break
            netns = proc.netns(tgid)
            table = self._table(netns, tgid, family.at_ns) if netns else {}
            for inode in proc.socket_owners([tgid]) if table else ():
                if inode in table:
                    family.holders.setdefault((netns, table[inode]), tgid)
        self._patience.charge(front, time.monotonic() - began)

    def _table(self, netns: int, tgid: int, at_ns: int) -> dict[int, int]:
        table = self._fresh(netns, at_ns)
        if table is None:
            looked_ns = time.monotonic_ns()
            table = sockets.listening(tgid)
            self._tables[netns] = looked_ns, table
        return table

    def _fresh(self, netns: int, at_ns: int) -> dict[int, int] | None:
        """The last look at a namespace, where it was not made before."""
        known = self._tables.get(netns)
        return None if known is None or known[0] < at_ns else known[1]

    def _forget(self, front: int) -> None:
        """All but the one that is looked at now."""
        now_ns = time.monotonic_ns()
        crowded = max(len(self._families), len(self._tables)) > _KEPT_MAX
        if crowded or now_ns - self._since_ns > _KEPT_NS:
            self._since_ns = now_ns
            self._families = {f: kept for f, kept in self._families.items() if f == front}
            self._tables.clear()
