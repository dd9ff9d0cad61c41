"""Answers about the daemon and the host: status, models, doctor. Plain values in, JSON out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tracer.answers import SCHEMA, Json, wall_time
from tracer.records import Unreadable

UNREADABLE_MEANS: dict[Unreadable, tuple[str, str]] = {
    "tls": (
        "speaks TLS, which cannot be read from the socket",
        "end TLS in a proxy before it, so that the server itself speaks plain HTTP",
    ),
    "compressed": (
        "compresses its replies, so first tokens cannot be seen",
        "turn compression off in the server, or in the client's Accept-Encoding",
    ),
    "http2": ("speaks HTTP/2, which is not read yet", "let clients use HTTP/1.1"),
    "not_http": ("does not speak HTTP on this port", "check the port in [[server]]"),
    "old_connection": (
        "is used over connections older than ttftd",
        "it is read from the client's next connection on; restart the client to have it now",
    ),
    "gap": ("lost part of a connection's bytes", "raise [probes] packet_ring_kb"),
    "unix_socket": (
        "listens on a Unix socket, whose bytes are not seen",
        "let it listen on a TCP port",
    ),
}
"""What each reason means for the user, and what to do."""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """Base: `None` is unknown."""


class WatchedServer(_State, frozen=True):
    """A watched server. `requests`: seen since the daemon began."""

    name: str
    program: str
    pid: int
    port: int
    unreadable: Unreadable | None = None
    model: str | None = None
    requests: int = 0


class Probe(_State, frozen=True):
    """A probe group. `off_because` is set when not `attached`; `unseen`: what is missed then."""

    group: str
    attached: bool
    required: bool = True
    off_because: str | None = None
    unseen: str | None = None


class Cost(_State, frozen=True):
    """What the daemon itself takes. `cpu_share`: of one core, since it began."""

    pss_bytes: int | None = None
    cpu_ns: int | None = None
    cpu_share: float | None = None
    bpf_ns: int | None = None
    bpf_runs: int | None = None


class History(_State, frozen=True):
    """The state of the store; `trouble` and `hint` when it cannot be written."""

    path: str
    size_bytes: int | None = None
    pending: int = 0
    dropped: int = 0
    trouble: str | None = None
    hint: str | None = None


class Status(_State, frozen=True):
    """Everything `ttft status` shows. `lost`: records by kind. Times are wall clock."""

    version: str
    pid: int
    began_wall_ns: int
    kernel: str
    machine: str
    history: History
    servers: tuple[WatchedServer, ...] = ()
    probes: tuple[Probe, ...] = ()
    lost: dict[str, int] = msgspec.field(default_factory=dict)
    cost: Cost = Cost()
    open_requests: int = 0


class ModelSeen(_State, frozen=True):
    """A model and where it is now. `pids`: processes that hold it."""

    server: str
    model: str
    last_use_wall_ns: int | None = None
    weights: tuple[str, ...] = ()
    size_bytes: int | None = None
    cached_bytes: int | None = None
    vram_bytes: int | None = None
    pids: tuple[int, ...] | None = None


class Fact(Protocol):
    """Something about this host. `ok` None: only told; `hint`: what to do where it is False;
    `required`: nothing works without it."""

    @property
    def name(self) -> str: ...
    @property
    def ok(self) -> bool | None: ...
    @property
    def value(self) -> str: ...
    @property
    def hint(self) -> str | None: ...
    @property
    def required(self) -> bool: ...


def status(state: Status) -> Json:
    """The answer of `/v1/status`."""
    answer: Json = {"schema": SCHEMA, **msgspec.to_builtins(state)}
    answer["began"] = wall_time(answer.pop("began_wall_ns"))
    for server in answer["servers"]:
        means, advice = UNREADABLE_MEANS.get(server["unreadable"], (None, None))
        server["unreadable_means"], server["advice"] = means, advice
    return answer


def model(seen: ModelSeen) -> Json:
    """One entry of `/v1/models`."""
    answer: Json = {"schema": SCHEMA, **msgspec.to_builtins(seen)}
    last_ns = answer.pop("last_use_wall_ns")
    answer["last_use"] = None if last_ns is None else wall_time(last_ns)
    answer["cached_share"] = _share(seen.cached_bytes, seen.size_bytes)
    return answer


def _share(part: int | None, whole: int | None) -> float | None:
    if part is None or not whole:
        return None
    return round(min(1.0, part / whole), 4)


def doctor(facts: Sequence[Fact], *, daemon: bool) -> Json:
    """The answer of `/v1/doctor`; `daemon`: whether the daemon gave these facts."""
    return {
        "schema": SCHEMA,
        "daemon": daemon,
        "ok": not any(fact.ok is False and fact.required for fact in facts),
        "facts": [
            {
                "name": fact.name,
                "ok": fact.ok,
                "value": fact.value,
                "hint": fact.hint,
                "required": fact.required,
            }
            for fact in facts
        ],
    }
