"""Sends requests to an OpenTelemetry collector over OTLP/HTTP, in a thread of its own.

A collector that is down or slow costs a bounded queue and nothing else: what does not fit is
dropped and counted.
"""

from __future__ import annotations

import gzip
import http.client
import os
import platform
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, unquote

from tracer import collector
from tracer.answers_state import Export
from tracer.config import OtlpSection
from tracer.derived import Derived
from tracer.errors import TtftError
from tracer.export.otlp import body, encode

QUEUE_BYTES = 2 << 20
BATCH = 64
_WAITS_S = (1.0, 2.0, 5.0, 15.0, 60.0)
_LAST_S = 2.0
_TIMEOUT_MAX_S = 600.0
_DIGITS_MAX = 9
_RETRIED = (408, 429, 500, 502, 503, 504)


class Target(NamedTuple):
    """Where to, with what."""

    url: SplitResult
    headers: dict[str, str]
    timeout_s: float
    packed: bool
    resource: dict[str, str]


def target(section: OtlpSection, environ: Mapping[str, str] = os.environ) -> Target | None:
    """From the configuration, else from the environment variables that OpenTelemetry knows.

    TtftError: these cannot be used.
    """

    def named(name: str) -> str | None:
        """The variable for traces, else the one for all."""
        first = environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
        return first or environ.get(f"OTEL_EXPORTER_OTLP_{name}")

    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    whole = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    base = section.endpoint or (None if whole else environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))
    if base is None and not whole:
        return None
    try:
        url = collector.address(f"{base.rstrip('/')}/v1/traces" if base else whole or "")
    except ValueError as error:
        raise TtftError(f"the endpoint that OTEL_EXPORTER_OTLP_* give {error}") from None
    try:
        headers = collector.headers({**_pairs(named("HEADERS")), **section.headers})
    except ValueError as error:
        raise TtftError(f"the headers that OTEL_EXPORTER_OTLP_* give {error}") from None
    return Target(
        url=url,
        headers=headers,
        timeout_s=_timeout_s(named("TIMEOUT") or ""),
        packed=named("COMPRESSION") == "gzip",
        resource=_resource(environ),
    )


def _timeout_s(text: str) -> float:
    """Of milliseconds; the usual for what is no number."""
    given = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text)
    return min(given / 1000, _TIMEOUT_MAX_S) if given else 10.0


def _resource(environ: Mapping[str, str]) -> dict[str, str]:
    found = {"host.name": platform.node(), **_pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES"))}
    name = environ.get("OTEL_SERVICE_NAME")
    whole = found | ({"service.name": name} if name else {})
    return {_text(key): _text(value) for key, value in whole.items()}


def _text(value: str) -> str:
    """Without what stands for bytes of the environment that are no text."""
    return value.encode(errors="replace").decode()


def _pairs(text: str | None) -> dict[str, str]:
    """`a=b,c=d`, percent-encoded."""
    split = (item.partition("=") for item in (text or "").split(","))
    return {unquote(key.strip()): unquote(value.strip()) for key, eq, value in split if eq}


class Refused(Exception):
    """The collector will not have it, now or later."""


class Sender:
    """`add` what is over, `close` at the end. Both return soon, whatever the collector does."""

    def __init__(self, to: Target) -> None:
        self._to = to
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._wake = threading.Condition()
        self._closing = False
        self._sent = self._dropped = 0
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._run, name="ttft-otlp", daemon=True)
        self._thread.start()

    def add(self, derived: list[Derived]) -> None:
        """Queue requests; the oldest give way."""
        entries = [encode(item, self._to.resource) for item in derived]
        with self._wake:
            for entry in entries:
                self._queue.append(entry)
                self._bytes += len(entry)
            while self._bytes > QUEUE_BYTES:
                self._bytes -= len(self._queue.popleft())
                self._dropped += 1
            self._wake.notify()

    def close(self) -> None:
        """One more try for what waits."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(_LAST_S)

    def state(self) -> Export:
        """For `ttft status`; without headers and credentials."""
        url = self._to.url
        host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
        port = f":{url.port}" if url.port else ""
        with self._wake:
            return Export(
                name="otlp",
                to=f"{url.scheme}://{host}{port}{url.path}",
                sent=self._sent,
                dropped=self._dropped,
                trouble=self._trouble,
            )

    def _run(self) -> None:
        failed = 0
        while batch := self._next():
            try:
                post(self._to, body(batch))
            except Refused as error:
                self._told(str(error), dropped=len(batch))
                failed = 0
            except (OSError, http.client.HTTPException) as error:
                self._told(str(error) or type(error).__name__)
                if not self._again(batch, _WAITS_S[min(failed, len(_WAITS_S) - 1)]):
                    return
                failed += 1
            else:
                self._told(None, sent=len(batch))
                failed = 0

    def _next(self) -> list[bytes]:
        """What waits; empty only at the end."""
        with self._wake:
            self._wake.wait_for(lambda: self._queue or self._closing)
            count = min(BATCH, len(self._queue))
            batch = [self._queue.popleft() for _ in range(count)]
            self._bytes -= sum(map(len, batch))
            return batch

    def _again(self, batch: list[bytes], wait_s: float) -> bool:
        """Put it back, as far as there is room, and wait; False at the end."""
        with self._wake:
            while batch and self._bytes + len(batch[-1]) <= QUEUE_BYTES:
                self._bytes += len(batch[-1])
                self._queue.appendleft(batch.pop())
            self._dropped += len(batch)
            return not self._wake.wait_for(lambda: self._closing, wait_s)

    def _told(self, trouble: str | None, sent: int = 0, dropped: int = 0) -> None:
        with self._wake:
            self._trouble = trouble
            self._sent += sent
            self._dropped += dropped


def post(to: Target, data: bytes) -> None:
    """Send a batch; `Refused` where trying again is of no use, OSError where it may be."""
    headers = {"Content-Type": "application/json", "User-Agent": "ttft", **to.headers}
    if to.packed:
        data = gzip.compress(data, 1)
        headers["Content-Encoding"] = "gzip"
    path = to.url.path + (f"?{to.url.query}" if to.url.query else "")
    connection = _connection(to)
    try:
        connection.request("POST", path, data, headers)
        reply = connection.getresponse()
        reply.read(65536)
    except OSError:  # some of them are a ValueError too
        raise
    except ValueError as error:
        raise Refused(f"these requests cannot be sent: {error}") from error
    finally:
        connection.close()
    if reply.status in _RETRIED:
        raise OSError(f"the collector answered {reply.status}")
    if not 200 <= reply.status < 300:
        raise Refused(f"the collector answered {reply.status}: these requests are not sent")


def _connection(to: Target) -> http.client.HTTPConnection:
    host = to.url.hostname or ""
    if to.url.scheme == "http":
        return http.client.HTTPConnection(host, to.url.port, timeout=to.timeout_s)
    return _Tls(host, to.url.port or 443, timeout=to.timeout_s)


class _Tls(http.client.HTTPConnection):
    """Over TLS, with an `ssl` of its own: the daemon stands without (tracer/host/tls.py)."""

    def connect(self) -> None:
        for name in ("ssl", "_hashlib"):
            if not hasattr(sys.modules.get(name), "__file__"):
                sys.modules.pop(name, None)
        import ssl

        super().connect()
        context = ssl.create_default_context()
        self.sock = context.wrap_socket(self.sock, server_hostname=self.host)
