"""Requests are seen also where nobody has mounted the cgroup v2 hierarchy."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.workloads.waiting import wait_for
from tracer.kernel import cgroup
from tracer.kernel.loader import Kernel
from tracer.kernel.wire import RawPacket

pytestmark = pytest.mark.kernel


def test_without_a_mount(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    monkeypatch.setattr(cgroup, "mounted", lambda: None)
    seen: list[bytes] = []
    with (
        Kernel.open(path=built, off=("files", "faults", "cache", "libs")) as kernel,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        assert Path("/proc/self/mountinfo").read_text() == before
        kernel.watch_port(Path("/proc/self/ns/net").stat().st_ino, listener.getsockname()[1])
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")

            def came() -> bool:
                seen.extend(r.payload for r in kernel.drain() if isinstance(r, RawPacket))
                return any(b"GET / " in payload for payload in seen)

            wait_for(came, 10, "the request")
