"""Answers about the daemon and the host: status, models, doctor. Plain values in, JSON out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tracer.answers import SCHEMA, Json, wall_time
from tracer.codes import meaning
from tracer.records import Unreadable

UNREADABLE_ADVICE: dict[Unreadable, str] = {
    "tls": "End TLS in a proxy before it, so that the server itself speaks plain HTTP.",
    "compressed": "Turn compression off in the server, or in the client's Accept-Encoding.",
    "http2": "Let clients use HTTP/1.1.",
    "not_http": "Check the port of this server in the configuration.",
    "old_connection": "It is read from the next connection on; restart the client to have it now.",
    "gap": "Raise [probes] packet_ring_kb in the configuration.",
    "unix_socket": "Let the server listen on a TCP port.",
}
"""What to do where a server cannot be read."""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """Base: `None` is unknown."""


class WatchedServer(_State, frozen=True):
    """A watched server. `requests`: seen since the daemon began; `place`: its unit or container."""

    name: str
    program: str
    pid: int
    port: int
    unreadable: Unreadable | None = None
    model: str | None = None
    requests: int = 0
    place: str | None = None


class Probe(_State, frozen=True):
    """A probe group. `off_because` is set when not `attached`; `unseen`: what is missed then.

    `why`, `since_s`: for one that comes and goes, what for (tracer/arming.py) and how long ago.
    `cgroups`: where it is attached, for one that is attached to cgroups; `root_because`: why it is
    attached to the root of all, where it is.
    """

    group: str
    attached: bool
    required: bool = True
    off_because: str | None = None
    unseen: str | None = None
    why: str | None = None
    since_s: float | None = None
    cgroups: tuple[str, ...] | None = None
    root_because: str | None = None


class Cost(_State, frozen=True):
    """What the daemon itself takes. `cpu_share`: of one core, since it began."""

    pss_bytes: int | None = None
    cpu_ns: int | None = None
    cpu_share: float | None = None
    bpf_ns: int | None = None
    bpf_runs: int | None = None


class Clocks(_State, frozen=True):
    """What the clocks did since the daemon began. `last_step_s`: positive: set ahead."""

    steps: int = 0
    last_step_s: float | None = None
    suspensions: int = 0
    suspended_s: float = 0.0


class History(_State, frozen=True):
    """The state of the store; `trouble` and `hint` when it cannot be written.

    `set_aside`: damaged ones that were kept beside it.
    """

    path: str
    size_bytes: int | None = None
    pending: int = 0
    dropped: int = 0
    trouble: str | None = None
    hint: str | None = None
    set_aside: tuple[str, ...] = ()


class Export(_State, frozen=True):
    """Where requests or figures go besides the socket. `sent` and `dropped` count requests."""

    name: str
    to: str
    sent: int | None = None
    dropped: int | None = None
    trouble: str | None = None


class Telemetry(_State, frozen=True):
    """Devices read while requests waited: what they are, how often, whether one is held now."""

    devices: dict[str, str] = msgspec.field(default_factory=dict)
    readings: int = 0
    holding: bool = False
    troubles: tuple[str, ...] = ()


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
    exports: tuple[Export, ...] = ()
    clock: Clocks = Clocks()
    telemetry: Telemetry = Telemetry()


class ModelSeen(_State, frozen=True):
    """A model and where it is now. `pids`: processes that hold it; `places`: where those run.

    `vram_bytes`: what these have of devices; None also where it may have changed since it was read.
    """

    server: str
    model: str
    last_use_wall_ns: int | None = None
    weights: tuple[str, ...] = ()
    size_bytes: int | None = None
    cached_bytes: int | None = None
    vram_bytes: int | None = None
    pids: tuple[int, ...] | None = None
    places: tuple[str, ...] = ()


class Fact(Protocol):
    """Something about this host. `ok` None: only told; where it is False, `missing` is what is
    lost by it and `advice` what to do. tracer/kernel/features.py has the ones of the kernel."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def ok(self) -> bool | None: ...
    @property
    def missing(self) -> str | None: ...
    @property
    def advice(self) -> str | None: ...


def status(state: Status) -> Json:
    """The answer of `/v1/status`."""
    answer: Json = {"schema": SCHEMA, **msgspec.to_builtins(state)}
    answer["began"] = wall_time(answer.pop("began_wall_ns"))
    for server in answer["servers"]:
        code = server["unreadable"]
        server["unreadable_means"] = meaning(code, "unreadable") if code else None
        server["advice"] = UNREADABLE_ADVICE.get(code)
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
        "ok": all(fact.ok is not False for fact in facts),
        "facts": [
            {
                "name": fact.name,
                "value": fact.value,
                "ok": fact.ok,
                "missing": fact.missing,
                "advice": fact.advice,
            }
            for fact in facts
        ],
    }
