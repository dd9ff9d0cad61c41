"""Any bytes in any order: nothing raises, nothing grows, every exchange ends once."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.http_wire import CONN, HEAD, LAST, Wire, chunk, post, read
from tests.unit.test_http_reassembly import ANSWER, FIRST, SECOND, SECOND_ANSWER
from tracer.http import HttpReader, Packet
from tracer.http.tokens import EventStream
from tracer.records import AnyRecord, Conn, HttpEnd, HttpRequest, HttpToken, HttpUnreadable


def packets() -> st.SearchStrategy[Packet]:
    payload = st.binary(max_size=40) | st.sampled_from(
        [
            FIRST,
            SECOND,
            ANSWER,
            SECOND_ANSWER,
            FIRST[:99],
            ANSWER[:300],
            chunk(b"x"),
            HEAD,
            b"\x16\x03",
            b"PRI ",
            b"HTTP/1.1 ",
            b"GET / HTTP/1.1\r\n\r\n",
        ]
    )
    near = st.sampled_from([0, 1, 2, 0xFFFFFFFF, len(FIRST) + 1]) | st.integers(0, 0xFFFFFFFF)

    def make(kw: dict[str, Any]) -> Packet:
        extra = kw.pop("cut")
        return Packet(**kw, payload_len=len(kw["payload"]) + extra)

    return st.fixed_dictionaries(
        {
            "ts_ns": st.integers(0, 10**12),
            "egress": st.booleans(),
            "seq": near,
            "ack": near,
            "payload": payload,
            "flags": st.integers(0, 31),
            "cut": st.sampled_from([0, 0, 0, 7, 2**31]),
            "conn": st.sampled_from([CONN, Conn(0, "::1", 1, "::1", 2), Conn(4, "a", 1, "b", 3)]),
        }
    ).map(make)


@settings(max_examples=300, deadline=None)
@given(st.lists(packets(), max_size=25))
def test_any_packets_are_survived_and_every_exchange_ends_once(stream: list[Packet]) -> None:
    reader = HttpReader(max_connections=2)
    facts = read(stream, reader)
    facts += reader.expire(10**18)
    begun = [f.xid for f in facts if isinstance(f, HttpRequest)]
    ended = [f.xid for f in facts if isinstance(f, HttpEnd)]
    assert sorted(begun) == sorted(ended) and len(set(ended)) == len(ended)
    assert reader.connections == 0 and reader.snapshot() == []
    assert reader._held.bytes == 0 and reader._held.exchanges == 0


JUNK = (
    b"\r\n",
    b"\x00",
    LAST,
    b"data: ",
    b"Connection: close\r\n",
    b"Connection: upgrade\r\nUpgrade: x\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
)


def damaged(data: bytes, rng: random.Random) -> list[bytes]:
    """Up to six bytes changed, stretches lost and junk put in; in two parts."""
    text = bytearray(data)
    for _ in range(rng.randint(0, 6)):
        at = rng.randrange(len(text))
        how = rng.random()
        if how < 0.4:
            text[at] = rng.randrange(256)
        elif how < 0.7:
            del text[at : at + rng.randint(1, 9)]
        else:
            text[at:at] = rng.choice(JUNK)
    middle = rng.randrange(len(text) + 1)
    return [bytes(text[:middle]), bytes(text[middle:])]


@pytest.mark.parametrize("seed", range(20))
def test_damaged_conversations_are_told_in_order(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        wire = Wire().open()
        for call, answer in ((FIRST, ANSWER), (SECOND, SECOND_ANSWER), (FIRST, ANSWER)):
            wire.send(*damaged(call, rng)).reply(*damaged(answer, rng))
            if rng.random() < 0.15:
                how = ("client_fin", "server_fin", "client_reset", "server_reset")
                getattr(wire, rng.choice(how))()
        reader = HttpReader()
        states: dict[int, str] = {}
        for fact in read(wire.packets, reader) + reader.expire(10**18):
            xid = getattr(fact, "xid", None)
            if isinstance(fact, HttpRequest):
                assert fact.xid not in states
                states[fact.xid] = "open"
            elif xid is not None:
                assert states[xid] == "open"
                if isinstance(fact, HttpEnd):
                    states[xid] = "ended"
        assert set(states.values()) <= {"ended"}


def test_memory_is_bounded() -> None:
    reader = HttpReader(max_connections=16)
    facts: list[AnyRecord] = []
    for port in range(400):
        conn = Conn(0, "a", 80, "b", port)
        wire = Wire(conn).open().send(FIRST)
        wire.skip(client=1).send(*[b"x" * 65536] * 80, ack=False)  # never acknowledged
        facts += read(wire.packets, reader)
        assert reader.connections <= 16 and reader._held.bytes <= 16 << 20
    assert reader._held.bytes <= 16 << 20
    assert len(reader._gone) <= 16
    assert sum(isinstance(f, HttpEnd) for f in facts) >= 400 - 16


@pytest.mark.parametrize(
    ("kind", "begin", "more"),
    [
        (b"text/event-stream", b"data: ", b"x" * 60_000),
        (b"text/event-stream", b"", b"data: " + b"x" * 54 + b"\n"),
        (b"application/x-ndjson", b"", b"x" * 60_000),
        (b"application/json", b"{", b'"usage":[' + b"9," * 30_000),
    ],
)
def test_replies_that_never_end_a_line_weigh_no_more_together(
    kind: bytes, begin: bytes, more: bytes
) -> None:
    reader = HttpReader()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\n\r\n" + begin
    wires = [Wire(Conn(0, "a", 80, "b", port)).open() for port in range(100)]
    parts = [more * (60_000 // len(more) or 1)] * 15
    tracemalloc.start()
    try:
        for wire in wires:
            wire.send(post("/v1/messages", b"{}")).reply(head, *parts)
            read(wire.packets, reader)
            wire.packets.clear()
        assert tracemalloc.get_traced_memory()[0] < 48 << 20
    finally:
        tracemalloc.stop()
    assert reader._held.bytes <= 16 << 20
    facts: list[AnyRecord] = []
    for wire in wires:
        token = b'\n\ndata: {"type":"x"}\n\ndata: {"content":"a"}\n\n'
        facts += read(wire.reply(token).server_fin().packets, reader)
    assert sum(isinstance(f, HttpEnd) for f in facts) == len(wires)
    if b"event" in kind:
        assert sum(isinstance(f, HttpToken) for f in facts) == len(wires)
    assert reader._held.bytes == 0 and not any(isinstance(f, HttpUnreadable) for f in facts)


def test_a_reply_given_up_halfway_is_told_from_its_next_event_on() -> None:
    stream = EventStream()
    stream.shed()
    assert stream.feed(b"data: 1\n\ndata: 2\n") == [b" 1"]
    stream.shed()
    assert stream.held == 0
    assert stream.feed(b"data: 3\n\ndata: 4\n\ndata: 5") == [b" 4"]
    stream.shed()
    assert stream.feed(b"6\ndata: 7\n\ndata: 8\n\n") == [b" 8"]
    assert stream.held == 0 and stream.rest() == []


def test_pipelining_on_many_connections_is_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tracer.http.reader.MAX_EXCHANGES", 500)
    reader = HttpReader()
    facts: list[AnyRecord] = []
    last = Wire(Conn(0, "a", 80, "b", 1000)).open().send(FIRST)
    facts += read(last.packets, reader)
    last.packets.clear()
    for port in range(30):
        wire = Wire(Conn(0, "a", 80, "b", port)).open()
        facts += read(wire.send(b"GET / HTTP/1.1\r\n\r\n" * 60).packets, reader)
        assert reader._held.exchanges <= 500
    assert sum(isinstance(f, HttpEnd) for f in facts) >= 30 * 60 - 500
    facts = read(last.reply(ANSWER).server_fin().packets, reader)
    assert [f.why for f in facts if isinstance(f, HttpEnd)] == ["complete"]
    reader.expire(10**18)
    assert reader._held.exchanges == 0


def test_pipelining_without_end_is_given_up() -> None:
    wire = Wire().open().send(b"GET / HTTP/1.1\r\n\r\n" * 5000)
    facts = read(wire.packets)
    assert sum(isinstance(f, HttpEnd) for f in facts) == 64
    assert sum(isinstance(f, HttpUnreadable) for f in facts) == 1
