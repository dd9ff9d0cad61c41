"""What goes elsewhere when asked for: metrics on a port, requests to a collector.

Without being asked nothing is imported for it, nothing is bound and nothing is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tracer.answers_state import Export
from tracer.api_port import MetricsPort
from tracer.config import Config
from tracer.derived import Derived
from tracer.errors import TtftError
from tracer.log import log

if TYPE_CHECKING:
    from tracer.otlp import Sender


class Exports:
    """`start`, then `stop`, in the interface's event loop; `add` from one thread."""

    def __init__(self, config: Config, metrics_text: Callable[[], bytes]) -> None:
        address = config.metrics.address
        self._port = None if address is None else MetricsPort(address, metrics_text)
        self._sender = _sender(config)

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
        """Requests, of which those that are over go out."""
        if self._sender is not None:
            self._sender.add([item for item in derived if item.over])

    def states(self) -> tuple[Export, ...]:
        """For `ttft status`."""
        found = []
        if self._port is not None:
            host, port = self._port.address
            to = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
            found.append(Export(name="metrics", to=to, trouble=self._port.trouble))
        if self._sender is not None:
            found.append(self._sender.state())
        return tuple(found)


def _sender(config: Config) -> Sender | None:
    from os import environ

    asked = config.otlp.endpoint or any(name.startswith("OTEL_EXPORTER_OTLP_") for name in environ)
    if not asked:
        return None
    from tracer.otlp import Sender, target

    try:
        to = target(config.otlp)
    except TtftError as error:
        log(f"otlp: {error.message}")
        return None
    return None if to is None else Sender(to)
