"""Segments in any order, twice, cut or lost: the same facts, or a gap that is named."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.http_wire import (
    CONN,
    HEAD,
    LAST,
    Wire,
    event,
    json_reply,
    post,
    read,
)
from tracer.http import ACK, FIN, RST, SYN, HttpReader, Packet
from tracer.http.reassembly import Held, Ingress
from tracer.records import (
    AnyRecord,
    HttpBody,
    HttpEnd,
    HttpHead,
    HttpRequest,
    HttpToken,
    HttpUnreadable,
)

MARKER = "PLANTED-SECRET"
CHAT = "/v1/chat/completions"
ROLE = b'{"id":"c","model":"beta","choices":[{"delta":{"role":"assistant","content":null}}]}'
THINK = b'{"id":"c","model":"beta","choices":[{"delta":{"reasoning_content":"PLANTED-SECRET"}}]}'
TEXT = b'{"id":"c","model":"beta","choices":[{"delta":{"content":"PLANTED-SECRET"}}]}'
USAGE = b'{"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}'
BODY = b'{"messages":[{"model":"no","content":"PLANTED-SECRET"}],"stream":true,"model":"beta"}'

FIRST = post(CHAT, BODY, b"Authorization: Bearer PLANTED-SECRET\r\n")
SECOND = post("/completion?q=PLANTED-SECRET", b'{"prompt":"PLANTED-SECRET"}')
ANSWER = (
    HEAD
    + event(ROLE)
    + event(THINK)
    + event(THINK)
    + event(TEXT)
    + event(TEXT)
    + event(USAGE)
    + event(b"[DONE]")
    + LAST
)
SECOND_ANSWER = json_reply(b'{"content":"PLANTED-SECRET","tokens_evaluated":3}')


def timeless(facts: list[AnyRecord]) -> list[AnyRecord]:
    return [msgspec.structs.replace(fact, ts_ns=0) for fact in facts]


def whole() -> list[AnyRecord]:
    wire = Wire().open().send(FIRST).reply(ANSWER).send(SECOND).reply(SECOND_ANSWER)
    return timeless(read(wire.packets))


WHOLE = whole()


def cut(data: bytes, cuts: list[int]) -> list[tuple[int, bytes]]:
    """(offset, part) of `data` cut at these places."""
    edges = sorted({0, len(data), *(c % len(data) for c in cuts)})
    return [(a, data[a:b]) for a, b in itertools.pairwise(edges)]


def test_the_fixed_exchange_is_read() -> None:
    assert [type(f) for f in WHOLE] == [
        HttpRequest,
        HttpBody,
        HttpHead,
        HttpToken,
        HttpToken,
        HttpToken,
        HttpEnd,
        HttpRequest,
        HttpBody,
        HttpHead,
        HttpEnd,
    ]


CUTS = st.lists(st.integers(0, 5000), max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    CUTS,
    CUTS,
    CUTS,
    CUTS,
    st.randoms(use_true_random=False),
    st.sampled_from([1000, 0xFFFFFFF0, 0xFFFFFF00, 0x7FFFFFF0]),
)
def test_any_order_and_repetition_gives_the_same_facts(
    first: list[int],
    second: list[int],
    answer: list[int],
    other: list[int],
    rng: random.Random,
    isn: int,
) -> None:
    wire = Wire(client_isn=isn, server_isn=(isn * 7) & 0xFFFFFFFF).open()
    for call, call_cuts, reply, reply_cuts in (
        (FIRST, first, ANSWER, answer),
        (SECOND, second, SECOND_ANSWER, other),
    ):
        base = wire.client
        parts = cut(call, call_cuts)
        shuffled = parts + rng.sample(parts, rng.randint(0, len(parts)))
        rng.shuffle(shuffled)
        seen: set[int] = set()
        for offset, part in shuffled:
            wire.client = base + offset
            wire.send(part, ack=False)
            seen.update(range(offset, offset + len(part)))
            acked = next(i for i in range(len(call) + 1) if i not in seen)
            wire.client = base + acked
            if rng.random() < 0.5:
                wire.reply(b"")
        wire.client = base + len(call)
        sent: list[Packet] = []
        for _, part in cut(reply, reply_cuts):
            wire.reply(part)
            sent.append(wire.packets[-1])
            if rng.random() < 0.3:  # a retransmission
                wire.packets.append(rng.choice(sent))
    assert timeless(read(wire.packets)) == WHOLE


def test_the_last_copy_before_the_acknowledgement_wins() -> None:
    wire = Wire().open()
    bad = FIRST.replace(b"beta", b"evil")
    base = wire.client
    wire.send(bad, ack=False)  # 3: dropped by the kernel for its checksum
    wire.client = base
    wire.send(FIRST, ack=False)  # 4
    wire.reply(b"")
    wire.client = base
    wire.send(bad)  # after the acknowledgement: too late
    facts = read(wire.packets)
    assert facts == [
        HttpRequest(ts_ns=4, xid=1, conn=CONN, method="POST", endpoint=CHAT),
        HttpBody(ts_ns=4, xid=1, bytes=len(BODY), model="beta", stream=True),
    ]


def test_a_byte_arrives_when_all_before_it_have() -> None:
    wire = Wire().open()
    base = wire.client
    wire.client = base + 10
    wire.send(FIRST[10:], ack=False)  # 3
    wire.client = base
    wire.send(FIRST[:10], ack=False)  # 4
    wire.client = base + len(FIRST)
    wire.reply(b"")
    assert [f.ts_ns for f in read(wire.packets)] == [4, 4]


def test_overlapping_copies_leave_no_trace() -> None:
    held = Held()
    stream = Ingress(0, held)
    data = bytes(range(100))
    rng = random.Random(7)
    for ts in range(200):
        start = rng.randrange(100)
        end = rng.randint(start, 100)
        packet = Packet(
            ts_ns=ts,
            conn=CONN,
            egress=False,
            seq=start,
            ack=0,
            payload_len=end - start,
            payload=data[start:end],
        )
        stream.add(packet, start)
    pieces = stream.acknowledge(100, 999)
    assert b"".join(p[1] or b"?" * p[2] for p in pieces) == data
    assert held.bytes == 0


def test_old_connection_is_named_once_and_then_read() -> None:
    wire = Wire().send(b'half of a body"}').reply(event(TEXT)).send(SECOND).reply(SECOND_ANSWER)
    facts = read(wire.packets)
    assert facts[0] == HttpUnreadable(ts_ns=1, conn=CONN, why="old_connection")
    assert timeless(facts[1:]) == [msgspec.structs.replace(fact, xid=1) for fact in WHOLE[7:]]


def test_an_idle_old_connection_is_read_at_once() -> None:
    wire = Wire().send(FIRST).reply(ANSWER)
    assert timeless(read(wire.packets)) == WHOLE[:7]


def test_an_answer_under_way_is_an_old_connection() -> None:
    wire = Wire().reply(event(TEXT), event(TEXT))
    assert read(wire.packets) == [HttpUnreadable(ts_ns=1, conn=CONN, why="old_connection")]
    reader = HttpReader()
    reader.lost(0)
    assert read(wire.packets, reader) == [HttpUnreadable(ts_ns=1, conn=CONN, why="gap")]


def test_a_gap_in_a_stream_is_named_and_the_next_request_read() -> None:
    wire = Wire().open().send(FIRST).reply(HEAD, event(TEXT))
    wire.skip(server=len(event(TEXT))).reply(event(TEXT) + LAST)  # 7
    wire.send(SECOND).reply(SECOND_ANSWER)
    facts = read(wire.packets)
    assert facts[4:6] == [
        HttpUnreadable(ts_ns=7, conn=CONN, why="gap"),
        HttpEnd(ts_ns=7, xid=1, why="gap", bytes=len(TEXT) + 8, tokens=1, model="beta"),
    ]
    assert timeless(facts[6:]) == WHOLE[7:]


def test_a_gap_in_a_header_is_named() -> None:
    wire = Wire().open().send(FIRST[:20]).skip(client=10).send(FIRST[30:]).reply(ANSWER)
    wire.send(SECOND).reply(SECOND_ANSWER)
    facts = read(wire.packets)
    assert facts[0] == HttpUnreadable(ts_ns=6, conn=CONN, why="gap")
    assert [type(f) for f in facts[1:]] == [HttpRequest, HttpBody, HttpHead, HttpEnd]


@pytest.mark.parametrize("lost", [1, 30, len(BODY) - 1])
def test_a_body_of_known_length_survives_a_hole(lost: int) -> None:
    head, tail = FIRST[: -len(BODY)] + BODY[:1], BODY[1 + lost :]
    wire = Wire().open().send(head).skip(client=lost)
    if tail:
        wire.send(tail)
    wire.reply(ANSWER)
    facts = timeless(read(wire.packets))
    assert facts[1] == HttpBody(ts_ns=0, xid=1, bytes=len(BODY))
    assert facts[:1] + facts[2:] == WHOLE[:1] + WHOLE[2:7]


def test_cut_payload_counts_as_a_hole() -> None:
    wire = Wire().open().send(FIRST, cut=40).reply(ANSWER)
    facts = timeless(read(wire.packets))
    assert facts[1] == HttpBody(ts_ns=0, xid=1, bytes=len(BODY))
    wire = Wire().open().send(FIRST).reply(SECOND_ANSWER, cut=10)
    assert timeless(read(wire.packets))[2:] == [
        HttpHead(ts_ns=0, xid=1, status=200),
        HttpEnd(ts_ns=0, xid=1, why="complete", bytes=len(SECOND_ANSWER.split(b"\r\n\r\n")[1])),
    ]


def test_a_reused_port_pair_is_a_new_connection() -> None:
    first = Wire().open().send(FIRST)
    second = Wire(client_isn=77_000).open().send(SECOND).reply(SECOND_ANSWER)
    facts = timeless(read(first.packets + second.packets))
    assert facts[:3] == [*WHOLE[:2], HttpEnd(ts_ns=0, xid=1, why="client_gone")]
    assert facts[3:] == WHOLE[7:]


def test_stragglers_of_a_closed_connection_say_nothing() -> None:
    wire = Wire().open().send(FIRST).reply(ANSWER).server_fin().client_fin()
    again = [p for p in wire.packets if not p.flags & SYN]
    assert timeless(read(wire.packets + again)) == WHOLE[:7]


def test_no_text_outlives_the_reader() -> None:
    wire = Wire().open().send(FIRST[:200], FIRST[200:]).reply(ANSWER).send(SECOND)
    reader = HttpReader()
    facts = read(wire.packets, reader) + reader.snapshot()
    facts += read(wire.reply(SECOND_ANSWER).packets[-1:], reader)
    encoded = msgspec.json.encode(facts).decode()
    assert MARKER not in encoded and "SECRET" not in encoded
    assert "beta" in encoded


def test_idle_connections_are_forgotten_and_read_on() -> None:
    reader = HttpReader()
    wire = Wire().open().send(FIRST).reply(ANSWER)
    facts = read(wire.packets, reader)
    assert reader.expire(500 * 10**9) == [] and reader.connections == 0
    wire.clock = 501 * 10**9
    facts += read(wire.send(SECOND).reply(SECOND_ANSWER).packets[-3:], reader)
    assert timeless(facts) == WHOLE


def test_a_client_that_left_long_ago_is_gone() -> None:
    reader = HttpReader()
    read(Wire().open().send(FIRST).client_fin().packets, reader)
    assert reader.expire(60 * 10**9) == []
    assert reader.expire(700 * 10**9) == [HttpEnd(ts_ns=5, xid=1, why="client_gone")]


def test_flags_are_those_of_tcp() -> None:
    assert (FIN, SYN, RST, ACK) == (1, 2, 4, 16)
