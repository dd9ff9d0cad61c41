"""What `ttftd run` does before the daemon itself: the configuration and its overrides."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tracer.config import Config, load
from tracer.errors import ConfigError

SOCKET_MAX = 107


def start(config: str | None, socket: str | None, state: str | None, btf: str | None) -> None:
    """Read the configuration, let the options override it, and run until a signal."""
    for option, value in (("--config", config), ("--socket", socket), ("--state", state)):
        if value is not None and not value.strip():
            raise ConfigError(f"{option} is empty", "leave it out to use the default")
    options: dict[str, str] = {}
    if socket is not None:
        options["socket"] = str(Path(socket).absolute())
        if len(options["socket"].encode()) > SOCKET_MAX:
            raise ConfigError(
                f"--socket {socket}: longer than the {SOCKET_MAX} bytes a Unix socket allows",
                "give a shorter path",
            )
    if state is not None:
        options["state"] = str(Path(state).absolute())

    def read() -> Config:
        return replace(load(None if config is None else Path(config)), **options)

    settings = read()
    from tracer.daemon import run

    run(settings, None if btf is None else Path(btf), read)
