"""The daemon begins: probes first, for what happens meanwhile should not be missed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.api_socket import claim
from tracer.config import Config
from tracer.errors import ConfigError, KernelError, TtftError
from tracer.host.own import one_arena
from tracer.kernel import namespaces, rights
from tracer.kernel.features import HOST_ADVICE, capabilities, missing_capabilities
from tracer.kernel.loader import Kernel
from tracer.kernel.modtypes import without_module_types
from tracer.kernel.probes import PROBES
from tracer.log import log

if TYPE_CHECKING:
    from tracer.store import Store

#: The thread that empties the rings must not wait five milliseconds (the default) for its turn.
_SWITCH_S = 0.0005


def run(
    config: Config, btf: Path | None = None, reread: Callable[[], Config] | None = None
) -> None:
    """Watch until SIGTERM or SIGINT. Raises TtftError when it cannot begin.

    `reread` gives the configuration again, at SIGHUP.
    """
    _check_rights()
    _check_groups(config)
    one_arena()
    without_module_types()
    sys.setswitchinterval(_SWITCH_S)
    with contextlib.ExitStack() as stack:
        place = claim(Path(config.socket), config.group)
        stack.callback(place.close)
        with ThreadPoolExecutor(1) as beside:
            opening = beside.submit(
                Kernel.open,
                btf=btf,
                off=config.probes.all_off,
                variant=config.probes.variant,
                stays=("files",) if config.probes.arming == "always" else (),
                sizes=_ring_sizes(config),
            )
            # The kernel takes its time to verify the programs; importing the rest takes as long.
            from tracer.backend import Daemon

            kernel = opening.result()
        stack.callback(kernel.close)
        store = _open_store(config)
        daemon = Daemon(config, store, kernel, None if btf is None else str(btf), reread)
        try:
            asyncio.run(daemon.serve(place))
        finally:
            store.close(daemon.next_id())


def _check_rights() -> None:
    if namespaces.foreign("user"):
        raise KernelError(
            "ttftd is in an unprivileged container (a user namespace), where the kernel takes "
            "no BPF programs", HOST_ADVICE,
        )  # fmt: skip
    if namespaces.foreign("pid"):
        raise KernelError(
            "ttftd is in a container with process ids of its own (a pid namespace), so it cannot "
            "tell whose events the kernel reports", f"{HOST_ADVICE}; docker has --pid=host",
        )  # fmt: skip
    lacking, mask = missing_capabilities(), capabilities()
    if lacking and not mask and os.geteuid() != 0:
        raise KernelError("ttftd must run as root", "start it with sudo, or as the ttftd service")
    if lacking:
        raise KernelError(
            f"ttftd lacks {', '.join(lacking)}",
            "a container needs them given; a service needs them in AmbientCapabilities "
            "and CapabilityBoundingSet",
        )
    for name, unseen in rights.blind(mask).items():
        log(f"without {name}; not seen: {unseen}")


def _check_groups(config: Config) -> None:
    needed = {probe.group for probe in PROBES if probe.required}
    may_be_off = {probe.group for probe in PROBES} - needed
    asked = set(config.probes.off)
    hint = f"these can be off: {', '.join(sorted(may_be_off))}"
    if unknown := sorted(asked - may_be_off - needed):
        raise ConfigError(f"[probes] off: no such group: {', '.join(unknown)}", hint)
    if asked & needed:
        raise ConfigError(
            f"[probes] off: nothing can be seen without {', '.join(sorted(asked & needed))}", hint
        )


def _ring_sizes(config: Config) -> dict[str, int]:
    """Ring sizes in bytes the configuration asks for."""
    asked = {"ring": config.probes.ring_kb, "packets": config.probes.packet_ring_kb}
    return {name: kb << 10 for name, kb in asked.items() if kb is not None}


def _open_store(config: Config) -> Store:
    from tracer.store import Store

    with _as_trouble(config.state):
        Path(config.state).mkdir(mode=0o750, parents=True, exist_ok=True)
    return Store(
        config.database,
        max_age_days=config.history.max_age_days,
        max_mb=config.history.max_mb,
        warn=log,
    )


@contextlib.contextmanager
def _as_trouble(state: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        from tracer.store.database import refuses

        if refuses(error):  # the history goes on in memory, and says so
            return
        raise TtftError(
            f"cannot make the state folder {state}: {error.strerror}",
            "give another one with --state, or make it writable for this user; "
            f"to the service: systemctl edit ttftd, [Service] ReadWritePaths={state}",
        ) from error
