"""Who listens where: bounded, and nobody's doing makes others forgotten."""

from __future__ import annotations

import pytest

from tests.unit.build import NETNS, Story, finals, ms
from tracer.processes import MAX_PORTS, Ports, Processes
from tracer.records import Command, Exit, Fork, Listen, Process, Server, Unlisten


def server(tgid: int, port: int, at: int = 0) -> list[Listen | Server]:
    listen = Listen(ts_ns=at, tgid=tgid, netns=NETNS, port=port)
    return [
        listen,
        Server(ts_ns=at, name=f"s:{port}", program="ollama", tgid=tgid, netns=NETNS, port=port),
    ]


@pytest.mark.parametrize("how", ["closes them", "keeps them", "ends"])
def test_one_that_opens_very_many_ports_makes_no_others_forgotten(how: str) -> None:
    procs = Processes()
    ports = Ports(procs)
    for tgid, port in ((100, 80), (101, 81)):
        procs.feed(Process(ts_ns=0, tgid=tgid, ppid=1, start_ns=0, comm="ollama"))
        for record in server(tgid, port):
            ports.feed(record)
    procs.feed(Process(ts_ns=0, tgid=666, ppid=1, start_ns=0, comm="ollama"))
    for n in range(3 * MAX_PORTS):
        for record in server(666, 1000 + n, at=n):
            ports.feed(record)
        if how == "closes them":
            ports.feed(Unlisten(ts_ns=n, netns=NETNS, port=1000 + n))
        if how == "ends" and n == MAX_PORTS:
            procs.feed(Exit(ts_ns=n, tgid=666, code=0, signal=None))
    for tgid, port in ((100, 80), (101, 81)):
        assert ports.listener(NETNS, port, 10_000) == tgid
        found = ports.server_at(NETNS, port, 10_000)
        assert found is not None and found.tgid == tgid
    assert len(list(ports.records())) <= 2 * MAX_PORTS * 2
    newest = 1000 + 3 * MAX_PORTS - 1
    assert ports.listener(NETNS, newest, 10_000) == 666, "the latest are kept the longest"


def late_front(*, alive: bool = True) -> Story:
    """The runner was taken for a server of its own before the router said what it is."""
    story = Story()
    runner = Command(program="llama-server", role="runner", model="alpha", port=9001)
    story.add(
        Fork(ts_ns=ms(-50), parent=100, child=200, comm="llama-server"),
        Process(ts_ns=ms(1), tgid=200, ppid=100, start_ns=0, comm="llama-server", command=runner),
        Listen(ts_ns=ms(1), tgid=200, netns=NETNS, port=9001),
        Server(
            ts_ns=ms(1), name="llama-server:9001", program="llama-server", tgid=200,
            netns=NETNS, port=9001,
        ),
    )  # fmt: skip
    if not alive:
        story.exit(50, 100)
    return story


def test_a_runner_that_was_taken_for_a_server_serves_its_router() -> None:
    story = late_front()
    story.request(1000, 50001, tid=101, model="alpha", head=1040, token=1050, end=1100)
    story.hop(1002, 9001, 60001, 200, tid=101, model="alpha", head=1039, token=1049, end=1099)
    (only,) = finals(story.records()).values()
    assert (only.server, only.runner) == ("llama-server:8080", 200)
    assert only.hop is not None and only.hop.arrival_ns == ms(1002)


def test_who_outlived_its_front_is_a_server_itself() -> None:
    """A server that went to the background, or started itself anew."""
    story = late_front(alive=False)
    story.hop(1002, 9001, 60001, 200, model="alpha", head=1039, token=1049, end=1099)
    (only,) = finals(story.records()).values()
    assert (only.server, only.runner) == ("llama-server:9001", 200)
