"""Hand-built records with short names. Times are milliseconds, made integer nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tracer.evidence import Evidence
from tracer.records import (
    AnyRecord,
    Command,
    Conn,
    Connect,
    EndWhy,
    Exec,
    Exit,
    File,
    Fork,
    Host,
    HttpBody,
    HttpEnd,
    HttpHead,
    HttpRequest,
    HttpToken,
    Insert,
    Listen,
    Op,
    Open,
    Process,
    Server,
    Signal,
    Span,
    Start,
    Take,
    Tick,
)
from tracer.requests import Fold

NETNS = 4026531840
CHAT = "/v1/chat/completions"
MIB = 1 << 20


def ms(value: float) -> int:
    """Milliseconds as nanoseconds."""
    return round(value * 1_000_000)


class Story:
    """What happened to one server, told in any order; `records()` gives it in order of time."""

    _xids = 0

    def __init__(
        self,
        *,
        front: int = 100,
        port: int = 8080,
        netns: int = NETNS,
        program: str = "llama-server",
        role: str = "front",
        model: str | None = None,
        name: str | None = None,
    ) -> None:
        self.front, self.port, self.netns = front, port, netns
        self.program = program
        self.name = name or f"{program}:{port}"
        self.told: list[AnyRecord] = [
            Host(
                ts_ns=0,
                wall_offset_ns=ms(1_000_000),
                machine="x86_64",
                kernel="6.1",
                version="0.1.0",
                began_ns=0,
            ),
            Start(ts_ns=0, next_id=1),
            Process(
                ts_ns=0,
                tgid=front,
                ppid=1,
                start_ns=-ms(1000),
                comm=program,
                command=Command(program=program, role=role, model=model, port=port),  # type: ignore[arg-type]
            ),
            Server(ts_ns=0, name=self.name, program=program, tgid=front, netns=netns, port=port),
            Listen(ts_ns=0, tgid=front, netns=netns, port=port),
        ]

    def add(self, *records: AnyRecord) -> None:
        self.told += records

    def conn(self, port: int, client_port: int, ip: str = "127.0.0.1") -> Conn:
        return Conn(self.netns, ip, port, ip, client_port)

    # --- processes ---

    def runner(
        self, at: float, tgid: int, port: int, model: str | None, parent: int | None = None
    ) -> None:
        """Fork and exec 1 ms later of a runner; it listens 10 ms after that."""
        command = Command(program="llama-server", role="runner", model=model, port=port)
        self.add(
            Fork(ts_ns=ms(at), parent=parent or self.front, child=tgid, comm=self.program),
            Exec(ts_ns=ms(at + 1), tgid=tgid, comm="llama-server", command=command),
            Listen(ts_ns=ms(at + 11), tgid=tgid, netns=self.netns, port=port),
        )

    def exit(self, at: float, tgid: int, signal: int | None = None) -> None:
        if signal is not None:
            self.add(Signal(ts_ns=ms(at - 1), target=tgid, signal=signal, sender=self.front))
        code = 0 if signal is None else None
        self.add(Exit(ts_ns=ms(at), tgid=tgid, code=code, signal=signal))

    # --- files ---

    def file(self, ino: int, size: int = 256 * MIB, fmt: str | None = "gguf") -> None:
        path = f"/models/{ino}.gguf"
        self.add(File(ts_ns=0, dev=1, ino=ino, size=size, path=path, fmt=fmt, fs="ext4"))

    def load(self, at: float, until: float, tgid: int, ino: int, token: int = 1) -> None:
        """Open, one populating mmap of the whole file, and its bytes from disk."""
        common = {"tgid": tgid, "tid": tgid, "dev": 1, "ino": ino}
        self.add(Open(ts_ns=ms(at), token=token, **common))
        self.span(at + 1, until, tgid, ino, "mmap", token=token)
        self.add(Insert(ts_ns=ms(at + 1), end_ns=ms(until), dev=1, ino=ino, pages=65536, tgid=tgid))

    def span(
        self,
        at: float,
        until: float,
        tgid: int,
        ino: int,
        op: Op,
        size: int = 256 * MIB,
        token: int = 1,
    ) -> None:
        self.add(
            Span(
                ts_ns=ms(at),
                end_ns=ms(until),
                tgid=tgid,
                tid=tgid,
                dev=1,
                ino=ino,
                token=token,
                op=op,
                count=1,
                bytes=size,
                busy_ns=ms(until - at),
            )
        )

    # --- HTTP ---

    def exchange(
        self,
        at: float,
        *,
        conn: Conn,
        taker: tuple[int, int],
        endpoint: str | None = CHAT,
        model: str | None = None,
        size: int = 100,
        stream: bool | None = True,
        status: int | None = 200,
        head: float | None = None,
        token: float | None = None,
        end: float | None = None,
        why: EndWhy = "complete",
    ) -> int:
        """An exchange: body 0.2 ms and take 0.3 ms after arrival; returns its xid."""
        Story._xids += 1
        xid = Story._xids
        method = "POST" if model is not None or size else "GET"
        self.add(
            HttpRequest(ts_ns=ms(at), xid=xid, conn=conn, method=method, endpoint=endpoint),
            HttpBody(ts_ns=ms(at + 0.2), xid=xid, bytes=size, model=model, stream=stream),
            Take(ts_ns=ms(at + 0.3), tgid=taker[0], tid=taker[1], conn=conn),
        )
        if head is not None and status is not None:
            events = bool(stream) and status == 200
            self.add(HttpHead(ts_ns=ms(head), xid=xid, status=status, event_stream=events))
        if token is not None:
            self.add(
                HttpToken(ts_ns=ms(token), xid=xid, nth=1, what="text"),
                HttpToken(ts_ns=ms(token + 10), xid=xid, nth=2, what="text"),
            )
        if end is not None:
            failed = status is not None and status >= 500
            self.add(HttpEnd(ts_ns=ms(end), xid=xid, why=why, bytes=500, error=failed))
        return xid

    def request(self, at: float, client_port: int, tid: int | None = None, **more: object) -> int:
        """A client's request to the front."""
        taker = (self.front, tid or self.front)
        return self.exchange(at, conn=self.conn(self.port, client_port), taker=taker, **more)  # type: ignore[arg-type]

    def hop(
        self,
        at: float,
        port: int,
        client_port: int,
        runner: int,
        *,
        connect: bool = True,
        tid: int | None = None,
        **more: object,
    ) -> int:
        """A request of the front to a runner; `connect`: on a new connection."""
        conn = self.conn(port, client_port)
        if connect:
            self.add(Connect(ts_ns=ms(at - 0.1), tgid=self.front, tid=tid or self.front, conn=conn))
        return self.exchange(at, conn=conn, taker=(runner, runner), **more)  # type: ignore[arg-type]

    def records(self, every: float = 50, until: float | None = None) -> list[AnyRecord]:
        """All records in order of time, with a tick every so often, and one past the end."""
        return list(ticked(self.told, every, until))


def ticked(
    told: Iterable[AnyRecord], every: float = 50, until: float | None = None
) -> Iterator[AnyRecord]:
    """Records in order of time with ticks between; spans come when they end."""
    ordered = sorted(told, key=lambda r: getattr(r, "end_ns", r.ts_ns))
    step = ms(every)
    due = step
    for record in ordered:
        while getattr(record, "end_ns", record.ts_ns) > due:
            yield Tick(ts_ns=due)
            due += step
        yield record
    last = ms(until) if until is not None else due
    while due <= last:
        yield Tick(ts_ns=due)
        due += step


def fold(records: Iterable[AnyRecord]) -> list[Evidence]:
    """All evidence that a new fold gives, in the order given."""
    one = Fold()
    return [evidence for record in records for evidence in one.feed(record)]


def finals(records: Iterable[AnyRecord]) -> dict[int, Evidence]:
    """The last evidence of each request, by id."""
    return {evidence.id: evidence for evidence in fold(records)}
