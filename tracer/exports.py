"""What goes elsewhere: slow requests to the journal; when asked for, metrics on a port and
requests to a collector.

Without being asked nothing is imported for these, nothing is bound and nothing is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tracer.answers_state import Export
from tracer.api_port import MetricsPort
from tracer.config import Config
from tracer.derived import Derived
from tracer.errors import TtftError
from tracer.journal import slow
from tracer.log import log

if TYPE_CHECKING:
    from tracer.otlp import Sender

ALONE = (
    "the service has no network; allow it: sudo systemctl edit ttftd, with [Service] "
    "PrivateNetwork=no, RestrictAddressFamilies=AF_INET AF_INET6, IPAddressAllow=localhost"
)


class Exports:
    """`start`, then `stop`, in the interface's event loop; `add` from one thread."""

    def __init__(self, config: Config, metrics_text: Callable[[], bytes]) -> None:
        address = config.metrics.address
        self._alone = alone()
        self._port = None if address is None else MetricsPort(address, metrics_text)
        self._sender, self._unsent = _sender(config)

    async def start(self) -> None:
        """Begin; what cannot is logged and told by `states`."""
        if self._port is not None:
            await self._port.start()
        for one in self.states():
            log(f"{one.name} at {one.to}" + (f": {one.trouble}" if one.trouble else ""))

    async def stop(self) -> None:
        if self._port is not None:
            await self._port.stop()
        if self._sender is not None:
            await asyncio.to_thread(self._sender.close)

    def add(self, derived: Sequence[Derived]) -> None:
        """Requests, of which those that are over go out, once: not again with names."""
        over = [item for item in derived if item.over and item.evidence.names is None]
        for item in over:
            if item.spike.is_spike:
                slow(item)
        if self._sender is not None and over:
            self._sender.add(over)

    def states(self) -> tuple[Export, ...]:
        """For `ttft status`."""
        found = []
        if self._port is not None:
            host, port = self._port.address
            to = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
            found.append(Export(name="metrics", to=to, trouble=self._port.trouble))
        if self._sender is not None:
            found.append(self._sender.state())
        if self._alone:
            found = [replace(one, trouble=ALONE) for one in found]
        if self._unsent is not None:
            found.append(Export(name="otlp", to="nobody", trouble=self._unsent))
        return tuple(found)


def alone(proc: Path = Path("/proc")) -> bool:
    """Whether this process has a network of its own, which reaches nothing."""
    try:
        return (proc / "self/ns/net").stat().st_ino != (proc / "1/ns/net").stat().st_ino
    except OSError:
        return False


def _sender(config: Config) -> tuple[Sender | None, str | None]:
    """Who sends, or why nobody does though it was asked for."""
    from os import environ

    asked = config.otlp.endpoint or any(name.startswith("OTEL_EXPORTER_OTLP_") for name in environ)
    if not asked:
        return None, None
    from tracer.otlp import Sender, target

    try:
        to = target(config.otlp)
    except TtftError as error:
        return None, error.message
    return (None if to is None else Sender(to)), None
