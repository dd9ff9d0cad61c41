"""Does at once what the first requests of a server need, before its records come to their turn.

Who listens may be a server that no program name gave away; only a look at the process tells.
And segments are seen only in the cgroups of servers (tracer/kernel/placing.py): of one that
starts, or whose socket is in another cgroup, the kernel side has to be told. On a busy host the
engine does both too late for the first requests.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from tracer.errors import KernelError, RecordError
from tracer.kernel import layouts, wire
from tracer.kernel.wire import RawUnseen
from tracer.records import Listen, Unlisten

_KIND_AT = {name: at for name, at, _ in layouts.HEADER.members()}["kind"]
_LISTEN = next(n for n, kind in layouts.KINDS.items() if kind == "listen")
_EXEC = next(n for n, kind in layouts.KINDS.items() if kind == "exec")
_PACKET = next(n for n, kind in layouts.KINDS.items() if kind == "packet")
_PUT_MAX = 4096
_OURS = frozenset({_LISTEN, _EXEC, _PACKET})


class Ports(Protocol):
    """What is asked of tracer/kernel/loader.py."""

    def watch_port(self, netns: int, port: int) -> None: ...
    def drop_port(self, netns: int, port: int) -> None: ...


class Places(Protocol):
    """What is asked of tracer/kernel/placing.py."""

    def process(self, tgid: int) -> None: ...
    def socket(self, port: tuple[int, int], inode: int, tgid: int | None = None) -> None: ...


class Ahead:
    """`hear()` what came out of the rings, in whichever thread took it, as soon as it is there.

    `serves` says whether a process that listens is a server's, from any thread; `stir` is told
    of all that servers do (tracer/kernel/takes.py).
    """

    def __init__(
        self,
        ports: Ports,
        serves: Callable[[Listen], bool],
        places: Places,
        stir: Callable[[], None] = lambda: None,
    ) -> None:
        self._ports = ports
        self._serves = serves
        self._places = places
        self._stir = stir
        #: Ports that were watched for what happened lately.
        self._put: set[tuple[int, int]] = set()

    def hear(self, fresh: list[bytes]) -> None:
        """Watch the ports that servers opened, and what is in their cgroups."""
        kinds = [data[_KIND_AT] if len(data) > _KIND_AT else 0 for data in fresh]
        if not _OURS.isdisjoint(kinds):
            self._stir()
        listens: list[wire.Raw] = []
        for kind, data in zip(kinds, fresh, strict=True):
            with suppress(RecordError, KernelError):  # its turn comes, and tells
                if kind == _EXEC:
                    self._places.process(layouts.HEADER.packer.unpack_from(data)[1])
                elif kind == _LISTEN:
                    listens.append(wire.decode(data))
        for raw in _last(listens):
            with suppress(KernelError):
                self._listens(raw)

    def _listens(self, raw: wire.Raw) -> None:
        if isinstance(raw, RawUnseen):
            self._places.socket((raw.netns, raw.port), raw.cgroup)
        elif isinstance(raw, Unlisten):
            if (raw.netns, raw.port) in self._put:
                self._put.discard((raw.netns, raw.port))
                self._ports.drop_port(raw.netns, raw.port)
        elif isinstance(raw, Listen) and self._serves(raw):
            if raw.cgroup is None:
                self._places.process(raw.tgid)
            else:
                self._places.socket((raw.netns, raw.port), raw.cgroup, raw.tgid)
            if len(self._put) >= _PUT_MAX:
                self._put.clear()
            self._put.add((raw.netns, raw.port))
            self._ports.watch_port(raw.netns, raw.port)


def _last(listens: list[wire.Raw]) -> list[wire.Raw]:
    """Without those of ports that have closed since: who opens and closes them all the time is not
    to fill the kernel side's table."""
    closed = {(r.netns, r.port): r.ts_ns for r in listens if isinstance(r, Unlisten)}
    return [
        r
        for r in listens
        if not isinstance(r, Listen) or r.ts_ns > closed.get((r.netns, r.port), -1)
    ]
