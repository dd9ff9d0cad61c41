"""At which cgroups the programs that see segments are attached.

A socket belongs to the cgroup that its process was in when it made it, an accepted one to its
listener's. Programs at the cgroups of servers are not run for anybody else's segments; at the root
they are run for each segment of the host. What is attached at a cgroup also sees what is below:
never are two of them attached one below the other, but for the moment of a hand-over, in which
some segments are told twice, which looks as if they had been sent twice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tracer.errors import KernelError
from tracer.kernel import cgroup, namespaces
from tracer.kernel.grouptree import UNKNOWN, Group, GroupTree, outermost

#: Cgroups at most; beyond, the root.
GROUPS_MAX = 64
#: No more are looked at one by one: whoever makes thousands must not keep us busy.
_WANTED_MAX = 4 * GROUPS_MAX
#: A server that restarts is soon back; some connections outlive their server a little, ns.
_PATIENCE_NS = 30_000_000_000
_REMEMBERED_MAX = 8192
_INIT = 1
K = TypeVar("K")
Port = tuple[int, int]


@dataclass(frozen=True)
class Places:
    """`groups`: paths of the cgroups. `because`: why at the root; None where not there."""

    groups: tuple[str, ...] = ()
    because: str | None = None

    def __str__(self) -> str:
        if self.because is not None:
            return f"of all cgroups, as {self.because}"
        return f"of {', '.join(self.groups)}" if self.groups else "of no cgroup: there is no server"


class Seen(Protocol):
    """The kernel side's table of cgroups it need not tell of (tracer/kernel/maps.py)."""

    def put(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> bool: ...


class Placement:
    """`begin()` at the root; after `follow()` only where servers are. From any thread."""

    def __init__(self, attach: Callable[[int, int], int], destroy: Callable[[int], None]) -> None:
        """`attach` gives a link for a program and a cgroup's descriptor, `destroy` ends one."""
        self._attach = attach
        self._destroy = destroy
        self._lock = threading.RLock()
        self._programs: tuple[int, ...] = ()
        self._tree: GroupTree | None = None
        self._links: dict[Group, list[int]] = {}
        self._wanted: dict[int, Group] = {}
        self._processes: dict[int, set[int]] = {}
        self._ports: dict[Port, set[int]] = {}
        self._follows = False
        self._by_port = False
        self._crowded = False
        self._refused: str | None = None
        self._due_ns: int | None = None
        self.seen: Seen | None = None

    @property
    def places(self) -> Places:
        """Where they are attached now."""
        with self._lock:
            tree = self._tree
            if tree is None:
                return Places()
            at_root = tree.root in self._links
            because = (self._because() or "a server is there") if at_root else None
            return Places(tuple(sorted(group.shown for group in self._links)), because)

    def begin(self, programs: Iterable[int]) -> None:
        """Attach at the root. KernelError where that cannot be."""
        with self._lock:
            self._programs = tuple(programs)
            self._tree = GroupTree(cgroup.open_root())
            try:
                self._put(self._tree.root)
            except KernelError:
                self.close()
                raise
            self._settle()

    def close(self) -> None:
        """Detach all."""
        with self._lock:
            for group in list(self._links):
                self._take(group)
            if self._tree is not None:
                self._tree.close()
            self._tree = None

    def follow(self) -> None:
        """From now on attached only at the cgroups of servers, unless the root is needed."""
        with self._lock:
            self._follows = True
            self._settle()

    def everywhere(self, by_port: bool) -> None:
        """Whether a server may be anywhere: a rule names nothing but its port."""
        with self._lock:
            self._by_port = by_port
            self._settle()

    # --- what is needed ----------------------------------------------------------------

    def process(self, tgid: int) -> None:
        """Sockets that a process makes are to be seen."""
        with self._lock:
            if self._tree is not None and self._note_process(tgid):
                self._settle()

    def socket(self, port: Port, inode: int, tgid: int | None = None) -> None:
        """Sockets of a port belong to the cgroup with this inode; perhaps that of a process."""
        with self._lock:
            if self._tree is None:
                return
            group = self._wanted.get(inode)
            if group is None:
                near = (tgid, _INIT) if tgid is not None else (_INIT,)
                found = self._tree.by_inode(inode, map(self._tree.of_process, near))
                group = Group(inode, "") if found is UNKNOWN else found
            if self._want(_entry(self._ports, port), group):
                self._settle()

    def listener(self, port: Port, tgid: int, parent: int | None) -> None:
        """A socket that was there before us: made by its process, or by who started that.

        Who is in the root cgroup counts for nobody else: that would be everybody.
        """
        with self._lock:
            if self._tree is None:
                return
            makers = {self._tree.of_process(p) for p in (parent, _INIT) if p}
            groups = [self._tree.of_process(tgid), *(makers - {self._tree.root, UNKNOWN})]
            fresh = False
            for group in groups:
                if group is not None:
                    fresh |= self._want(_entry(self._ports, port), group)
            if fresh:
                self._settle()

    def went(self, now_ns: int) -> None:
        """A process ended or a port closed: some cgroup may not be needed any more."""
        if self._due_ns is None:
            self._due_ns = now_ns + _PATIENCE_NS

    def due(self, now_ns: int) -> bool:
        """Whether it is time for `keep()`."""
        return self._due_ns is not None and now_ns >= self._due_ns

    def keep(self, watched: Collection[int], ports: Collection[Port]) -> None:
        """Let go of cgroups in which none of these is any more."""
        with self._lock:
            self._due_ns = None
            self._crowded = False
            if self._tree is None:
                return
            self._processes = {t: g for t, g in self._processes.items() if t in watched}
            self._ports = {port: g for port, g in self._ports.items() if port in ports}
            for tgid in watched:
                self._note_process(tgid)
            needed = set().union(*self._processes.values(), *self._ports.values())
            for group in list(self._wanted.values()):
                if group.inode not in needed:
                    self._forget(group)
            self._refused = None
            self._settle()

    def _note_process(self, tgid: int) -> bool:
        assert self._tree is not None
        group = self._tree.of_process(tgid)
        return group is not None and self._want(_entry(self._processes, tgid), group)

    def _want(self, whose: set[int], group: Group) -> bool:
        """Whether it is new."""
        known = self._wanted.get(group.inode)
        if known is None and len(self._wanted) >= _WANTED_MAX:
            crowded, self._crowded = self._crowded, True
            return not crowded
        whose.add(group.inode)
        self._wanted[group.inode] = group
        return known != group

    def _forget(self, group: Group) -> None:
        self._wanted.pop(group.inode, None)
        for groups in (*self._processes.values(), *self._ports.values()):
            groups.discard(group.inode)
        if self.seen is not None:
            self.seen.delete(_key(group.inode))

    # --- what is attached --------------------------------------------------------------

    def _because(self) -> str | None:
        """Why the root is needed, None where it is not."""
        groups = self._wanted.values()
        crowded = f"servers are in more than {GROUPS_MAX}"
        if self._crowded:
            return crowded
        reasons = {
            "ttftd is in a cgroup namespace of its own": namespaces.foreign("cgroup"),
            "it is not known yet where servers are": not self._follows,
            "a rule names a server by its port alone": self._by_port,
            "nobody can tell which one a server's sockets belong to": not all(
                group.path for group in groups
            ),
            self._refused or "": self._refused is not None,
        }
        why = next((why for why, so in reasons.items() if so), None)
        return why or (crowded if len(outermost(groups)) > GROUPS_MAX else None)

    def _settle(self) -> None:
        """Attach where it is missing, then detach where it is not needed: nothing is missed."""
        if self._tree is None:
            return
        for group in list(self._wanted.values()):
            # Another one may have its name now, as a unit that restarts has.
            if group.path and not self._tree.there(group):
                self._forget(group)
        target = self._target(self._tree)
        for group in target:
            if group not in self._links and not self._try(group):
                if group != self._tree.root:
                    self._settle()
                return
        for group in self._links.keys() - target:
            self._take(group)
        if self.seen is not None:
            for inode in self._wanted:
                self.seen.put(_key(inode), b"\1\0\0\0")

    def _target(self, tree: GroupTree) -> list[Group]:
        return [tree.root] if self._because() else outermost(self._wanted.values())

    def _try(self, group: Group) -> bool:
        """False where something else is needed now: it is gone, or cannot be attached to."""
        assert self._tree is not None
        try:
            self._put(group)
        except (KernelError, OSError) as error:
            if self._tree.there(group):
                self._refused = f"attaching at {group.shown} failed: {error}"
            else:
                self._forget(group)
            return False
        return True

    def _put(self, group: Group) -> None:
        assert self._tree is not None
        fd, links = self._tree.open(group), list[int]()
        try:
            for program in self._programs:
                links.append(self._attach(program, fd))
        except KernelError:
            for link in links:
                self._destroy(link)
            raise
        finally:
            os.close(fd)
        self._links[group] = links

    def _take(self, group: Group) -> None:
        for link in self._links.pop(group):
            self._destroy(link)


def _entry(table: dict[K, set[int]], key: K) -> set[int]:
    """Of a storm of processes or ports only so many are remembered: `keep()` looks at them."""
    found = table.get(key)
    if found is None:
        found = set()
        if len(table) < _REMEMBERED_MAX:
            table[key] = found
    return found


def _key(inode: int) -> bytes:
    return inode.to_bytes(8, "little")
