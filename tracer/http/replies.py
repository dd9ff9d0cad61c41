"""One response body: when its tokens left, and what it says about itself."""

from __future__ import annotations

from typing import Any, Literal

from tracer.http.bodies import TopLevel
from tracer.http.says import REPLY_KEYS, Figures, gather, says
from tracer.http.tokens import EventStream, JsonLines, parse, says_end, token
from tracer.records import HttpToken, Says, TokenWhat

_MAX_MODEL = 256
_SNIFF = 6
_TELLING = frozenset({"timings", "usage", "done", "error"})

Format = Literal["sse", "ndjson", "json"]


def format_of(content_type: bytes) -> Format | None:
    """The format a Content-Type names; None where the body must show it."""
    kind = content_type.split(b";", 1)[0].strip().lower()
    if kind == b"text/event-stream":
        return "sse"
    if kind in (b"application/x-ndjson", b"application/ndjson", b"application/jsonl"):
        return "ndjson"
    return None


class Reply:
    """Reads an inference endpoint's reply; keeps marks and figures, never text.

    `over`: a stream said itself that nothing follows; clients hang up then, before its last chunk.
    """

    __slots__ = (
        "_answered",
        "_events",
        "_figures",
        "_head",
        "_reasoned",
        "_whole",
        "_xid",
        "error",
        "model",
        "over",
        "tokens",
    )

    def __init__(self, xid: int, form: Format | None) -> None:
        self.error = False
        self.over = False
        self.model: str | None = None
        self.tokens: int | None = None
        self._xid = xid
        self._figures: Figures = {}
        self._head = b""
        self._whole: TopLevel | None = None
        self._events: EventStream | JsonLines | None = None
        self._reasoned = False
        self._answered = False
        if form is not None:
            self._begin(form)

    def _begin(self, form: Format) -> None:
        if form == "json":
            self._whole = TopLevel(REPLY_KEYS)
        else:
            self._events = EventStream() if form == "sse" else JsonLines()
            self.tokens = 0

    def feed(self, ts_ns: int, data: bytes) -> list[HttpToken]:
        """The token marks of the next bytes, which left at `ts_ns`."""
        if self._events is None and self._whole is None:
            data = self._head + data
            if len(data) < _SNIFF and b":" not in data[:_SNIFF] and not data.startswith(b"{"):
                self._head = data
                return []
            self._head = b""
            sse = data.startswith((b"data:", b"event:", b":", b"id:", b"retry:"))
            self._begin("sse" if sse else "json")
        if self._whole is not None:
            self._whole.feed(data)
            return []
        marks: list[HttpToken] = []
        if self._events is not None:
            for event in self._events.feed(data):
                self._event(ts_ns, event, marks)
        return marks

    def finish(self, ts_ns: int) -> list[HttpToken]:
        """The body is over: what its last bytes carried without a proper end."""
        marks: list[HttpToken] = []
        if self._events is not None:
            for event in self._events.rest():
                self._event(ts_ns, event, marks)
        elif self._whole is not None:
            whole = self._whole
            self._note({key: whole.get(key) for key in REPLY_KEYS if whole.has(key)})
            self._whole = None
        return marks

    @property
    def held(self) -> int:
        """Bytes kept of what is not whole yet."""
        reading = self._events or self._whole
        return reading.held if reading is not None else 0

    def shed(self) -> None:
        """Give them up: what they belong to is not told."""
        reading = self._events or self._whole
        if reading is not None:
            reading.shed()

    def says(self) -> Says | None:
        """The server's own figures, None when it gave none."""
        return says(self._figures)

    def _event(self, ts_ns: int, event: bytes, marks: list[HttpToken]) -> None:
        reply = parse(event)
        if reply is None:
            self.over = self.over or event.strip() == b"[DONE]"
            return
        self.over = self.over or says_end(reply)
        what, answer = token(reply)
        if what is not None:
            self._token(ts_ns, what, answer, marks)
        if what is None or self.model is None or not _TELLING.isdisjoint(reply):
            self._note(reply)

    def _token(self, ts_ns: int, what: TokenWhat, answer: bool, marks: list[HttpToken]) -> None:
        self.tokens = count = (self.tokens or 0) + 1
        if count <= 2:
            marks.append(
                HttpToken(ts_ns=ts_ns, xid=self._xid, nth=1 if count == 1 else 2, what=what)
            )
        if answer and self._reasoned and not self._answered:
            marks.append(HttpToken(ts_ns=ts_ns, xid=self._xid, nth=0, what="text"))
        self._answered = self._answered or answer
        self._reasoned = self._reasoned or what == "reasoning"

    def _note(self, reply: dict[str, Any]) -> None:
        for part in (reply, reply.get("response"), reply.get("message")):
            if isinstance(part, dict):
                gather(part, self._figures)
                model = part.get("model")
                if self.model is None and isinstance(model, str) and model:
                    self.model = model[:_MAX_MODEL]
        if reply.get("error") or reply.get("type") in ("error", "response.failed"):
            self.error = True
