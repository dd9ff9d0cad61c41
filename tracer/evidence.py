"""Evidence: everything one request's explanation stands on, as one value.

`requests.py` collects it from records, `timeline.py` and what follows read
nothing else, and the store keeps it, so newer code can derive an old request again.
Times are CLOCK_MONOTONIC in nanoseconds; None is unknown.
"""

from __future__ import annotations

import msgspec

from tracer.records import (
    Armed,
    Cached,
    Call,
    Command,
    Conn,
    DeviceCall,
    EndWhy,
    File,
    Insert,
    Io,
    Library,
    Lost,
    Memory,
    Names,
    Open,
    Ran,
    Resident,
    Samples,
    Says,
    Settings,
    Signal,
    Span,
    Telemetry,
    TokenWhat,
    Unreadable,
    Warm,
)


class Exchange(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One HTTP exchange on one connection, a client's or a hop's.

    `server_tgid` owns the listening port; `client_tgid` is set when a watched process is
    the client. `read_ns`: first take at or after arrival. `head_ns`: first response byte.
    `end_ns` and `why` are None while it is open.
    """

    xid: int
    conn: Conn
    endpoint: str | None
    arrival_ns: int
    server_tgid: int | None = None
    client_tgid: int | None = None
    body_ns: int | None = None
    read_ns: int | None = None
    read_tid: int | None = None
    head_ns: int | None = None
    first_token_ns: int | None = None
    first_token_what: TokenWhat | None = None
    second_token_ns: int | None = None
    first_answer_ns: int | None = None
    end_ns: int | None = None
    why: EndWhy | None = None
    status: int | None = None
    stream: bool | None = None
    event_stream: bool = False
    error: bool = False
    model: str | None = None
    reply_model: str | None = None
    prompt_bytes: int | None = None
    response_bytes: int = 0
    tokens: int | None = None
    says: Says | None = None
    unreadable: Unreadable | None = None


class Life(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A process of the server, as far as it touches the request's window.

    `fork_ns` None: older than the daemon; then `start_ns` is what /proc says, if known.
    `listen_ns`: when it opened its first listening port.
    """

    tgid: int
    ppid: int
    comm: str
    exe: str | None = None
    command: Command | None = None
    start_ns: int | None = None
    fork_ns: int | None = None
    exec_ns: int | None = None
    listen_ns: int | None = None
    exit_ns: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    signals: tuple[Signal, ...] = ()


class Other(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Another request of the same server, alive in this one's window, or the last before it.

    `id` None: not numbered (no request of a client). `runner`: tgid that served it.
    `runner_end_ns`: when the runner was done with it, where that was later than its own end.
    """

    xid: int
    arrival_ns: int
    id: int | None = None
    model: str | None = None
    runner: int | None = None
    runner_arrival_ns: int | None = None
    runner_head_ns: int | None = None
    runner_end_ns: int | None = None
    first_token_ns: int | None = None
    end_ns: int | None = None
    status: int | None = None
    failed: bool = False
    same_body: bool = False

    @property
    def done_ns(self) -> int | None:
        """When the server was done with it: the front may let a runner go on for nobody."""
        return None if self.end_ns is None else max(self.end_ns, self.runner_end_ns or 0)


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One request and all that bears on it.

    `hop` is the exchange between front and runner that served it, None where the front
    serves itself or the hop was not seen. `runner` is the tgid that served or was to
    serve it (the front's own where it holds the model). `lives` include the front, the
    runner, former runners that were alive at arrival, decoys, and helpers. `previous_model`
    is the model of the server's previous request. `resident_before`: whether the model
    was held by a live, loaded runner at arrival. `polls` are health exchanges on the runner.
    `began_ns`: when watching this server began. `lost`, `armed`: within the window.
    """

    id: int
    server: str
    program: str
    front: int
    request: Exchange
    began_ns: int
    wall_offset_ns: int
    hop: Exchange | None = None
    runner: int | None = None
    lives: tuple[Life, ...] = ()
    files: tuple[File, ...] = ()
    opens: tuple[Open, ...] = ()
    spans: tuple[Span, ...] = ()
    inserts: tuple[Insert, ...] = ()
    resident: tuple[Resident, ...] = ()
    memory: tuple[Memory, ...] = ()
    io: tuple[Io, ...] = ()
    ran: tuple[Ran, ...] = ()
    libraries: tuple[Library, ...] = ()
    calls: tuple[Call, ...] = ()
    cached: tuple[Cached, ...] = ()
    samples: tuple[Samples, ...] = ()
    names: Names | None = None
    devices: tuple[DeviceCall, ...] = ()
    telemetry: tuple[Telemetry, ...] = ()
    polls: tuple[Exchange, ...] = ()
    others: tuple[Other, ...] = ()
    previous_model: str | None = None
    resident_before: bool | None = None
    baseline: tuple[Warm, ...] = ()
    settings: Settings = msgspec.field(default_factory=lambda: Settings(ts_ns=0))
    lost: tuple[Lost, ...] = ()
    armed: tuple[Armed, ...] = ()
