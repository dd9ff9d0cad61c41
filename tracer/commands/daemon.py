"""What `ttftd run` does before the daemon itself: the configuration and its overrides."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tracer.config import load
from tracer.errors import ConfigError

SOCKET_MAX = 107


def start(config: str | None, socket: str | None, state: str | None, btf: str | None) -> None:
    """Read the configuration, let the options override it, and run until a signal."""
    for option, value in (("--config", config), ("--socket", socket), ("--state", state)):
        if value is not None and not value.strip():
            raise ConfigError(f"{option} is empty", "leave it out to use the default")
    settings = load(None if config is None else Path(config))
    if socket is not None:
        path = str(Path(socket).absolute())
        if len(path.encode()) > SOCKET_MAX:
            raise ConfigError(
                f"--socket {path}: longer than the {SOCKET_MAX} bytes a Unix socket allows",
                "give a shorter path",
            )
        settings = replace(settings, socket=path)
    if state is not None:
        settings = replace(settings, state=str(Path(state).absolute()))
    from tracer.daemon import run

    run(settings, None if btf is None else Path(btf))
