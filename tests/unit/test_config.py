"""The configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.config import (
    SECTIONS,
    SERVERS_MAX,
    Config,
    DevicesSection,
    HistorySection,
    LibraryTable,
    MetricsSection,
    OtlpSection,
    ProbesSection,
    Program,
    ServerEntry,
    SpikeSection,
    keys,
    load,
    parse,
)
from tracer.daemon import _check_groups
from tracer.errors import ConfigError
from tracer.records import Settings
from tracer.servers import SERVER_COMMS, parse_command

WHOLE = b"""\
socket = "/tmp/t.sock"
group = "users"
state = "/tmp/state"

[spike]
min_ms = 100
factor = 2.5

[history]
max_age_days = 7
max_mb = 64

[probes]
off = ["faults"]
ring_kb = 1024
packet_ring_kb = 2048
variant = "tracepoint"
arming = "always"
stacks = "off"

[devices]
nodes = ["/dev/npu*"]
telemetry = false

[metrics]
listen = "0.0.0.0:9843"
allow_remote = true

[otlp]
endpoint = "http://127.0.0.1:4318"
headers = { authorization = "Basic eA==" }

[[library]]
files = ["libmine.so*"]
name = "mine"
layer = "runtime"
twins = ["_v2"]
calls = { f = "compile" }

[[server]]
name = "mine"
port = 9000

[[server]]
name = "other"
program = "llama-server"
exe = "/opt/bin/serve"
command = "--serve"
"""


def test_whole_file() -> None:
    assert parse(WHOLE, "c.toml") == Config(
        socket="/tmp/t.sock",
        group="users",
        state="/tmp/state",
        spike=SpikeSection(min_ms=100.0, factor=2.5),
        history=HistorySection(max_age_days=7.0, max_mb=64.0),
        probes=ProbesSection(
            off=("faults",),
            variant="tracepoint",
            arming="always",
            stacks="off",
            ring_kb=1024,
            packet_ring_kb=2048,
        ),
        devices=DevicesSection(nodes=("/dev/npu*",), telemetry=False),
        metrics=MetricsSection(listen="0.0.0.0:9843", allow_remote=True),
        otlp=OtlpSection(endpoint="http://127.0.0.1:4318", headers={"authorization": "Basic eA=="}),
        library=(
            LibraryTable(
                files=("libmine.so*",),
                name="mine",
                layer="runtime",
                twins=("_v2",),
                calls={"f": "compile"},
            ),
        ),
        server=(
            ServerEntry(name="mine", port=9000),
            ServerEntry(
                name="other", program="llama-server", exe="/opt/bin/serve", command="--serve"
            ),
        ),
    )


def test_every_key_is_in_the_whole_file() -> None:
    named = {key.rpartition(".")[2] for key in keys()} - set(SECTIONS)
    assert {word for word in named if f"{word} =".encode() not in WHOLE} == set()


def test_an_empty_file_is_all_defaults() -> None:
    config = parse(b"", "c.toml")
    assert config == Config()
    assert config.database == Path("/var/lib/ttft/history.db")
    assert config.settings(5) == Settings(ts_ns=5, min_ms=250.0, factor=3.0)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("a = ", "line 1: invalid value", "a line is"),
        ('x = "abc', "line 1: unterminated string", "a line is"),
        ("\n[spike\n", "line 2: expected ']'", "a line is"),
        ("\n\nnope = 1", "line 3: unknown key `nope`", "accepted at the top: `socket`"),
        ("[nope]\nx = 1", "line 1: unknown key `nope`", "`socket`, `group`"),
        ("[spike]\n\nminms = 3", "line 3: unknown key `minms`", "in [spike]: `min_ms`, `factor`"),
        ("[spike]\nmin_ms = 'x'", "line 2: `min_ms`: expected `float`, got `str`", "in [spike]"),
        ("spike = {min_ms = 'x'}", "line 1: `min_ms`: expected `float`", "in [spike]"),
        ("spike.min_ms = 'x'", "line 1: `min_ms`: expected `float`", "in [spike]"),
        ("[spike]\nmin_ms = -1", "line 2: `min_ms`: expected `float` > 0", "in [spike]"),
        ("[history]\nmax_mb = inf", "line 2: `max_mb`: expected `float` <=", "in [history]"),
        ("socket = 'relative'", "line 1: `socket`: expected an absolute path", "at the top"),
        ("state = ''", "line 1: `state`: expected an absolute path", "at the top"),
        (
            "[[server]]\nname='a'\nport=1\n[[server]]\nname='b'\nport='x'",
            "line 6: `port`: expected `int | null`, got `str`",
            "in [[server]]: `name`, `port`",
        ),
        (
            "[[server]]\nname='a'\nport=1\n\n[[server]]\nport=3",
            "line 5: `name` is missing",
            "in [[server]]",
        ),
        (
            "[[server]]\nname='a'\nport=1\nprogram='olama'",
            "line 4: `program`: not one of llama-server, ollama, llama-swap, local-ai, vllm",
            "in [[server]]",
        ),
        (
            "[probes]\narming='never'",
            "line 2: `arming`: not one of auto, always",
            "in [probes]",
        ),
        (
            "[probes]\nvariant='kprobe'",
            "line 2: `variant`: not one of auto, tracepoint, fentry",
            "in [probes]",
        ),
        ("[metrics]\nlisten = '9843'", "line 2: `listen` is not ADDRESS:PORT", "127.0.0.1:9843"),
        ("[metrics]\nlisten = 'x:1'", "line 2: `listen` needs an IP address", "127.0.0.1:9843"),
        (
            "[metrics]\nallow_remote = false\nlisten = '0.0.0.0:9843'",
            "line 3: `listen` is reached by other machines",
            "allow_remote = true",
        ),
        ("[metrics]\nlisten = '[::]:9843'", "line 2: `listen` is reached by", "allow_remote"),
        (
            "[otlp]\nendpoint = 'localhost:4318'",
            "line 2: `endpoint`: expected http:// or https:// and a host",
            "in [otlp]",
        ),
        ("[otlp]\nendpoint = 'http://127.0.0.1:99999'", "line 2: `endpoint` has a port", "4318"),
        ("[otlp]\nendpoint = 'http://[::1'", "line 2: `endpoint` has a port or an IPv6", "4318"),
        ("[otlp]\nendpoint = 'http://ü.example'", "line 2: `endpoint` is too long, or", "4318"),
        ("[otlp]\nheaders = { k = 'é€' }", "line 2: `headers` cannot be sent: k has", "4318"),
        ('[otlp]\nheaders = { k = "a\\nb" }', "line 2: `headers` cannot be sent: k has", "4318"),
        ("[otlp]\nheaders = { 'a b' = 'c' }", "line 2: `headers` have a name", "4318"),
        ("[[server]]\nname='a'", "line 2: nothing says which process `a` is", "at least one"),
        (
            "[[server]]\nname='a'\nport=1\n[[server]]\nname='a'\nport=2",
            "line 5: two servers are called `a`",
            "a `name` of its own",
        ),
    ],
)
def test_wrong_files_are_named_with_line_and_hint(text: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode(), "/etc/c.toml")
    assert f"/etc/c.toml, {message}" in caught.value.message
    assert hint in str(caught.value.hint)


def test_programs_are_those_that_are_recognised() -> None:
    for name in get_args(Program):
        command = parse_command(f"/usr/bin/{name}", [name, "serve"])
        assert command is not None
        assert command.program == name


def test_not_text() -> None:
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        parse(b"# fine\n\xff\xfe", "c.toml")


def test_a_byte_order_mark_is_no_error() -> None:
    assert parse(b'\xef\xbb\xbfgroup = "wheel"\n', "c.toml") == Config(group="wheel")


@pytest.mark.parametrize("off", ["sockets", "lifecycle", "disks"])
def test_what_all_else_needs_cannot_be_off(off: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _check_groups(Config(probes=ProbesSection(off=("faults", off))))
    assert off in caught.value.message
    assert "faults" not in caught.value.message
    assert caught.value.hint is not None
    can = caught.value.hint.removeprefix("these can be off: ")
    assert f"groups to leave out: {can}\n" in (Path(__file__).parents[2] / "README.md").read_text()
    _check_groups(Config(probes=ProbesSection(off=tuple(can.split(", ")))))


def test_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.toml")
    monkeypatch.setattr("tracer.config.DEFAULT_PATH", tmp_path / "none.toml")
    assert load() == Config()


def test_a_folder_is_not_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_configuration_or_a_configuration_error(raw: bytes) -> None:
    try:
        assert isinstance(parse(raw, "c.toml"), Config)
    except ConfigError as error:
        assert error.message.startswith("c.toml, line ")


_values = st.recursive(
    st.integers() | st.text(max_size=5).map(repr) | st.booleans() | st.floats(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(st.lists(st.tuples(st.sampled_from([*keys(), "spike.x", "y"]), _values), max_size=4))
def test_any_values_are_taken_or_refused_with_a_line(pairs: list[tuple[str, object]]) -> None:
    text = "\n".join(f"{key} = {value}" for key, value in pairs)
    try:
        parse(text.encode(), "c.toml")
    except ConfigError as error:
        line = int(error.message.split("line ")[1].split(":")[0])
        assert 1 <= line <= max(1, text.count("\n") + 1)


def test_as_many_servers_as_the_kernel_side_holds() -> None:
    def text(count: int) -> bytes:
        return "".join(f"[[server]]\nname='{n}'\nport={n + 1}\n" for n in range(count)).encode()

    assert len(parse(text(SERVERS_MAX), "c.toml").server) == SERVERS_MAX
    with pytest.raises(
        ConfigError, match=r"line 752: 251 \[\[server\]\] tables, 250 can be"
    ) as caught:
        parse(text(SERVERS_MAX + 1), "c.toml")
    assert "`exe` or `command`" in str(caught.value.hint)
    kernel = Path(__file__).parents[2] / "bpf"
    for file, table in (("sockets.bpf.c", "server_ports"), ("lifecycle.bpf.c", "server_comms")):
        before = (kernel / file).read_text().partition(f"}} {table} SEC")[0]
        room = int(before.rpartition("max_entries, ")[2].partition(")")[0])
        assert SERVERS_MAX + len(SERVER_COMMS) <= room
