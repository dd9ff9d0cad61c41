"""Where a process runs, by the name its owner knows: a systemd unit, a container."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

_ID = r"([0-9a-f]{64})"
_KINDS = (
    ("docker", re.compile(rf"(?:^|/)docker[-/]{_ID}(?:\.scope)?(?:/|$)")),
    ("podman", re.compile(rf"(?:^|/)libpod-(?:payload-)?{_ID}(?:\.scope)?(?:/|$)")),
    ("kubernetes", re.compile(rf"kubepods.*(?:^|[/-]){_ID}(?:\.scope)?(?:/|$)")),
    ("containerd", re.compile(rf"(?:^|/)(?:cri-containerd-|nerdctl-){_ID}(?:\.scope)?(?:/|$)")),
    ("lxc", re.compile(r"(?:^|/)lxc(?:\.payload\.|/)([A-Za-z0-9_.-]{1,64})(?:/|$)")),
    ("machine", re.compile(r"(?:^|/)machine-([A-Za-z0-9_.-]{1,64})\.scope(?:/|$)")),
)
_UNIT = re.compile(r"([A-Za-z0-9:_.@-]{1,128}\.service)(?:/|$)")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_DOCKER = Path("/var/lib/docker/containers")
_CONFIG_MAX = 1 << 20


class _DockerConfig(msgspec.Struct, frozen=True):
    Name: str = ""


def place_of(tgid: int, proc: Path = Path("/proc"), docker: Path = _DOCKER) -> str | None:
    """`ollama.service`, `docker ollama`, `podman 3f2a...`; None where nothing says.

    `docker` is where its containers' descriptions are; they are asked for the name alone.
    """
    try:
        with (proc / str(tgid) / "cgroup").open("rb") as file:
            text = file.read(65536).decode("utf-8", "replace")
    except OSError:
        return None
    return place_in(text, lambda number: _docker_name(docker, number))


def place_in(text: str, docker_name: Callable[[str], str | None]) -> str | None:
    """What the text of /proc/PID/cgroup says."""
    paths = [line.partition(":")[2].partition(":")[2] for line in text.splitlines()]
    paths = [_ESCAPED.sub(lambda found: chr(int(found[1], 16)), path) for path in paths]
    for kind, pattern in _KINDS:
        for path in paths:
            found = pattern.search(path)
            if found is not None:
                name = docker_name(found[1]) if kind == "docker" else None
                return f"{kind} {name or _short(found[1])}"
    for path in paths:
        units = _UNIT.findall(path)
        # What a user's own manager runs lies below it.
        if units:
            return str(units[-1])
    return None


def _short(number: str) -> str:
    return number[:12] if re.fullmatch(_ID, number) else number


def _docker_name(docker: Path, number: str) -> str | None:
    try:
        with (docker / number / "config.v2.json").open("rb") as file:
            config = msgspec.json.decode(file.read(_CONFIG_MAX), type=_DockerConfig)
    except (OSError, msgspec.DecodeError):
        return None
    name = config.Name.removeprefix("/")
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", name) else None
