"""HTTP exchanges and their connections, as records tell of them. Pure and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tracer.evidence import Exchange, Other
from tracer.http.endpoints import ENDPOINTS, kind_of
from tracer.processes import same_netns
from tracer.records import (
    AnyRecord,
    Conn,
    Connect,
    HttpBody,
    HttpEnd,
    HttpHead,
    HttpRequest,
    HttpToken,
    HttpUnreadable,
    Server,
    Take,
)

MAX_WIRES = 4096
MAX_TAKES = 4
MAX_TALKS = 4
MAX_CONNECTS = 4

WireKey = tuple[str, int, str, int]


def work(endpoint: str | None) -> str | None:
    """What kind of work an endpoint asks for; a hop asks for the same kind as its request.

    A front may rewrite a chat to a completion, so what generates text is one kind.
    """
    kind = kind_of(endpoint)
    if kind in ("chat", "completion", "infill"):
        return "generate"
    return "embed" if kind in ("embedding", "rerank") else kind


@dataclass(slots=True, eq=False)
class Wire:
    """One connection: who connected, who took bytes last, its latest exchanges."""

    netns: int
    connects: list[Connect] = field(default_factory=list)
    takes: list[Take] = field(default_factory=list)
    talks: list[Talk] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Talk:
    """One exchange as the records that told of it, and its place in a server.

    `work`: see there. `since_ns`: the earliest arrival of those that waited when it came.
    `role`: `new` not placed yet, `request` a client's, `hop` of a request, `poll` health.
    """

    request: HttpRequest
    wire: Wire
    xid: int = field(init=False)
    arrival_ns: int = field(init=False)
    work: str | None = field(init=False)
    since_ns: int = field(init=False)
    end_ns: int | None = None
    body: HttpBody | None = None
    head: HttpHead | None = None
    first: HttpToken | None = None
    second: HttpToken | None = None
    answer: HttpToken | None = None
    end: HttpEnd | None = None
    read: Take | None = None
    unreadable: HttpUnreadable | None = None
    role: str = "new"
    server: Server | None = None
    server_tgid: int | None = None
    client: Connect | None = None
    id: int | None = None
    told: bool = False
    done: bool = False
    runner: int | None = None
    hops: list[Talk] = field(default_factory=list)
    request_of: Talk | None = None
    as_other: tuple[Other, Other] | None = None

    def __post_init__(self) -> None:
        self.xid = self.request.xid
        self.arrival_ns = self.since_ns = self.request.ts_ns
        self.work = work(self.request.endpoint)

    def over(self, end: HttpEnd) -> None:
        if self.end is None:
            self.end = end
            self.end_ns = end.ts_ns

    @property
    def first_token_ns(self) -> int | None:
        return self.first.ts_ns if self.first is not None else None

    @property
    def served_ns(self) -> int | None:
        """First token; of a whole answer, its end."""
        if self.first is not None:
            return self.first.ts_ns
        whole = self.end is not None and self.end.why == "complete" and not self.failed
        return self.end_ns if whole and not self.streaming and self.answered_ns else None

    @property
    def model(self) -> str | None:
        """The model the body or else the reply names."""
        if self.body is not None and self.body.model is not None:
            return self.body.model
        return self.end.model if self.end is not None else None

    @property
    def size(self) -> int | None:
        return self.body.bytes if self.body is not None else None

    @property
    def answered_ns(self) -> int | None:
        """First byte of a 2xx response."""
        if self.head is not None and 200 <= self.head.status < 300:
            return self.head.ts_ns
        return None

    @property
    def failed(self) -> bool:
        return (self.head is not None and self.head.status >= 500) or (
            self.end is not None and self.end.error
        )

    @property
    def streaming(self) -> bool:
        """Answered as a stream, or asked for one by the body or else by the endpoint."""
        if self.head is not None and self.head.event_stream:
            return True
        if self.body is not None and self.body.stream is not None:
            return self.body.stream
        known = ENDPOINTS.get(self.request.endpoint or "")
        return bool(known and known.streams)

    def exchange(self) -> Exchange:
        """The exchange as evidence."""
        body, head, end = self.body, self.head, self.end
        return Exchange(
            xid=self.xid,
            conn=self.request.conn,
            endpoint=self.request.endpoint,
            arrival_ns=self.arrival_ns,
            server_tgid=self.server_tgid,
            client_tgid=self.client.tgid if self.client else None,
            body_ns=body.ts_ns if body else None,
            read_ns=self.read.ts_ns if self.read else None,
            read_tid=self.read.tid if self.read else None,
            head_ns=head.ts_ns if head else None,
            first_token_ns=self.first_token_ns,
            first_token_what=self.first.what if self.first else None,
            second_token_ns=self.second.ts_ns if self.second else None,
            first_answer_ns=self.answer.ts_ns if self.answer else None,
            end_ns=self.end_ns,
            why=end.why if end else None,
            status=head.status if head else None,
            stream=body.stream if body else None,
            event_stream=head.event_stream if head else False,
            error=end.error if end else False,
            model=body.model if body else None,
            reply_model=end.model if end else None,
            prompt_bytes=self.size,
            response_bytes=end.bytes if end else 0,
            tokens=end.tokens if end else None,
            says=end.says if end else None,
            unreadable=self.unreadable.why if self.unreadable else None,
        )

    def records(self) -> Iterator[AnyRecord]:
        """The records the exchange can be rebuilt from."""
        yield self.request
        for record in (
            self.read,
            self.body,
            self.head,
            self.first,
            self.answer,
            self.second,
            self.unreadable,
            self.end,
        ):
            if record is not None:
                yield record


class Exchanges:
    """All exchanges by xid, and the connections they run on."""

    def __init__(self) -> None:
        self.talks: dict[int, Talk] = {}
        self._wires: dict[WireKey, dict[int, Wire]] = {}

    def feed(
        self,
        record: HttpRequest
        | HttpBody
        | HttpHead
        | HttpToken
        | HttpEnd
        | HttpUnreadable
        | Connect
        | Take,
    ) -> Talk | None:
        """Take in a fact; the exchange it is about, if there is one."""
        match record:
            case HttpRequest():
                return self._request(record)
            case Connect():
                wire = self._wire(record.conn)
                wire.connects.append(record)
                del wire.connects[:-MAX_CONNECTS]
                return None
            case Take():
                return self._take(record)
            case HttpUnreadable():
                talk = self.talks.get(record.xid) if record.xid is not None else None
                if talk is not None:
                    talk.unreadable = record
                return talk
        talk = self.talks.get(record.xid)
        if talk is not None:
            _tell(talk, record)
        return talk

    def _request(self, record: HttpRequest) -> Talk | None:
        if record.xid in self.talks:
            return None
        wire = self._wire(record.conn)
        talk = Talk(record, wire)
        self.talks[record.xid] = talk
        wire.talks.append(talk)
        del wire.talks[:-MAX_TALKS]
        taken = [t for t in wire.takes if t.ts_ns >= record.ts_ns]
        talk.read = min(taken, key=lambda t: t.ts_ns, default=None)
        return talk

    def _take(self, record: Take) -> Talk | None:
        wire = self._wire(record.conn)
        wire.takes.append(record)
        del wire.takes[:-MAX_TAKES]
        asked = [t for t in wire.talks if t.arrival_ns <= record.ts_ns]
        talk = max(asked, key=lambda t: t.arrival_ns, default=None)
        if talk is None:
            return None
        if talk.read is None or record.ts_ns < talk.read.ts_ns:
            talk.read = record
        return talk

    def _wire(self, conn: Conn) -> Wire:
        key = (_plain(conn.server_ip), conn.server_port, _plain(conn.client_ip), conn.client_port)
        alike = self._wires.pop(key, None) or {}
        self._wires[key] = alike  # in order of last use
        wire = alike.get(conn.netns)
        if wire is None:
            wire = next((w for w in alike.values() if same_netns(w.netns, conn.netns)), None)
        if wire is None:
            wire = alike[conn.netns] = Wire(conn.netns)
        return wire

    def client(self, talk: Talk) -> Connect | None:
        """The watched process that had opened the exchange's connection, if one did."""
        made = [c for c in talk.wire.connects if c.ts_ns <= talk.arrival_ns]
        return max(made, key=lambda c: c.ts_ns, default=None)

    def forget(self, talk: Talk) -> None:
        """Drop an exchange; what is still told of it is ignored from now on."""
        self.talks.pop(talk.xid, None)
        if talk in talk.wire.talks:
            talk.wire.talks.remove(talk)
        if talk.request_of is not None and talk in talk.request_of.hops:
            talk.request_of.hops.remove(talk)

    def prune(self, horizon_ns: int) -> None:
        """Keep the connections a watched process made, and those used since `horizon_ns`."""
        for key, alike in list(self._wires.items()):
            for netns, wire in list(alike.items()):
                wire.takes[:] = [t for t in wire.takes if t.ts_ns >= horizon_ns]
                if not (wire.takes or wire.connects or wire.talks):
                    del alike[netns]
            if not alike:
                del self._wires[key]
        while len(self._wires) > MAX_WIRES:
            del self._wires[next(iter(self._wires))]

    def records(self) -> Iterator[AnyRecord]:
        for alike in self._wires.values():
            for wire in alike.values():
                yield from wire.connects
        for talk in self.talks.values():
            yield from talk.records()
        for alike in self._wires.values():
            for wire in alike.values():
                yield from wire.takes


def _tell(talk: Talk, record: HttpBody | HttpHead | HttpToken | HttpEnd) -> None:
    match record:
        case HttpBody():
            talk.body = record
        case HttpHead():
            talk.head = record
        case HttpToken(nth=1):
            talk.first = record
        case HttpToken(nth=2):
            talk.second = record
        case HttpToken():
            talk.answer = record
        case HttpEnd():
            talk.over(record)


def _plain(ip: str) -> str:
    """IPv4 in IPv6 notation is the same address."""
    return ip.removeprefix("::ffff:") if "." in ip else ip
