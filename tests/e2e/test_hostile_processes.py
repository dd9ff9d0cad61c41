"""Processes that the daemon watches may be anybody's: none can end it, hang it or fool it.

One test for each trick, with a real daemon; the server is a stand-in without a model.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.elf_made import CRAFTED, image
from tests.workloads.hanging_fs import HangingFs
from tests.workloads.hostile_server import HostileServer
from tests.workloads.served import Word
from tests.workloads.stub_clients import call, stream
from tests.workloads.ttftd import UNIT_NICE, Json, Ttftd, ttft
from tests.workloads.waiting import wait_for
from tracer.host import proc

pytestmark = pytest.mark.kernel

CONFIG = '[[server]]\nname = "stub"\ncommand = "tests.workloads.hostile_server"\n'
WEIGHTS = b"GGUF" + bytes(3 << 20)
#: What a terminal, a log or a list by lines would obey.
ODD = "a\nb\x1b]0;owned\x07\x1b[2J\x9b31m\u202e.gguf"
ANSWER_S = 2.0
STOP_S = 8.0
CHILDREN = 30
LISTINGS = (["status"], ["requests"], ["spikes"], ["models"], ["show", "1"])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Ttftd]:
    """Not started yet."""
    running = Ttftd(tmp_path / "ttftd", CONFIG, UNIT_NICE)
    yield running
    running.stop()


def asked(daemon: Ttftd, port: int, model: str = "stub") -> Json:
    """One request is sent and explained, and the daemon answers at once."""
    daemon.wait_server(port)
    before = len(daemon.requests())
    seen = asyncio.run(stream("127.0.0.1", port, call(model, 2)))
    assert seen.tokens == 2
    wait_for(lambda: len(ended(daemon)) > before, 15, "the request to be explained")
    began = time.monotonic()
    answer = ended(daemon)[-1]
    assert time.monotonic() - began < ANSWER_S
    assert (answer["outcome"], answer["tokens"], answer["server"]) == ("ok", 2, "stub")
    return answer


def ended(daemon: Ttftd) -> list[Json]:
    return [one for one in daemon.requests() if one["outcome"] != "open"]


def stops(daemon: Ttftd) -> None:
    """It ends when told to, and nothing went wrong before."""
    began = time.monotonic()
    daemon.stop()
    assert time.monotonic() - began < STOP_S
    assert "Traceback" not in daemon.log.read_text()


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def test_names_that_a_terminal_would_obey(daemon: Ttftd, tmp_path: Path) -> None:
    """In its own name, its arguments, the name of its weights and the model that is asked for."""
    weights = tmp_path / ODD
    weights.write_bytes(WEIGHTS)
    odd = os.fsencode(ODD)
    with HostileServer("--name", b"\x1b[2J\n)(R 1", "--map", weights, argv=[odd]) as server:
        daemon.start()
        answer = asked(daemon, server.port, ODD)
        assert answer["model"] == ODD
        for command in LISTINGS:
            for options in ([], ["--json"]):
                ran = ttft(*command, *options, socket=daemon.socket)
                assert (ran.returncode, harmless(ran.stdout), ran.stderr) == (0, True, "")
        out = tmp_path / "report.html"
        for number, command in enumerate((["export", "1", "-o"], ["report", "-o"])):
            ran = ttft(*command, str(out.with_suffix(f".{number}")), socket=daemon.socket)
            assert (ran.returncode, harmless(ran.stdout + ran.stderr)) == (0, True)
        metrics = daemon_text(daemon, "/metrics")
        assert harmless(metrics)
    stops(daemon)
    assert harmless(daemon.log.read_text())


def daemon_text(daemon: Ttftd, path: str) -> str:
    from tracer.client import Client

    return Client(str(daemon.socket)).get(path).decode()


def test_a_command_line_of_megabytes(daemon: Ttftd) -> None:
    argv = ["x" * 120_000] * 12 + ["--model", "/nowhere/y.gguf"]
    with HostileServer(argv=argv) as server:
        daemon.start()
        asked(daemon, server.port)
    stops(daemon)


def test_weights_whose_header_lies(daemon: Ttftd, tmp_path: Path) -> None:
    """More tensors, keys and bytes than there can be; in a file of four terabytes of nothing."""
    weights = tmp_path / "huge.gguf"
    weights.write_bytes(b"GGUF" + b"\xff" * 60)
    os.truncate(weights, 4 << 40)
    with HostileServer("--map", weights, "--read", weights) as server:
        daemon.start()
        asked(daemon, server.port)
        memory = daemon.get("/v1/status")["cost"]["pss_bytes"]
        server.do("read", weights)
        asked(daemon, server.port)
        assert daemon.get("/v1/status")["cost"]["pss_bytes"] < memory + (8 << 20)
    stops(daemon)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[HangingFs]:
    """Weights and a library on a file system whose server can be stopped."""
    files = {"a.gguf": WEIGHTS, "b.gguf": WEIGHTS, "libcuda.so.1": image(b"\x55")}
    with HangingFs(tmp_path / "served", files) as fs:
        yield fs


def test_a_file_system_that_hangs_before_the_daemon_comes(
    daemon: Ttftd, hanging: HangingFs
) -> None:
    """It has weights and a library mapped, and even its command line."""
    weights, library = hanging.folder / "a.gguf", hanging.folder / "libcuda.so.1"
    with HostileServer(
        "--map", weights, "--run", library, "--arguments-in", hanging.folder / "b.gguf"
    ) as server:
        hanging.hang()
        daemon.start()
        # Without a command line nothing tells that this is a server; nor may it hold up others.
        with HostileServer() as other:
            asked(daemon, other.port)
        assert server.port not in [one["port"] for one in daemon.get("/v1/status")["servers"]]
    stops(daemon)


def test_a_file_system_that_hangs_while_the_daemon_watches(
    daemon: Ttftd, hanging: HangingFs
) -> None:
    weights, library = hanging.folder / "a.gguf", hanging.folder / "libcuda.so.1"
    with HostileServer("--map", weights, "--run", library) as server:
        daemon.start()
        asked(daemon, server.port)
        hanging.hang()
        server.do("read", weights)
        server.do("read", hanging.folder / "b.gguf")
        for _ in range(3):
            asked(daemon, server.port)
        said = "libcuda.so.1 cannot be probed: a process or another machine serves its file system"
        wait_for(lambda: said in daemon.log.read_text(), 10, "the library to be named")
    stops(daemon)


@pytest.mark.parametrize("first", ["server", "daemon"])
def test_children_that_hang_in_an_exec(daemon: Ttftd, hanging: HangingFs, first: str) -> None:
    """As many as it likes: whoever looks at one of them waits, be it for its name alone."""
    with HostileServer("--read", hanging.folder / "a.gguf") as server:
        if first == "daemon":
            daemon.start()
            asked(daemon, server.port)
        hanging.hang()
        for _ in range(CHILDREN):
            server.do("exec", Path("/bin/true"))
        wait_for(lambda: len(proc.descendants(server.pid)) == CHILDREN, 10, "its children")
        if first == "server":
            daemon.start()
        with HostileServer() as other:
            for _ in range(3):
                asked(daemon, other.port)
    stops(daemon)


def test_a_root_of_its_own_with_pipes_for_files(daemon: Ttftd, tmp_path: Path) -> None:
    """Whoever opens one waits for ever; and links that lead out of it."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    os.mkfifo(root / "etc" / "passwd")
    (root / "etc" / "hostname").symlink_to("/../../../../dev/zero")
    with HostileServer("--root", root) as server:
        daemon.start()
        asked(daemon, server.port)
    stops(daemon)


def test_libraries_made_to_keep_its_reader_busy(daemon: Ttftd, tmp_path: Path) -> None:
    options: list[Word] = []
    for number, (name, make) in enumerate(sorted(CRAFTED.items())):
        library = tmp_path / str(number) / f"libllama-{name}.so"
        library.parent.mkdir()
        make(library)
        options += ["--run", str(library)]
    with HostileServer(*options) as server:
        daemon.start()
        for _ in range(3):
            asked(daemon, server.port)
        memory = daemon.get("/v1/status")["cost"]["pss_bytes"]
        assert memory < 64 << 20
    stops(daemon)


MANY: dict[str, tuple[str, str]] = {
    "mappings": ("--mappings", "50000"),
    "descriptors": ("--descriptors", "200000"),
    "ports": ("--ports", "1500"),
}


@pytest.mark.parametrize("what", MANY)
@pytest.mark.parametrize("first", ["server", "daemon"])
def test_more_of_it_than_anybody_needs(daemon: Ttftd, what: str, first: str) -> None:
    """More mappings, descriptors or ports than there is room for, before the daemon or after."""
    if first == "daemon":
        daemon.start()
    with HostileServer(*MANY[what]) as server:
        if first == "server":
            daemon.start()
        with HostileServer() as other:
            daemon.wait_server(other.port)
            lost = daemon.get("/v1/status")["lost"]
            if "listen.table" in lost:  # the ports there is room for are taken: that is said
                assert what == "ports"
            else:
                asked(daemon, other.port)
        assert server.port
        assert "Lost" in ttft("status", socket=daemon.socket).stdout
    stops(daemon)
