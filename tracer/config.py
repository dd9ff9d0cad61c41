"""The configuration: one TOML file, everything with a working default.

A wrong file is a `ConfigError` that names the file, the line and what is accepted there.
"""

from __future__ import annotations

import re
import tomllib
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from tracer.errors import ConfigError
from tracer.records import Settings

DEFAULT_PATH = Path("/etc/ttft/config.toml")
DEFAULT_SOCKET = "/run/ttft/ttft.sock"
DEFAULT_GROUP = "ttft"
MAX_BYTES = 1 << 20
SERVERS_MAX = 250
"""What the smallest of the kernel side's tables holds, beside the programs known without."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Absolute = Annotated[str, msgspec.Meta(pattern=r"^/[^\x00]*$", max_length=4096)]
Arming = Literal["auto", "always"]
Stacks = Literal["auto", "off"]
Program = Literal["llama-server", "ollama", "llama-swap", "local-ai", "vllm"]
"""As tracer/servers.py names them."""
Layer = Literal["engine", "runtime", "driver", "compiler"]
"""Who calls whom: amounts of two layers are of the same bytes."""
ProbeVariant = Literal["auto", "tracepoint", "fentry"]
# A Unix socket address holds 108 bytes, one of them the final NUL.
SocketPath = Annotated[str, msgspec.Meta(pattern=r"^/[^\x00]*$", max_length=107)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class ServerEntry(_Section, frozen=True):
    """A server that is not recognised by itself: `[[server]]`.

    A process is it when every condition given holds: its executable is `exe`, its command
    line contains `command`, it listens on `port`. `program` says which known program it
    behaves like.
    """

    name: Name
    port: Port | None = None
    program: Program | None = None
    exe: Absolute | None = None
    command: Name | None = None


class SpikeSection(_Section, frozen=True):
    """A spike is a TTFT above both `min_ms` milliseconds and `factor` x what is typical."""

    min_ms: Positive = 250.0
    factor: Annotated[float, msgspec.Meta(ge=1, le=1e9)] = 3.0


class HistorySection(_Section, frozen=True):
    """What the history keeps: requests of the last `max_age_days`, in `max_mb` 10^6 bytes."""

    max_age_days: Positive = 90.0
    max_mb: Annotated[float, msgspec.Meta(ge=1, le=1e9)] = 512.0


class ProbesSection(_Section, frozen=True):
    """`off`: probe groups to leave out. Ring sizes in KiB; null leaves the choice to ttft.

    `arming`: whether the probes that cost other processes something are on `always`, or, as
    `auto` has it, only while a model may be loading.

    `stacks`: whether it is sampled what a server's code does, as `auto` has it only while a slow
    request waits.

    `variant`: how system calls and faults are seen; `auto` takes what the kernel allows.
    """

    off: tuple[Name, ...] = ()
    variant: ProbeVariant = "auto"
    arming: Arming = "auto"
    stacks: Stacks = "auto"
    ring_kb: Annotated[int, msgspec.Meta(ge=64, le=1 << 20)] | None = None
    packet_ring_kb: Annotated[int, msgspec.Meta(ge=64, le=1 << 20)] | None = None

    @property
    def all_off(self) -> tuple[str, ...]:
        """All groups that are left out, `stacks` by its own key too."""
        return (*self.off, "stacks") if self.stacks == "off" else self.off


class DevicesSection(_Section, frozen=True):
    """`nodes`: patterns for further device nodes of accelerators, such as `/dev/npu*`.

    Calls into their drivers are counted and timed; what each of them does is not known.
    `telemetry`: read clocks, memory and link of devices while a request waits.
    """

    nodes: Annotated[tuple[Absolute, ...], msgspec.Meta(max_length=64)] = ()
    telemetry: bool = True


class LibraryTable(_Section, frozen=True):
    """Functions of a user library to watch beside those of the catalogue: `[[library]]`.

    `files`: patterns for the file's name. `calls`: a function's name to what a call of it means,
    as in tracer/libs/catalogue.toml. `twins`: endings under which it may be exported as well.
    """

    files: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]
    calls: Annotated[dict[Name, Name], msgspec.Meta(min_length=1)]
    name: str = ""
    layer: Layer = "driver"
    twins: tuple[Name, ...] = ()


class MetricsSection(_Section, frozen=True):
    """Prometheus metrics over TCP too, beside the socket: `listen` is `127.0.0.1:9843` or its like.

    Any user of this machine may then read them, names of models included. An address that
    others reach is refused unless `allow_remote` is true.
    """

    listen: Name | None = None
    allow_remote: bool = False

    @property
    def address(self) -> tuple[str, int] | None:
        """(IP address, port) of `listen`; ValueError says what is wrong with it."""
        if self.listen is None:
            return None
        host, colon, port = self.listen.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
            raise ValueError("is not ADDRESS:PORT")
        host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
        try:
            loopback = ip_address(host).is_loopback
        except ValueError:
            raise ValueError("needs an IP address, such as 127.0.0.1") from None
        if not loopback and not self.allow_remote:
            raise ValueError("is reached by other machines")
        return host, int(port)


class OtlpSection(_Section, frozen=True):
    """Each request as a trace to an OpenTelemetry collector: `endpoint` is its OTLP/HTTP address.

    `endpoint` is such as `http://127.0.0.1:4318`; `/v1/traces` is added. `headers` go with each
    request to it. Without `endpoint` the variables OTEL_EXPORTER_OTLP_* count.
    """

    endpoint: Annotated[str, msgspec.Meta(pattern=r"^https?://[^/\s]+", max_length=1024)] | None = (
        None
    )
    headers: dict[str, str] = {}


class Config(_Section, frozen=True):
    """All settings. `group` may use the socket; `state` holds the history."""

    socket: SocketPath = DEFAULT_SOCKET
    group: Name = DEFAULT_GROUP
    state: Absolute = "/var/lib/ttft"
    server: tuple[ServerEntry, ...] = ()
    library: tuple[LibraryTable, ...] = ()
    spike: SpikeSection = SpikeSection()
    history: HistorySection = HistorySection()
    probes: ProbesSection = ProbesSection()
    devices: DevicesSection = DevicesSection()
    metrics: MetricsSection = MetricsSection()
    otlp: OtlpSection = OtlpSection()

    @property
    def database(self) -> Path:
        """The file of the history."""
        return Path(self.state) / "history.db"

    def settings(self, ts_ns: int) -> Settings:
        """The record of what the derivation needs."""
        return Settings(ts_ns=ts_ns, min_ms=self.spike.min_ms, factor=self.spike.factor)


SECTIONS: dict[str, type[_Section]] = {
    "": Config,
    "server": ServerEntry,
    "library": LibraryTable,
    "spike": SpikeSection,
    "history": HistorySection,
    "probes": ProbesSection,
    "devices": DevicesSection,
    "metrics": MetricsSection,
    "otlp": OtlpSection,
}


def keys() -> list[str]:
    """Every configuration key, as `section.key`; documentation is checked against it."""
    return [
        f"{section}.{field}" if section else field
        for section, struct in SECTIONS.items()
        for field in struct.__struct_fields__
    ]


def load(path: Path | None = None) -> Config:
    """Read `path`; without one the default file if it is there, else all defaults."""
    chosen = path or DEFAULT_PATH
    try:
        with chosen.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        if path is None:
            return Config()
        raise ConfigError(
            f"{path}: no such file", "leave out --config to run with the defaults"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{chosen}: cannot be read: {error.strerror}", "check its owner and mode"
        ) from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(
            f"{chosen}: longer than {MAX_BYTES} bytes", "is this the configuration of ttftd?"
        )
    return parse(raw, str(chosen))


def parse(raw: bytes, name: str) -> Config:
    """The configuration in `raw`; `name` is the file's, for messages."""
    try:
        text = raw.decode("utf-8-sig")  # some editors begin with a byte order mark
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"{name}, line {line}: not UTF-8 text", "save it as UTF-8") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(*_syntax_message(name, text, str(error))) from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply", "no key takes such a value") from None
    try:
        config = msgspec.convert(data, Config, strict=True)
    except msgspec.ValidationError as error:
        raise _explain(name, text, str(error)) from None
    _check_servers(name, text, config.server)
    _check_metrics(name, text, config.metrics)
    _check_otlp(name, text, config.otlp)
    return config


def _syntax_message(name: str, text: str, error: str) -> tuple[str, str]:
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", error)
    what = error[: found.start()] if found else error
    line = int(found[1]) if found and found[1] else text.count("\n") + 1
    hint = 'a line is `key = value` or `[section]`; text goes in "double quotes"'
    return f"{name}, line {line}: {what[:1].lower()}{what[1:]}", hint


def _explain(name: str, text: str, error: str) -> ConfigError:
    what, _, where = error.partition(" - at `$")
    what = re.sub(r"`str` matching regex '\^https.*", "http:// or https:// and a host", what)
    what = re.sub(r"`str` matching regex .*", "an absolute path", what)
    steps: list[str | int] = [
        int(index) if index else key
        for key, index in re.findall(r"\.?([^.\[\]`]+)(?<!\])|\[(\d+)\]", where)
    ]
    if what.startswith("Invalid enum value"):
        kinds = {"variant": ProbeVariant, "arming": Arming, "stacks": Stacks, "layer": Layer}
        choices = kinds.get(str(steps[-1]), Program)
        what = f"not one of {', '.join(get_args(choices))}"
    unknown = re.search(r"unknown field `(.*)`", what)
    if unknown:
        steps.append(unknown[1])
        what = f"unknown key `{unknown[1]}`"
    missing = re.search(r"missing required field `(.*)`", what)
    if missing:
        what = f"`{missing[1]}` is missing"
    line = _line_of(text, steps)
    named = [step for step in steps if isinstance(step, str)]
    if not unknown and not missing and named:
        what = f"`{named[-1]}`: {what[:1].lower()}{what[1:]}"
    return ConfigError(f"{name}, line {line}: {what}", _accepted(named))


def _accepted(named: list[str]) -> str:
    section = named[0] if named and named[0] in SECTIONS else ""
    struct = SECTIONS[section]
    words = ", ".join(f"`{field}`" for field in struct.__struct_fields__)
    label = {"": "at the top", "server": "in [[server]]", "library": "in [[library]]"}.get(
        section, f"in [{section}]"
    )
    return f"accepted {label}: {words}"


def _line_of(text: str, steps: list[str | int]) -> int:
    """Line of the key that `steps` lead to, else of the deepest header or key on the way."""
    named = [step for step in steps if isinstance(step, str)]
    wanted_index = next((step for step in steps if isinstance(step, int)), 0)
    best, section, index, seen = (0, 1), "", 0, dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[(\[?)\s*[\"']?([^\]\"']+?)[\"']?\s*\]", line)
        if header:
            section = header[2]
            index = seen.get(section, 0) if header[1] else 0
            seen[section] = index + 1
            path = section.split(".")
        else:
            key = re.match(r"\s*[\"']?([^\"'=\s#]+?)[\"']?(?:\s*\.\s*([\w-]+))?\s*=", line)
            if not key:
                continue
            path = [*(section.split(".") if section else []), *filter(None, key.groups())]
        if section in named and index != wanted_index and section == named[0]:
            continue
        depth = _common(path, named)
        if depth == len(path) and depth > best[0]:
            best = (depth, number)
    return best[1]


def _common(path: list[str], named: list[str]) -> int:
    depth = 0
    for one, other in zip(path, named, strict=False):
        if one != other:
            break
        depth += 1
    return depth


def _check_servers(name: str, text: str, servers: tuple[ServerEntry, ...]) -> None:
    if len(servers) > SERVERS_MAX:
        line = _line_of(text, ["server", SERVERS_MAX, "name"])
        raise ConfigError(
            f"{name}, line {line}: {len(servers)} [[server]] tables, {SERVERS_MAX} can be watched",
            "one with `exe` or `command` covers all processes that are alike",
        )
    names: set[str] = set()
    for index, server in enumerate(servers):
        line = _line_of(text, ["server", index, "name"])
        if server.port is None and server.exe is None and server.command is None:
            raise ConfigError(
                f"{name}, line {line}: nothing says which process `{server.name}` is",
                "give at least one of `port`, `exe`, `command`",
            )
        if server.name in names:
            raise ConfigError(
                f"{name}, line {line}: two servers are called `{server.name}`",
                "give each [[server]] a `name` of its own",
            )
        names.add(server.name)


def _check_metrics(name: str, text: str, metrics: MetricsSection) -> None:
    try:
        metrics.address  # noqa: B018
    except ValueError as error:
        line = _line_of(text, ["metrics", "listen"])
        raise ConfigError(
            f"{name}, line {line}: `listen` {error}",
            "give 127.0.0.1:9843, or set `allow_remote = true` if others may read the metrics",
        ) from None


def _check_otlp(name: str, text: str, otlp: OtlpSection) -> None:
    if otlp == OtlpSection():
        return
    from tracer import collector

    key = "endpoint"
    try:
        if otlp.endpoint is not None:
            collector.address(otlp.endpoint)
        key = "headers"
        collector.headers(otlp.headers)
    except ValueError as error:
        line = _line_of(text, ["otlp", key])
        raise ConfigError(
            f"{name}, line {line}: `{key}` {error}",
            'give such as endpoint = "http://127.0.0.1:4318", headers = { name = "value" }',
        ) from None
