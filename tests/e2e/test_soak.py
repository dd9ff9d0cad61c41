"""Twenty thousand requests and a server restarted again and again: nothing grows.

`make soak` does the same with a million, and prints what it saw.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workloads import soak
from tests.workloads.stub_server import StubServer
from tests.workloads.ttftd import UNIT_NICE, Ttftd

pytestmark = pytest.mark.kernel

REQUESTS, STEPS = 20_000, 5
RESTARTS = 25
#: Steps that fill what is filled once: tables, caches, the heap.
WARM = 2


@pytest.fixture
def ports() -> soak.Ports:
    return soak.Ports()


@pytest.fixture
def daemon(tmp_path: Path, ports: soak.Ports) -> Iterator[Ttftd]:
    with Ttftd(tmp_path / "ttftd", ports.config, UNIT_NICE) as running:
        yield running


def test_twenty_thousand_requests(daemon: Ttftd, ports: soak.Ports) -> None:
    with StubServer(chunks=2, port=ports.stub) as stub:
        daemon.wait_server(stub.port)
        soaked = soak.Soak(daemon, ports)
        for _ in range(STEPS):
            soaked.send(REQUESTS // STEPS)
        assert soaked.told() == REQUESTS
        assert soak.faults(soaked.samples, WARM) == [], soaked.samples
        last = daemon.requests(100)
    stub_requests = [one for one in last if one["server"] == "stub"]
    assert {(one["outcome"], one["tokens"]) for one in stub_requests} == {("ok", 2)}


def test_a_server_restarted_again_and_again(daemon: Ttftd, ports: soak.Ports) -> None:
    soaked = soak.Soak(daemon, ports)
    for _ in range(3):
        soaked.restart(RESTARTS)
    assert soak.faults(soaked.samples) == [], soaked.samples


def test_what_grows_is_named() -> None:
    """The test of the test."""
    before = soak.Sample(1, 1.0, 40_000_000, 150, 14, 6_000_000, {"ports": 4})
    after = soak.Sample(
        20_000, 60.0, 90_000_000, 1150, 14, 6_000_000, {"ports": 900}, {"packet": 2}
    )
    assert soak.faults([before, before]) == []
    sizes = [
        dataclasses.replace(before, requests=n, database_bytes=n * n * 1000) for n in (1, 2, 11, 12)
    ]
    assert soak.faults(sizes) == ["history of a request (kB): 12 more than allowed"]
    assert soak.faults([before, after]) == [
        "memory (MB): 42 more than allowed",
        "descriptors: 900 more than allowed",
        "entries of ports: 496 more than allowed",
        "lost: 2 packet",
    ]
