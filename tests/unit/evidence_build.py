"""Short ways to write evidence by hand; times in milliseconds from the arrival at `T0`."""

from __future__ import annotations

from typing import Any

from tracer.derived import Phases, Timeline
from tracer.evidence import Evidence, Exchange, Life, Other
from tracer.records import (
    Command,
    Conn,
    File,
    Insert,
    Op,
    Open,
    Signal,
    Span,
    Warm,
)

T0 = 1_000_000_000_000
MS = 1_000_000
FRONT, OLD, NEW, DECOY = 100, 200, 300, 400
CLIENT = Conn(1, "127.0.0.1", 8080, "127.0.0.1", 50000)
HOP = Conn(1, "127.0.0.1", 9001, "127.0.0.1", 50001)
CHAT = "/v1/chat/completions"
SIZE = 253_113_024
ALPHA = File(ts_ns=0, dev=1, ino=10, size=SIZE, path="/m/alpha.gguf", fmt="gguf", fs="ext4",
             device="sda1")  # fmt: skip
BETA = File(ts_ns=0, dev=1, ino=11, size=SIZE, path="/m/beta.gguf", fmt="gguf", fs="ext4",
            device="sda1")  # fmt: skip


def ns(ms: float) -> int:
    """Absolute time of so many milliseconds after arrival."""
    return T0 + round(ms * MS)


def _at(values: dict[str, Any]) -> dict[str, Any]:
    """Keys given in milliseconds (`read=1.3`) to fields in nanoseconds (`read_ns`)."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        field = key + "_ns"
        if field in _TIMES:
            out[field] = None if value is None else ns(value)
        else:
            out[key] = value
    return out


_TIMES = {
    "arrival_ns", "body_ns", "read_ns", "head_ns", "first_token_ns", "second_token_ns",
    "first_answer_ns", "end_ns", "start_ns", "fork_ns", "exec_ns", "listen_ns", "exit_ns",
    "runner_arrival_ns", "runner_head_ns",
}  # fmt: skip


def request(**kw: Any) -> Exchange:
    """A streamed chat request that arrived at `T0` and was read at once."""
    base: dict[str, Any] = {
        "xid": 1, "conn": CLIENT, "endpoint": CHAT, "server_tgid": FRONT, "stream": True,
        "event_stream": True, "status": 200, "why": "complete", "model": "beta", "arrival": 0,
        "body": 0, "read": 0,
    }  # fmt: skip
    return Exchange(**_at({**base, **kw}))


def hop(**kw: Any) -> Exchange:
    base: dict[str, Any] = {
        "xid": 2, "conn": HOP, "endpoint": CHAT, "server_tgid": NEW, "client_tgid": FRONT,
        "stream": True, "event_stream": True, "status": 200, "why": "complete",
    }  # fmt: skip
    return Exchange(**_at({**base, **kw}))


def poll(**kw: Any) -> Exchange:
    base: dict[str, Any] = {"xid": 90, "conn": HOP, "endpoint": "/health", "server_tgid": NEW}
    return Exchange(**_at({**base, **kw}))


def command(model: str | None, role: str = "runner", **kw: Any) -> Command:
    path = f"/m/{model}.gguf" if model else None
    base: dict[str, Any] = {"program": "llama-server", "model": model, "model_path": path}
    return Command(role=role, **{**base, **kw})  # type: ignore[arg-type]


def front(program: str = "llama-server", role: str = "front") -> Life:
    return Life(
        tgid=FRONT, ppid=1, comm=program,
        command=Command(program=program, role=role),  # type: ignore[arg-type]
    )  # fmt: skip


def life(tgid: int, model: str | None, **kw: Any) -> Life:
    base: dict[str, Any] = {
        "tgid": tgid, "ppid": FRONT, "comm": "llama-server", "command": command(model)
    }  # fmt: skip
    return Life(**_at({**base, **kw}))


def decoy(start: float, end: float, tgid: int = DECOY) -> Life:
    return life(tgid, None, fork=start, exit=end, command=command(None, "decoy"))


def signal(at: float, number: int, target: int, sender: int | None = FRONT) -> Signal:
    return Signal(ts_ns=ns(at), target=target, signal=number, sender=sender)


def opened(at: float, token: int, file: File = BETA, tgid: int = NEW) -> Open:
    return Open(ts_ns=ns(at), tgid=tgid, tid=tgid, dev=file.dev, ino=file.ino, token=token)


def span(
    start: float, end: float, op: Op, bytes_: int, *, token: int = 0, count: int = 1,
    busy: float | None = None, file: File = BETA, tgid: int = NEW, tid: int | None = None,
    populate: bool = False,
) -> Span:  # fmt: skip
    """A span; `busy` in milliseconds, all of it where not given."""
    took = round((end - start) * MS)
    return Span(
        ts_ns=ns(start), end_ns=ns(start) + took, tgid=tgid, tid=tid or tgid, dev=file.dev,
        ino=file.ino, token=token, op=op, count=count, bytes=bytes_,
        busy_ns=took if busy is None else round(busy * MS), populate=populate,
    )  # fmt: skip


def insert(start: float, end: float, pages: int, file: File = BETA, tgid: int = NEW) -> Insert:
    return Insert(
        ts_ns=ns(start), end_ns=ns(end), dev=file.dev, ino=file.ino, pages=pages, tgid=tgid
    )


def other(xid: int, **kw: Any) -> Other:
    return Other(**_at({"xid": xid, "id": xid, **kw}))


def evidence(req: Exchange, **kw: Any) -> Evidence:
    base: dict[str, Any] = {
        "id": 17, "server": "llama-server:8080", "program": "llama-server", "front": FRONT,
        "request": req, "began_ns": 0, "wall_offset_ns": 0, "files": (ALPHA, BETA),
    }  # fmt: skip
    return Evidence(**{**base, **kw})


def warm(
    ttft: float = 30, *, model: str = "beta", kind: str = "chat/stream", tokens: int = 26,
    count: int = 5, server: str = "llama-server:8080",
) -> tuple[Warm, ...]:  # fmt: skip
    """`count` like warm requests, nearly all of each being prefill."""
    phases = {"queue": MS, "prefill": round(ttft * MS) - MS}
    return tuple(
        Warm(
            ts_ns=i, server=server, model=model, kind=kind, ttft_ns=round(ttft * MS),
            prompt_tokens=tokens, phases_ns=phases,
        )
        for i in range(count)
    )  # fmt: skip


def ms(stages: dict[str, int]) -> dict[str, float]:
    """Non-zero sums in milliseconds."""
    return {name: took / MS for name, took in stages.items() if took}


def intervals(phases: Phases, t: Timeline) -> list[tuple[str, float, float]]:
    """The tiling in milliseconds from arrival, neighbours of one stage joined."""
    out: list[tuple[str, float, float]] = []
    for x in phases.intervals:
        start, end = (x.start_ns - t.start_ns) / MS, (x.end_ns - t.start_ns) / MS
        if out and out[-1][0] == x.stage and out[-1][2] == start:
            out[-1] = (x.stage, out[-1][1], end)
        else:
            out.append((x.stage, start, end))
    return out
