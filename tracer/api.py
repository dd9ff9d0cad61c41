"""HTTP/1.1 on the Unix socket. Read-only; every answer is JSON but `/metrics`.

`daemon.py` implements `Backend`. Questions to the store and exports run in a few worker
threads, so that no reader holds up the pipeline.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Protocol

from tracer import answers, answers_state, summary
from tracer.answers import Json, dumps
from tracer.answers_state import Fact, ModelSeen, Status
from tracer.api_http import Request, Response, Server, told
from tracer.api_metrics import Metrics
from tracer.api_peers import Turns
from tracer.api_query import Missing, WrongQuery, duration_ns, last, number, query, since_ns
from tracer.api_socket import Place
from tracer.api_streams import with_heartbeat
from tracer.derived import Derived
from tracer.errors import StoreError, TtftError
from tracer.store import Store

LAST_DEFAULT = 20
LAST_MAX = 10_000
SUMMED_MAX = 10_000
DAY_NS = 86_400_000_000_000
TRACE_MAX = 500
STREAMS_MAX = {"events": 8, "records": 2}
"""Each recording may hold back 4 MiB for a slow reader."""
STREAMS_PER_USER = {"events": 4, "records": 1}
"""Of those, so that nobody keeps the others from watching."""
HEARTBEAT_S = 15.0
EXPORTS_PER_USER = 2
EXPORT_SEND_S = 10.0
EXPORT_WAIT_S = 6.0
"""A trace is the largest thing made here: one at a time, in line for less than a client waits."""


class Backend(Protocol):
    """What the daemon gives the interface. Called in any thread, except the two streams."""

    @property
    def store(self) -> Store: ...
    @property
    def metrics(self) -> Metrics: ...
    def status(self) -> Status: ...
    def models(self) -> list[ModelSeen]: ...
    def doctor(self) -> Sequence[Fact]: ...
    def open_now(self) -> Sequence[Derived]:
        """Requests that are not over, explained so far."""

    def export(self, ids: list[int]) -> Iterator[bytes]:
        """Chrome trace JSON of these requests in pieces; unknown ids are left out."""

    def events(self) -> AsyncIterator[bytes]:
        """Answers (JSON) of requests as they come and change; see `events_fanout`."""

    def records(self) -> AsyncIterator[bytes]:
        """A recording, in chunks of whole lines, context first; see `records_fanout`."""


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body + b"\n", status, media_type="application/json")


def _exported(pieces: Iterator[bytes]) -> Response:
    return Response(chain(pieces, (b"\n",)), limit_s=EXPORT_SEND_S)


def _list(batches: Iterable[list[bytes]]) -> Iterator[bytes]:
    before = b"["
    for batch in batches:
        if batch:
            yield before + b",\n".join(batch)
            before = b",\n"
    yield b"]" if before == b",\n" else b"[]"


class _Routes:
    """One method a route."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._streams: Counter[str] = Counter()
        self._users: Counter[tuple[str, int | None]] = Counter()

    def status(self, request: Request) -> Response:
        query(request)
        return _json(dumps(answers_state.status(self._backend.status())))

    def requests(self, request: Request) -> Response:
        return self._listing(request, spikes_only=False)

    def spikes(self, request: Request) -> Response:
        return self._listing(request, spikes_only=True)

    def _listing(self, request: Request, *, spikes_only: bool) -> Response:
        asked = query(request, "last", "since", "model")
        store = self._backend.store
        found = store.find(
            last=last(asked, LAST_MAX if "since" in asked else LAST_DEFAULT, LAST_MAX),
            since_ns=since_ns(asked),
            model=asked.get("model"),
            spikes_only=spikes_only,
        )
        if len(found) <= LAST_DEFAULT:
            return _json(b"".join(_list(store.answers(found))))
        # Piece by piece: ten thousand answers are more than the daemon may weigh.
        return Response(_list(store.answers(found)), media_type="application/json")

    def summary(self, request: Request) -> Response:
        asked = query(request, "since", "model")
        until = time.time_ns()
        since, model = since_ns(asked) or until - DAY_NS, asked.get("model")
        store = self._backend.store
        found = store.find(SUMMED_MAX, since, model, spikes_only=True)
        sums = summary.Sums()
        for spike in summary.slow(store.answers(found)):
            sums.add(spike)
        answer = summary.answer(
            store.counts(since, model),
            sums,
            since_ns=since,
            until_ns=until,
            model=model,
            whole=len(found) < SUMMED_MAX,
        )
        return _json(dumps(answer))

    def one(self, request: Request) -> Response:
        wanted = number(request)
        query(request)
        found = self._backend.store.get(wanted)
        if found is None:
            raise self._no_request(wanted)
        return _json(found)

    def _no_request(self, wanted: int) -> Missing:
        return Missing(f"no request {wanted}", "ttft requests lists those that are kept")

    def trace_of(self, request: Request) -> Response:
        wanted = number(request)
        query(request)
        if self._backend.store.evidence(wanted) is None:
            raise self._no_request(wanted)
        return _exported(self._backend.export([wanted]))

    def trace(self, request: Request) -> Response:
        asked = query(request, "since", "last")
        ids = self._backend.store.find(last(asked, TRACE_MAX, TRACE_MAX), since_ns(asked))
        return _exported(self._backend.export(ids))

    def open(self, request: Request) -> Response:
        query(request)
        return _json(dumps([answers.answer(item) for item in self._backend.open_now()]))

    def models(self, request: Request) -> Response:
        query(request)
        return _json(dumps([answers_state.model(seen) for seen in self._backend.models()]))

    def doctor(self, request: Request) -> Response:
        query(request)
        return _json(dumps(answers_state.doctor(self._backend.doctor(), daemon=True)))

    def metrics(self, request: Request) -> Response:
        query(request)
        text = self._backend.metrics.text(self._backend.status())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def events(self, request: Request) -> Response:
        query(request)
        self._check_streams("events", request.uid)
        items = _sse(with_heartbeat(self._backend.events(), HEARTBEAT_S, b""))
        items = self._counted("events", request.uid, items)
        return Response(items, media_type="text/event-stream")

    def records(self, request: Request) -> Response:
        length_ns = duration_ns(query(request, "for"), "for")
        self._check_streams("records", request.uid)
        items = self._backend.records()
        if length_ns is not None:
            items = _for(items, length_ns / 1e9)
        items = self._counted("records", request.uid, items)
        return Response(items, media_type="application/x-ndjson")

    def _check_streams(self, kind: str, uid: int | None) -> None:
        hint = "close one and try again"
        if self._streams[kind] >= STREAMS_MAX[kind]:
            raise TtftError(f"already {self._streams[kind]} streams of {kind} open", hint)
        own = self._users[kind, uid]
        if own >= STREAMS_PER_USER[kind]:
            raise TtftError(f"already {own} of this user's streams of {kind} open", hint)

    async def _counted(
        self, kind: str, uid: int | None, items: AsyncIterator[bytes]
    ) -> AsyncGenerator[bytes, None]:
        # Several may have passed the check before the first was counted.
        self._check_streams(kind, uid)
        self._streams[kind] += 1
        self._users[kind, uid] += 1
        try:
            async for item in items:
                yield item
        finally:
            self._streams[kind] -= 1
            self._users[kind, uid] -= 1
            if not self._users[kind, uid]:
                del self._users[kind, uid]


async def _sse(items: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield b": ttft events\n\n"
    async for item in items:
        yield b"event: request\ndata: " + item + b"\n\n" if item else b": still here\n\n"


async def _for(items: AsyncIterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    """`items` until the time is up."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            async with asyncio.timeout_at(end):
                item = await anext(items)
        except (TimeoutError, StopAsyncIteration):
            return
        yield item


def _error(message: str, hint: str | None, status: int) -> Response:
    answer: Json = {"schema": answers.SCHEMA, "error": message, "hint": hint}
    return _json(dumps(answer), status)


def _told(error: BaseException) -> Response:
    """The answer to a request that failed."""
    if isinstance(error, TtftError):
        statuses: dict[type[TtftError], int] = {WrongQuery: 400, Missing: 404, StoreError: 503}
        return _error(error.message, error.hint, statuses.get(type(error), 503))
    told(error)
    return _error(f"internal error ({type(error).__name__})", "see the log of ttftd", 500)


def _refuse(status: int, message: str) -> Response:
    """The answer to what is no request, or one too many."""
    hints = {503: "it is busy; try again", 429: "ask less often"}
    hint = hints.get(status, "this interface speaks HTTP/1.1")
    return _error(message, hint, status)


ROUTES = {
    "/v1/status": _Routes.status,
    "/v1/requests": _Routes.requests,
    "/v1/spikes": _Routes.spikes,
    "/v1/summary": _Routes.summary,
    "/v1/requests/{id}": _Routes.one,
    "/v1/requests/{id}/trace": _Routes.trace_of,
    "/v1/trace": _Routes.trace,
    "/v1/open": _Routes.open,
    "/v1/models": _Routes.models,
    "/v1/doctor": _Routes.doctor,
    "/v1/events": _Routes.events,
    "/v1/records": _Routes.records,
    "/metrics": _Routes.metrics,
}
"""Every path there is; documentation is checked against it."""


_EXPORTS = {"/v1/trace", "/v1/requests/{id}/trace"}
_STREAMS = {"/v1/events", "/v1/records"}
"""Answered in the event loop; all others in a worker thread."""
_PATTERNS = {path: re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)) for path in ROUTES}


class ApiServer:
    """The interface on its socket: `start`, then `stop`, in one event loop."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._server = Server(self._answer, _refuse)
        self._routes: _Routes | None = None
        self._exports = Turns(EXPORT_WAIT_S, EXPORTS_PER_USER)

    async def start(self, backend: Backend) -> None:
        """Answer from now on."""
        self._routes = _Routes(backend)
        await self._server.start(self._place.listener)

    async def stop(self) -> None:
        """Stop answering and remove the socket; running streams are cut after a second."""
        await self._server.stop()
        self._place.close()

    async def _answer(self, request: Request) -> Response:
        found = ((path, pattern.fullmatch(request.path)) for path, pattern in _PATTERNS.items())
        path, match = next(((p, m) for p, m in found if m is not None), (None, None))
        if path is None or match is None:
            return _error("not found", f"there is: {', '.join(ROUTES)}", 404)
        if request.method not in ("GET", "HEAD"):
            return _error("method not allowed", "this interface is read-only: use GET", 405)
        asked = replace(request, path_params=match.groupdict())
        method: Callable[[_Routes, Request], Response] = ROUTES[path]
        assert self._routes is not None
        work = partial(method, self._routes, asked)
        if path in _EXPORTS:
            return await self._in_turn(work, request.uid)
        return await self._done(path, work)

    async def _in_turn(self, work: Callable[[], Response], uid: int | None) -> Response:
        """One at a time, until it is sent."""
        if not await self._exports.come(uid):
            return replace(_refuse(503, "other traces are being made"), retry_after_s=5)
        gone = partial(self._exports.gone, uid)
        try:
            return replace(await self._done("", work), done=gone)
        except BaseException:
            gone()
            raise

    async def _done(self, path: str, work: Callable[[], Response]) -> Response:
        doing = asyncio.ensure_future(
            _at_once(work) if path in _STREAMS else self._server.in_thread(work)
        )
        await asyncio.wait({doing})
        error = doing.exception()
        return doing.result() if error is None else _told(error)


async def _at_once(work: Callable[[], Response]) -> Response:
    return work()
