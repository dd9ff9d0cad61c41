"""Records: the one input of the pure pipeline, live or replayed.

A record is a fact with a time. Kernel records, facts read from HTTP payload,
discoveries in /proc and the context a recording starts with are all records, so
folding a list of them gives the same answers on any machine.

All times are CLOCK_MONOTONIC in nanoseconds, all sizes bytes. `None` is unknown.
No record holds prompt or answer text, request headers or full command lines.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Op = Literal["read", "read_direct", "mmap", "madvise", "munmap", "fault_minor", "fault_major"]
CallWhat = Literal[
    "model", "context", "alloc", "pin", "upload", "copy", "graph", "module", "compile", "submit",
    "decode",
]  # fmt: skip
DeviceWhat = Literal[
    "other", "open", "context", "allocate", "map", "pin", "queue", "transfer", "submit", "sync",
    "free", "share", "query",
]  # fmt: skip
"""Classes of driver calls, as tracer/devices/devicecalls.toml has them; `other`: not known."""
TokenWhat = Literal["text", "reasoning", "tool", "data"]
EndWhy = Literal["complete", "client_gone", "server_gone", "gap"]
Limit = Literal["idle", "setting", "power", "thermal", "hardware", "sync", "display", "other"]
Unreadable = Literal[
    "tls", "compressed", "http2", "not_http", "old_connection", "gap", "unix_socket"
]


class Record(
    msgspec.Struct,
    frozen=True,
    tag_field="t",
    omit_defaults=True,
    forbid_unknown_fields=True,
    kw_only=True,
):
    """Base of all records; `ts_ns` is when the fact began."""

    ts_ns: int


class Conn(msgspec.Struct, frozen=True, array_like=True):
    """A TCP connection from the server's side; `netns` is 0 where unknown."""

    netns: int
    server_ip: str
    server_port: int
    client_ip: str
    client_port: int


class Command(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a command line says, and nothing else of it (it may hold keys).

    `role`: `front` owns clients' port, `runner` holds a model, `single` is both,
    `decoy` looks at devices and goes, `other` is anything else.
    """

    program: str
    role: Literal["front", "runner", "single", "decoy", "other"] = "other"
    model: str | None = None
    model_path: str | None = None
    port: int | None = None
    options: tuple[str, ...] = ()


# --- processes ---------------------------------------------------------------


class Process(Record, frozen=True, kw_only=True, tag="process"):
    """A watched process found alive (context); `start_ns` when it was started."""

    tgid: int
    ppid: int
    start_ns: int
    comm: str
    exe: str | None = None
    command: Command | None = None


class Fork(Record, frozen=True, kw_only=True, tag="fork"):
    parent: int
    child: int
    comm: str


class Exec(Record, frozen=True, kw_only=True, tag="exec"):
    tgid: int
    comm: str
    exe: str | None = None
    command: Command | None = None


class Exit(Record, frozen=True, kw_only=True, tag="exit"):
    """`code` or `signal`: the one that ended it."""

    tgid: int
    code: int | None = None
    signal: int | None = None


class Signal(Record, frozen=True, kw_only=True, tag="signal"):
    """A signal to a watched process; `sender` None: sent by the kernel itself."""

    target: int
    signal: int
    sender: int | None = None


class Server(Record, frozen=True, kw_only=True, tag="server"):
    """A watched server: `tgid` is its front. `name` is like `llama-server:8080`."""

    name: str
    program: str
    tgid: int
    netns: int
    port: int
    unreadable: Unreadable | None = None


# --- files -------------------------------------------------------------------


class File(Record, frozen=True, kw_only=True, tag="file"):
    """Identity of a large file; a later record for the same key replaces an earlier one.

    `fmt` is set for weights (`gguf`, `safetensors`, `torch`), None for anything else.
    `fs` is the file system type, `device` the block device or remote source.
    """

    dev: int
    ino: int
    size: int
    path: str | None = None
    fmt: str | None = None
    fs: str | None = None
    device: str | None = None


class Open(Record, frozen=True, kw_only=True, tag="open"):
    """`ts_ns`: return of open(). `token` marks all events through this struct file."""

    tgid: int
    tid: int
    dev: int
    ino: int
    token: int


class Span(Record, frozen=True, kw_only=True, tag="span"):
    """A run of like events of one thread on one file; totals are exact.

    One with the same (tid, dev, ino, op, ts_ns) as an earlier one replaces it.
    `busy_ns`: time inside the events, at most `end_ns - ts_ns`.
    """

    end_ns: int
    tgid: int
    tid: int
    dev: int
    ino: int
    token: int
    op: Op
    count: int
    bytes: int
    busy_ns: int
    populate: bool = False
    advice: int | None = None


class Insert(Record, frozen=True, kw_only=True, tag="insert"):
    """Pages that came into the page cache: bytes from disk. `tgid`: last inserter.

    One with the same (dev, ino, ts_ns) as an earlier one replaces it.
    """

    end_ns: int
    dev: int
    ino: int
    pages: int
    tgid: int


class Resident(Record, frozen=True, kw_only=True, tag="resident"):
    """Bytes of a file that are in the page cache."""

    dev: int
    ino: int
    cached_bytes: int


class Memory(Record, frozen=True, kw_only=True, tag="memory"):
    tgid: int
    rss_bytes: int


class Io(Record, frozen=True, kw_only=True, tag="io"):
    """What a process has read since it began, by the kernel's own count.

    `read_chars`: bytes by system calls, of files mostly; `read_bytes`: bytes from storage.
    """

    tgid: int
    read_chars: int
    read_bytes: int


class Ran(Record, frozen=True, kw_only=True, tag="ran"):
    """Processor time of a process, all its threads together. What counts grew between two records.

    `waited_ns`: what they were ready to run and had to wait for a processor; None where that is not
    known since the last record. `host_ns`: processor time that all programs of the host have used.
    `throttled_ns`: how long its control group's CPU quota held it back, summed over processors;
    None where it has no quota, or another one than before.
    """

    tgid: int
    ran_ns: int
    host_ns: int
    waited_ns: int | None = None
    throttled_ns: int | None = None


# --- user libraries ------------------------------------------------------------


class Library(Record, frozen=True, kw_only=True, tag="library"):
    """From now on calls of a process into a library are seen. `name`: as the catalogue has it.

    `functions`: how many of it are watched. `path`: as the process sees it.
    """

    tgid: int
    name: str
    path: str
    functions: int


class Call(Record, frozen=True, kw_only=True, tag="call"):
    """A run of like calls of one thread, by their entries; `end_ns` is the last entry.

    One with the same (tid, library, symbol, ts_ns) as an earlier one replaces it. `layer` of
    the library: amounts of two layers are of the same bytes. `follow_ns`: from each entry to
    the thread's next entry into any function, which bounds how long the calls took; `last_ns`:
    of that, what followed the last one, None while nothing did.
    """

    end_ns: int
    tgid: int
    tid: int
    library: str
    layer: str
    symbol: str
    what: CallWhat
    count: int
    bytes: int | None = None
    tokens: int | None = None
    follow_ns: int = 0
    last_ns: int | None = None


class Cached(Record, frozen=True, kw_only=True, tag="cached"):
    """A process was about to open a file of a compile cache.

    `stem`: hash of the path without endings; `write`: to make it. A look-up that a write of the
    same stem follows found nothing, and what lies between was compilation.
    """

    tgid: int
    tid: int
    folder: str
    stem: int
    write: bool = False


class DeviceCall(Record, frozen=True, kw_only=True, tag="device_call"):
    """A run of like calls of one thread into the driver of one device; totals are exact.

    One with the same (tid, device, what, ts_ns) as an earlier one replaces it. `device`: its
    node's name, such as `nvidia0`; `driver`: as the table of calls names it. `busy_ns`: time
    inside the calls, at most `end_ns - ts_ns`; of a single call (`count` 1) the two are equal.
    `bytes`: of those that succeeded, None where no argument tells. `failed`: how many returned
    an error. `number` of the last ioctl. `first`: it opened the device, for the first time.
    """

    end_ns: int
    tgid: int
    tid: int
    device: str
    driver: str
    what: DeviceWhat
    count: int
    busy_ns: int
    bytes: int | None = None
    failed: int = 0
    number: int | None = None
    first: bool = False


# --- devices -------------------------------------------------------------------


class Holder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A watched process that has a device open.

    `memory_bytes`: the device's memory that it has. `engines_ns`: how long the device's engines
    have worked for it so far, summed over engines. `gone`: it had it open when it was last looked
    at, and has no more; told once.
    """

    tgid: int
    memory_bytes: int | None = None
    engines_ns: int | None = None
    gone: bool = False


class Telemetry(Record, frozen=True, kw_only=True, tag="telemetry"):
    """A reading of a device, taken while a request waits and a watched process has it open.

    `device`: its PCI address, else its node's name. `source`: who told, `nvml` or the kernel's
    driver. `limits`: why its clock is not higher, empty where nothing holds it. `profile`: the
    level that somebody forced on it. `pcie_rx_rate`, `pcie_tx_rate`: bytes a second to and from
    the device. `link_*_max`: what the device could.
    """

    device: str
    source: str
    name: str | None = None
    holders: tuple[Holder, ...] = ()
    busy_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    pstate: int | None = None
    limits: tuple[Limit, ...] | None = None
    profile: str | None = None
    pcie_rx_rate: int | None = None
    pcie_tx_rate: int | None = None
    link_generation: int | None = None
    link_generation_max: int | None = None
    link_width: int | None = None
    link_width_max: int | None = None


# --- code that ran -------------------------------------------------------------


class Samples(Record, frozen=True, kw_only=True, tag="samples"):
    """Where a process was found running by a clock, from `ts_ns` to before `end_ns`.

    Each of `stacks` is how often, then for each frame, the innermost first, the number of its
    module and the offset in that file. `[made]` is code made while running. `period_ns`: of the
    clock on each processor. More than one record may be of the same time.
    """

    end_ns: int
    tgid: int
    period_ns: int
    modules: tuple[str, ...]
    stacks: tuple[tuple[int, ...], ...]


class Names(Record, frozen=True, kw_only=True, tag="names"):
    """What the functions are called that the samples of request `id` were found in.

    Each of `at` is the number of a module, an offset in it and the number of a function.
    """

    id: int
    modules: tuple[str, ...]
    functions: tuple[str, ...]
    at: tuple[tuple[int, int, int], ...]


# --- sockets -----------------------------------------------------------------


class Listen(Record, frozen=True, kw_only=True, tag="listen"):
    """`cgroup`: the socket's, by the inode of its folder."""

    tgid: int
    netns: int
    port: int
    cgroup: int | None = None


class Unlisten(Record, frozen=True, kw_only=True, tag="unlisten"):
    netns: int
    port: int


class Connect(Record, frozen=True, kw_only=True, tag="connect"):
    """A watched process (`tgid`, `tid`) connected to the server end of `conn`."""

    tgid: int
    tid: int
    conn: Conn


class Take(Record, frozen=True, kw_only=True, tag="take"):
    """The server process took bytes from its end of `conn`."""

    tgid: int
    tid: int
    conn: Conn


# --- HTTP facts: all that is left of payload -----------------------------------


class HttpRequest(Record, frozen=True, kw_only=True, tag="http_request"):
    """First byte of a request arrived. `xid` numbers exchanges, never reused.

    `endpoint` is a known path (see tracer/http/endpoints.py), None for any other.
    """

    xid: int
    conn: Conn
    method: str
    endpoint: str | None


class HttpBody(Record, frozen=True, kw_only=True, tag="http_body"):
    """Last byte of the request arrived. `model` is the body's own key, cut at 256."""

    xid: int
    bytes: int
    model: str | None = None
    stream: bool | None = None


class HttpHead(Record, frozen=True, kw_only=True, tag="http_head"):
    """First byte of the final response (not 1xx) left."""

    xid: int
    status: int
    event_stream: bool = False


class HttpToken(Record, frozen=True, kw_only=True, tag="http_token"):
    """`nth` 1 or 2: that token left. `nth` 0: first answer text after reasoning."""

    xid: int
    nth: Literal[0, 1, 2]
    what: TokenWhat


class Says(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the server's reply reports about itself; times in milliseconds as it gives them."""

    prompt_ms: float | None = None
    prompt_n: int | None = None
    cache_n: int | None = None
    predicted_ms: float | None = None
    predicted_n: int | None = None
    load_ms: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class HttpEnd(Record, frozen=True, kw_only=True, tag="http_end"):
    """The exchange is over. `bytes`: response body length seen.

    `tokens`: content chunks seen. `model`: as the reply names it.
    """

    xid: int
    why: EndWhy
    bytes: int = 0
    tokens: int | None = None
    says: Says | None = None
    model: str | None = None
    error: bool = False


class HttpUnreadable(Record, frozen=True, kw_only=True, tag="http_unreadable"):
    conn: Conn
    why: Unreadable
    xid: int | None = None


# --- book-keeping and context --------------------------------------------------


class Lost(Record, frozen=True, kw_only=True, tag="lost"):
    """`count` records of `kind` were lost since the previous such record."""

    kind: str
    count: int


class Armed(Record, frozen=True, kw_only=True, tag="armed"):
    """A probe group is in effect from now on, or no more.

    `why`: as tracer/arming.py names it; None where it is off for good. `took_ns`: to attach it.
    """

    group: str
    on: bool
    why: str | None = None
    took_ns: int | None = None


class Tick(Record, frozen=True, kw_only=True, tag="tick"):
    """All kernel records older than `ts_ns` have been seen."""


class Host(Record, frozen=True, kw_only=True, tag="host"):
    """`wall_offset_ns`: wall clock (Unix epoch) minus monotonic clock."""

    wall_offset_ns: int
    machine: str
    kernel: str
    version: str
    began_ns: int


class Settings(Record, frozen=True, kw_only=True, tag="settings"):
    """The configuration the derivation needs; see tracer/config.py for meanings."""

    min_ms: float = 250.0
    factor: float = 3.0


class Warm(Record, frozen=True, kw_only=True, tag="warm"):
    """A warm request of the history, for the baseline (context).

    `clocks_mhz`: how fast devices ran while its prompt was worked on, those that were read then.
    """

    server: str
    model: str
    kind: str
    ttft_ns: int
    prompt_tokens: int | None
    phases_ns: dict[str, int]
    clocks_mhz: dict[str, int] = msgspec.field(default_factory=dict)


class Known(msgspec.Struct, frozen=True, array_like=True):
    """A request that was numbered before the recording began.

    `told`, `done`: its first token, its end was reported. `hops`: exchanges linked to it.
    """

    xid: int
    id: int
    told: bool
    done: bool
    runner: int | None
    hops: tuple[int, ...]


class Start(Record, frozen=True, kw_only=True, tag="start"):
    """The next request id, and the last model each server served.

    `known`: requests of the context. `ready_ns`: when a process first proved ready, by tgid.
    """

    next_id: int
    last_model: dict[str, str] = msgspec.field(default_factory=dict)
    known: tuple[Known, ...] = ()
    ready_ns: dict[int, int] = msgspec.field(default_factory=dict)


AnyRecord = (
    Telemetry
    | Process
    | Fork
    | Exec
    | Exit
    | Signal
    | Server
    | File
    | Open
    | Span
    | Insert
    | Resident
    | Memory
    | Io
    | Ran
    | Library
    | Call
    | Cached
    | DeviceCall
    | Samples
    | Names
    | Listen
    | Unlisten
    | Connect
    | Take
    | HttpRequest
    | HttpBody
    | HttpHead
    | HttpToken
    | HttpEnd
    | HttpUnreadable
    | Lost
    | Armed
    | Tick
    | Host
    | Settings
    | Warm
    | Start
)
