"""However the client sends, the request is read right."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import Ask
from tests.e2e.helpers import assert_sound
from tests.workloads import llama
from tests.workloads.llama import LlamaServer, chat_body
from tests.workloads.ttftd import Ttftd

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
CHAT = "/v1/chat/completions"
OPTIONS = ("-c", "2048")


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(
    request: pytest.FixtureRequest, daemon: Ttftd, weights: Path, tmp_path: Path
) -> Iterator[LlamaServer]:
    """A server that holds one model itself, on either family."""
    log = tmp_path / "server.log"
    with llama.alone(
        weights / "alpha.gguf", *OPTIONS, log=log, host=request.param, calm=True
    ) as running:
        daemon.wait_server(running.port)
        yield running


def one_byte_at_a_time(sock: socket.socket, data: bytes) -> None:
    """Every byte a segment of its own (the connection has no Nagle delay)."""
    for byte in data:
        sock.sendall(bytes([byte]))


def test_kept_connection_and_one_per_request(server: LlamaServer, daemon: Ttftd, ask: Ask) -> None:
    with server.client() as kept, server.client(keep_alive=False) as fresh:
        # This server keeps a connection only after answers that do not stream.
        bodies = [chat_body("alpha", f"Question {n}.", stream=False) for n in range(3)]
        replies = [ask(partial(kept.post, CHAT, body)) for body in bodies]
        assert not any(reply.closed for reply in replies)
        bodies += [chat_body("alpha", f"Other question {n}.") for n in range(2)]
        replies += [ask(partial(fresh.post, CHAT, body)) for body in bodies[3:]]
    answers = daemon.explained(replies)
    assert [answer["stream"] for answer in answers] == [False] * 3 + [True] * 2
    for answer, reply, body in zip(answers, replies, bodies, strict=True):
        assert_sound(answer, reply, body)


def test_one_byte_at_a_time(server: LlamaServer, daemon: Ttftd, ask: Ask) -> None:
    body = chat_body("alpha", "One byte after the other.")
    with server.client(keep_alive=False) as client:
        reply = ask(lambda: client.post(CHAT, body, one_byte_at_a_time))
    [answer] = daemon.explained([reply])
    assert_sound(answer, reply, body)
    assert answer["tokens"] == reply.tokens


def test_large_body_with_the_model_last(
    daemon: Ttftd, weights: Path, ask: Ask, tmp_path: Path
) -> None:
    body = json.loads(chat_body("beta", "Short question in a large body."))
    model = body.pop("model")
    raw = json.dumps(body | {"metadata": {"pad": "x" * 3_000_000}, "model": model}).encode()
    with (
        llama.router(weights, 1, *OPTIONS, log=tmp_path / "server.log", calm=True) as server,
        server.client(keep_alive=False) as client,
    ):
        replies = [ask(lambda: client.post(CHAT, raw)) for _ in range(2)]
        answers = daemon.explained(replies)
    for answer, reply in zip(answers, replies, strict=True):
        assert_sound(answer, reply, raw)
        assert answer["model"] == "beta"
