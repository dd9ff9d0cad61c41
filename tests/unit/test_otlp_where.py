"""Where requests are sent to, as the configuration or the environment says: any of it hurts
nothing."""

from __future__ import annotations

import asyncio
import http.client
import socket

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.answer_cases import spike, warm
from tests.workloads.waiting import wait_for
from tracer import collector, otlp
from tracer.config import Config, OtlpSection
from tracer.errors import TtftError
from tracer.export.otlp import encode
from tracer.exports import Exports
from tracer.otlp import Sender, Target, target


def test_nothing_is_sent_unless_asked() -> None:
    assert target(OtlpSection(), {}) is None
    assert target(OtlpSection(endpoint="http://x"), {"OTEL_SDK_DISABLED": "true"}) is None


def test_the_standard_variables() -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20eA%3D%3D, x-scope=nas",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
        "OTEL_SERVICE_NAME": "models",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=home,host.name=nas",
    }
    found = target(OtlpSection(), env)
    assert found is not None
    assert found.url.geturl() == "http://collector:4318/v1/traces"
    assert found.headers == {"authorization": "Basic eA==", "x-scope": "nas"}
    assert (found.timeout_s, found.packed) == (2.5, True)
    assert found.resource == {
        "host.name": "nas", "deployment.environment.name": "home", "service.name": "models",
    }  # fmt: skip
    whole = target(OtlpSection(), {**env, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://t/own"})
    assert whole is not None
    assert whole.url.geturl() == "https://t/own"
    ours = target(OtlpSection(endpoint="http://y:1", headers={"x-scope": "z"}), env)
    assert ours is not None
    assert (ours.url.geturl(), ours.headers["x-scope"]) == ("http://y:1/v1/traces", "z")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ENDPOINT", "collector:4317", "the endpoint that OTEL_EXPORTER_OTLP_* give is not http"),
        ("ENDPOINT", "http://127.0.0.1:99999", "has a port or"),
        ("ENDPOINT", "http://u:secret@[::1", "has a port or"),
        ("TRACES_ENDPOINT", "http://h:secret", "has a port or"),
        ("TRACES_ENDPOINT", "http://a..b/x", "has a host that is none"),
        ("HEADERS", "authorization=secret%0Ax", "cannot be sent: authorization has a line break"),
        ("HEADERS", "k=secret%E2%82%AC", "cannot be sent: k has"),
        ("HEADERS", "a%20b=secret", "the headers that OTEL_EXPORTER_OTLP_* give have a name"),
    ],
)
def test_what_the_environment_gives_wrongly_is_said_and_hurts_nothing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    said: str,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    with pytest.raises(TtftError):
        target(OtlpSection())
    ours = Exports(Config(), lambda: b"")
    asyncio.run(ours.start())
    ours.add([spike(1)])
    (state,) = ours.states()
    assert said in (state.trouble or "")
    err = capsys.readouterr().err
    assert said in err
    assert "secret" not in err


_ascii = st.text(st.characters(max_codepoint=127), max_size=30)


@settings(deadline=None)
@given(
    st.sampled_from(["", "http://", "https://[", "http://127.0.0.1:"]),
    _ascii | st.text(max_size=30),
    st.dictionaries(_ascii | st.text(max_size=9), _ascii | st.text(max_size=9), max_size=2),
)
def test_any_address_and_headers_are_refused_or_can_be_sent(
    begin: str, rest: str, headers: dict[str, str]
) -> None:
    try:
        url, sent = collector.address(begin + rest), collector.headers(headers)
    except ValueError:
        return
    found = Target(url, sent, 0.01, packed=False, resource={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http.client.HTTPConnection, "connect", _connected)
        # All is written to a connection that then ends.
        with pytest.raises((OSError, http.client.HTTPException)):
            otlp.post(found, b"{}")
    _sender_of(found).state()


def _connected(self: http.client.HTTPConnection) -> None:
    self.host.encode("idna")
    self.sock, other = socket.socketpair()
    other.close()


def _sender_of(found: Target) -> Sender:
    sender = Sender(found)
    sender.close()
    return sender


def test_what_no_check_saw_is_refused_and_said() -> None:
    url = collector.address("http://127.0.0.1:1/")
    sender = Sender(Target(url, {"k": "a\nb"}, 1.0, packed=False, resource={}))
    sender.add([warm(1)])
    wait_for(lambda: sender.state().dropped == 1, 20, "it to be dropped")
    assert "cannot be sent" in (sender.state().trouble or "")
    sender.close()


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [("²", 10.0), ("9" * 5000, 10.0), ("0", 10.0), ("-1", 10.0), ("999999999", 600.0), ("", 10.0)],
)
def test_any_timeout(text: str, wait_s: float) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_EXPORTER_OTLP_TIMEOUT": text}
    found = target(OtlpSection(), env)
    assert found is not None
    assert found.timeout_s == wait_s


def test_bytes_in_the_environment_that_are_no_text() -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_RESOURCE_ATTRIBUTES": "a=\udcff"}
    found = target(OtlpSection(), env)
    assert found is not None
    assert orjson.loads(encode(warm(1), found.resource))
