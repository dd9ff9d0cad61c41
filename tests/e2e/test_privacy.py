"""No word of prompt or answer is anywhere in what the tracer keeps or says."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import Ask
from tests.workloads import llama
from tests.workloads.ttftd import Ttftd, ttft
from tracer.api import ROUTES
from tracer.client import Client

pytestmark = [pytest.mark.kernel, pytest.mark.e2e]
MARKER = "xylophonequartz"
STREAMS = ("/v1/records", "/v1/events")
CASES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": MARKER}],
        "user": MARKER,
        "max_tokens": 8,
    },
    "/completion": {"prompt": f"{MARKER} {MARKER} {MARKER}", "n_predict": 8},
    "/v1/completions": {"prompt": f"{MARKER} {MARKER} {MARKER}", "max_tokens": 8},
    "/v1/messages": {"messages": [{"role": "user", "content": MARKER}], "max_tokens": 8},
    "/v1/responses": {"input": MARKER, "max_output_tokens": 8},
}
# The grammar makes the model itself write the marker.
ANSWER: dict[str, object] = {
    "messages": [{"role": "user", "content": "Say it."}],
    "grammar": f'root ::= "{MARKER}"',
    "max_tokens": 32,
}


def bodies() -> Iterator[tuple[str, bytes]]:
    for stream in (True, False):
        for path, body in CASES.items():
            yield path, json.dumps(body | {"stream": stream, "temperature": 0}).encode()
        yield "/v1/chat/completions", json.dumps(ANSWER | {"stream": stream}).encode()
    yield f"/v1/chat/completions?q={MARKER}", json.dumps(CASES["/v1/chat/completions"]).encode()
    yield f"/unknown/{MARKER}", MARKER.encode()


def holds(data: bytes) -> bool:
    text = data.lower()
    return MARKER.encode() in text or MARKER.encode("utf-16-le") in text


def test_marker_is_nowhere(daemon: Ttftd, weights: Path, ask: Ask, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    log = tmp_path / "server.log"
    replies: list[llama.Reply] = []
    with (
        llama.alone(weights / "alpha.gguf", "-c", "2048", log=log, calm=True) as server,
        daemon.recording(recording),
        server.client(keep_alive=False) as client,
    ):
        daemon.wait_server(server.port)
        for path, body in bodies():
            reply = ask(partial(client.post, path, body))
            replies.append(reply)
        # The last two: a path that is known but for its query, and one that is not.
        requests = daemon.explained(replies[:-1])
        # The marker did go over the wire, both ways, and all that was seen.
        assert any(MARKER in reply.text for reply in replies)
        assert all(request["ttft_ms"] for request in requests)
        heard = {
            path: Client(str(daemon.socket)).get(path)
            for path in ROUTES
            if path not in STREAMS and "{id}" not in path
        }
        for request in requests:
            for path in ("/v1/requests/{id}", "/v1/requests/{id}/trace"):
                where = path.format(id=request["id"])
                heard[where] = Client(str(daemon.socket)).get(where)
        export = tmp_path / "trace.json"
        assert (
            ttft("export", "--since", "1h", "-o", str(export), socket=daemon.socket).returncode == 0
        )
    daemon.stop()
    assert [path for path, body in heard.items() if holds(body)] == []
    kept = [path for path in (*daemon.folder.rglob("*"), export, recording) if path.is_file()]
    assert {"history.db", "ttftd.log"} <= {path.name for path in kept}
    assert [path.name for path in kept if holds(path.read_bytes())] == []
    data = recording.read_bytes()
    assert not data.startswith(b"\x1f\x8b") or not holds(gzip.decompress(data))
    assert b'"http_token"' in data
