"""What the daemon has of all this: the watch, and names for what was worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tracer.config import Config
from tracer.derived import Derived
from tracer.kernel.loader import Kernel
from tracer.records import Names
from tracer.stacks.names import Namer
from tracer.stacks.watch import StackWatch
from tracer.stacks.when import When


class Sampling:
    """`watch` gives the samples. `over()` from the engine's thread; `tell` gets names later."""

    def __init__(
        self,
        kernel: Kernel,
        config: Config,
        tell: Callable[[Names], object],
        say: Callable[[str], None],
    ) -> None:
        off = "stacks" in config.probes.all_off
        when = When(round(config.spike.min_ms * 1e6), config.spike.factor)
        self.watch = StackWatch(kernel, when, say, off=off)
        self._namer = Namer(tell, say)

    def over(self, derived: Iterable[Derived]) -> None:
        """Ask for the names of functions in requests that are over and were slow."""
        for item in derived:
            if item.wants_names and item.over and item.evidence.samples:
                self._namer.name(item.evidence, self.watch.mappings)

    def close(self) -> None:
        """No more samples, no more names."""
        self._namer.close()
        self.watch.close()
