"""HTTP on the Unix socket: right answers, typed refusals, nothing that grows or falls over."""

from __future__ import annotations

import http.client
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.answer_cases import spike, warm
from tests.unit.fake_daemon import GROUP, HEADER, REQUESTS, FakeDaemon, serving
from tracer import answers, api_http
from tracer.api_socket import bind
from tracer.client import Client
from tracer.derive import derive
from tracer.errors import StoreError, TtftError
from tracer.export.chrome import dump


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDaemon]:
    with serving(tmp_path_factory.mktemp("api")) as running:
        yield running


def raw(daemon: FakeDaemon, data: bytes, half_close: bool = True) -> bytes:
    """What comes back for these bytes, until the daemon closes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(str(daemon.socket))
        parts = []
        try:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                parts.append(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return b"".join(parts)


def get(daemon: FakeDaemon, target: str, method: str = "GET") -> tuple[int, Any]:
    # Of an older client, which gets no chunks.
    head = f"{method} {target} HTTP/1.0\r\nHost: ttft\r\n\r\n"
    answer = raw(daemon, head.encode(), half_close=False)
    start, _, body = answer.partition(b"\r\n\r\n")
    return int(start.split()[1]), orjson.loads(body)


def test_listings(daemon: FakeDaemon) -> None:
    everything = [orjson.loads(answers.dumps(answers.answer(item))) for item in REQUESTS]
    assert get(daemon, "/v1/requests") == (200, everything)
    assert get(daemon, "/v1/requests?last=1") == (200, everything[2:])
    assert get(daemon, "/v1/requests?model=none") == (200, [])
    assert get(daemon, "/v1/spikes?since=36500d&last=10000") == (200, [everything[1]])


def test_a_long_listing_comes_in_pieces(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.backend.store.put([warm(number) for number in range(100, 1000)])
        found = orjson.loads(Client(str(running.socket)).get("/v1/requests", {"last": 10_000}))
    assert [item["id"] for item in found] == [16, *range(100, 1000), 17, 18]


def test_one_request(daemon: FakeDaemon) -> None:
    status, found = get(daemon, "/v1/requests/17")
    expected = {**answers.answer(REQUESTS[1]), **answers.detail(REQUESTS[1])}
    assert (status, found) == (200, orjson.loads(answers.dumps(expected)))


def test_what_is_open(daemon: FakeDaemon) -> None:
    assert get(daemon, "/v1/open") == (200, [])
    daemon.backend.open = [spike(30)]
    status, (found,) = get(daemon, "/v1/open")
    daemon.backend.open = []
    assert (status, found["id"], found["schema"]) == (200, 30, 1)


def test_traces(daemon: FakeDaemon) -> None:
    client = Client(str(daemon.socket))
    one = client.get("/v1/requests/17/trace")
    assert one == dump([derive(REQUESTS[1].evidence)]) + b"\n"
    several = client.get("/v1/trace", {"since": "36500d"})
    assert several == dump([derive(item.evidence) for item in REQUESTS]) + b"\n"


@pytest.mark.parametrize("path", ["/v1/status", "/v1/doctor", "/v1/requests/17"])
def test_every_object_carries_its_schema(daemon: FakeDaemon, path: str) -> None:
    assert get(daemon, path)[1]["schema"] == 1


@pytest.mark.parametrize(
    ("target", "status", "error"),
    [
        ("/v1/requests?last=0", 400, "last='0' is out of range"),
        ("/v1/requests?last=10001", 400, "last='10001' is out of range"),
        ("/v1/requests?last=1&last=2", 400, "'last' is given twice"),
        ("/v1/requests?last=%C2%B2", 400, "last='²' is out of range"),
        ("/v1/requests?since=yesterday", 400, "since: not a duration: 'yesterday'"),
        ("/v1/requests?since=99999999d", 400, "since: out of range: '99999999d'"),
        ("/v1/requests?order=up", 400, "unknown parameter 'order'"),
        ("/v1/status?x=1", 400, "unknown parameter 'x'"),
        ("/v1/requests/99", 404, "no request 99"),
        ("/v1/requests/99/trace", 404, "no request 99"),
        ("/v1/requests/-1", 400, "'-1' is not an id"),
        ("/v1/requests/9999999999999999999", 400, "'9999999999999999999' is not an id"),
        ("/v1/records?for=0s", 400, "for: out of range: '0s'"),
        ("/v1/nothing", 404, "not found"),
        ("/", 404, "not found"),
        ("/v1/../../etc/passwd", 404, "not found"),
    ],
)
def test_refusals_say_why(daemon: FakeDaemon, target: str, status: int, error: str) -> None:
    found = get(daemon, target)
    assert (found[0], found[1]["error"]) == (status, error)
    assert found[1]["hint"]
    assert found[1]["schema"] == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_it_is_read_only(daemon: FakeDaemon, method: str) -> None:
    status, found = get(daemon, "/v1/requests", method)
    assert (status, found["hint"]) == (405, "this interface is read-only: use GET")


def test_failures_inside_are_answers_too(daemon: FakeDaemon) -> None:
    daemon.backend.fails = StoreError("the disk is gone", "look at it")
    try:
        assert get(daemon, "/v1/status") == (
            503,
            {"schema": 1, "error": "the disk is gone", "hint": "look at it"},
        )
        daemon.backend.fails = ValueError("secret text")
        status, found = get(daemon, "/v1/status")
        assert (status, found["error"]) == (500, "internal error (ValueError)")
    finally:
        daemon.backend.fails = None


def still_fine(daemon: FakeDaemon) -> bool:
    return get(daemon, "/v1/requests?last=1")[0] == 200


FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes_are_survived(daemon: FakeDaemon, data: bytes) -> None:
    assert b"Traceback" not in raw(daemon, data)
    assert still_fine(daemon)


_words = st.text(st.characters(codec="utf-8"), max_size=20)
_start = st.sampled_from(["", "v1/requests/", "v1/requests", "v1/trace", "v1/status/", "v1/"])


@FUZZ
@given(
    _start,
    _words,
    st.lists(st.tuples(st.sampled_from(["last", "since", "model", "x"]), _words), max_size=3),
)
def test_any_path_and_query_get_a_typed_answer(
    daemon: FakeDaemon, start: str, end: str, pairs: list[tuple[str, str]]
) -> None:
    from urllib.parse import quote, urlencode

    status, found = get(daemon, f"/{start}{quote(end)}?{urlencode(pairs)}")
    assert status in (200, 400, 404)
    assert status == 200 or set(found) == {"schema", "error", "hint"}


def test_a_head_without_end_is_cut_off(daemon: FakeDaemon) -> None:
    endless = b"GET / HTTP/1.1\r\nX: " + b"a" * 500_000
    # The refusal itself may be lost with what it left unread.
    assert raw(daemon, endless, half_close=False)[:12] in (b"HTTP/1.1 400", b"")
    assert still_fine(daemon)


@pytest.mark.parametrize("data", [b"", b"GET /v1/status HT"])
def test_a_connection_that_asks_nothing_is_closed(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(api_http, "HEAD_S", 0.05)
    assert raw(daemon, data, half_close=False) == b""
    assert still_fine(daemon)


def test_a_request_may_take_longer_than_its_head(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_http, "HEAD_S", 0.05)
    stream = Client(str(daemon.socket)).get("/v1/records", {"for": "200ms"})
    assert stream == HEADER


def test_too_many_connections_are_refused(daemon: FakeDaemon) -> None:
    held = []
    try:
        for _ in range(api_http.CONNECTIONS_MAX + 1):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(str(daemon.socket))
            held.append(connection)
        with pytest.raises(TtftError) as caught:
            Client(str(daemon.socket)).get("/v1/status")
        assert (caught.value.hint, caught.value.exit_code) == ("it is busy; try again", 1)
    finally:
        for connection in held:
            connection.close()


def test_a_history_that_fails_within_an_answer_is_one_line_of_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(ids: list[int]) -> Iterator[list[bytes]]:
        yield [b"{}"] * 10
        raise StoreError("the disk is gone")

    with serving(tmp_path) as running:
        store = running.backend.store
        monkeypatch.setattr(store, "find", lambda **_: list(range(100)))
        monkeypatch.setattr(store, "answers", broken)
        with pytest.raises(TtftError, match="ended its answer early"):
            Client(str(running.socket)).get("/v1/requests")
        assert Client(str(running.socket)).get("/v1/status")
    assert capfd.readouterr().err == "ttftd: answer cut off: the disk is gone\n"


def test_metrics(daemon: FakeDaemon) -> None:
    body = Client(str(daemon.socket)).get("/metrics").decode()
    assert 'ttft_records_lost_total{kind="packet"} 3\n' in body


def test_the_sockets_mode(daemon: FakeDaemon) -> None:
    mode = daemon.socket.stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o660)


def test_a_second_daemon_is_told(daemon: FakeDaemon) -> None:
    with pytest.raises(TtftError, match="another ttftd already answers"):
        bind(daemon.socket, GROUP)


def test_a_dead_daemons_socket_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "run" / "ttft.sock"
    bind(path, GROUP).close()
    assert path.exists()
    bind(path, GROUP).close()


def test_nothing_but_a_socket_is_removed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("keep")
    with pytest.raises(TtftError, match="is there and is not a socket"):
        bind(tmp_path / "file", GROUP)
    assert (tmp_path / "file").read_text() == "keep"


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "x.sock", tmp_path / ("x" * 120)):
        with pytest.raises(TtftError, match="cannot listen there"):
            bind(path, GROUP)


@pytest.mark.parametrize("group", ["no such group", "a\0b", "\ud800"])
def test_a_group_that_is_not_there_is_told_before_anything_is_made(
    tmp_path: Path, group: str
) -> None:
    with pytest.raises(TtftError, match="there is no group"):
        bind(tmp_path / "s", group)
    assert not (tmp_path / "s").exists()


def test_without_the_default_group_root_is_told_how_others_may_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tracer.api_socket.DEFAULT_GROUP", "no such group")
    bind(tmp_path / "s", "no such group").close()
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("ttftd: there is no group no such group: only root may ask. groupadd")
    bind(tmp_path / "t", GROUP).close()
    assert capfd.readouterr().err == ""


def test_the_group_gets_the_socket(tmp_path: Path) -> None:
    import grp

    group = next(entry for entry in grp.getgrall() if entry.gr_gid not in (0, os.getegid()))
    if os.geteuid() != 0:
        group = grp.getgrgid(os.getegid())
    bind(tmp_path / "s", group.gr_name).close()
    assert (tmp_path / "s").stat().st_gid == group.gr_gid


def test_the_socket_goes_with_the_daemon(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        path = running.socket
        assert path.exists()
    assert not path.exists()


def test_keep_alive(daemon: FakeDaemon) -> None:
    one = b"GET /v1/doctor HTTP/1.1\r\nHost: x\r\n"
    two = one + b"\r\n" + one + b"Connection: close\r\n\r\n"
    assert raw(daemon, two, half_close=False).count(b"HTTP/1.1 200 OK") == 2


def test_http_client_of_the_standard_library(daemon: FakeDaemon) -> None:
    connection = http.client.HTTPConnection("ttft")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(daemon.socket))
    connection.request("GET", "/v1/models")
    response = connection.getresponse()
    assert response.headers["content-type"] == "application/json"
    assert [item["model"] for item in orjson.loads(response.read())] == ["beta", "alpha"]
    connection.close()
