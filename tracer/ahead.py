"""Watches a port as soon as a server opens it, before the records of that come to their turn.

Who listens may be a server that no program name gave away; only a look at the process tells.
On a busy host the engine takes that look too late for the first requests.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from tracer.errors import KernelError, RecordError
from tracer.kernel import layouts, wire
from tracer.records import Listen

_KIND_AT = {name: at for name, at, _ in layouts.HEADER.members()}["kind"]
_LISTEN = next(n for n, kind in layouts.KINDS.items() if kind == "listen")


class Ports(Protocol):
    """What is asked of tracer/kernel/loader.py."""

    def watch_port(self, netns: int, port: int) -> None: ...


class Ahead:
    """`hear()` what came out of the rings, in whichever thread took it, as soon as it is there.

    `serves` says whether a process that listens is a server's, from any thread.
    """

    def __init__(self, ports: Ports, serves: Callable[[Listen], bool]) -> None:
        self._ports = ports
        self._serves = serves

    def hear(self, fresh: list[bytes]) -> None:
        """Watch the ports that servers opened."""
        for data in fresh:
            if len(data) > _KIND_AT and data[_KIND_AT] == _LISTEN:
                with suppress(RecordError, KernelError):  # its turn comes, and tells
                    self._listens(data)

    def _listens(self, data: bytes) -> None:
        listen = wire.decode(data)
        if isinstance(listen, Listen) and self._serves(listen):
            self._ports.watch_port(listen.netns, listen.port)
