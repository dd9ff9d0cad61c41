"""When running code is sampled: while a request waits and weights do not just come in. Pure.

Requests of a kind that is known to be quick are sampled only once something cold happened since
they came, or they last longer than is typical.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Any

from tracer.http.endpoints import is_inference
from tracer.records import (
    AnyRecord,
    Exec,
    File,
    Fork,
    HttpBody,
    HttpEnd,
    HttpRequest,
    HttpToken,
    Insert,
    Span,
)

#: Weights that came in so lately are still coming in: the next records are 0.2 s away.
READING_NS = 300_000_000
#: Longer than this no request is sampled.
AT_MOST_NS = 600_000_000_000
SLOW_NS = 250_000_000
FACTOR = 3.0
_READS = ("read", "read_direct", "mmap")
_TYPICAL_OF = 3
_TOOK_KEPT = 9
_ASKED_MAX = 2048
_KINDS_MAX = 1024
_FILES_MAX = 4096

Kind = tuple[int, int, str | None, bool | None]


@dataclass(slots=True, eq=False)
class _Asked:
    """A request that was not answered yet. `whole`: its body came, which tells its kind.

    `cold`: something cold happened meanwhile.
    """

    netns: int
    port: int
    endpoint: str | None
    arrival_ns: int
    whole: bool = False
    stream: bool | None = None
    cold: bool = False

    @property
    def kind(self) -> Kind:
        return (self.netns, self.port, self.endpoint, self.stream)


class When:
    """`feed()` every record; `wanted()` says whether to sample now."""

    def __init__(self, slow_ns: int = SLOW_NS, factor: float = FACTOR) -> None:
        """A request of a known kind lasts long above `slow_ns` and `factor` x what is typical."""
        self._slow_ns = slow_ns
        self._factor = factor
        self._asked: dict[int, _Asked] = {}
        self._took: dict[Kind, deque[int]] = {}
        self._weights: dict[tuple[int, int], None] = {}
        self._read_ns = -READING_NS

    def feed(self, record: AnyRecord) -> None:
        """Take in one record."""
        match record:
            case HttpRequest() if is_inference(record.endpoint):
                conn = record.conn
                self._asked[record.xid] = _Asked(
                    conn.netns, conn.server_port, record.endpoint, record.ts_ns
                )
                _bound(self._asked, _ASKED_MAX)
            case HttpBody() if record.xid in self._asked:
                asked = self._asked[record.xid]
                asked.stream, asked.whole = record.stream, True
            case HttpToken() if record.nth == 1:
                self._answered(record.xid, record.ts_ns, good=True)
            case HttpEnd():
                good = record.why == "complete" and not record.error
                self._answered(record.xid, record.ts_ns, good=good)
            case Fork() | Exec():
                self._cold(record.ts_ns)
            case File() if record.fmt is not None:
                self._weights[record.dev, record.ino] = None
                _bound(self._weights, _FILES_MAX)
            case Insert() | Span() if (record.dev, record.ino) in self._weights:
                self._used(record)
            case _:
                pass

    def _answered(self, xid: int, ts_ns: int, *, good: bool) -> None:
        asked = self._asked.pop(xid, None)
        if asked is None or not good or asked.cold:
            return
        took = self._took.setdefault(asked.kind, deque(maxlen=_TOOK_KEPT))
        took.append(ts_ns - asked.arrival_ns)
        _bound(self._took, _KINDS_MAX)

    def _used(self, record: Insert | Span) -> None:
        if isinstance(record, Insert) or record.op in _READS:
            self._read_ns = max(self._read_ns, record.end_ns)
            self._cold(record.end_ns)

    def _cold(self, ts_ns: int) -> None:
        for asked in self._asked.values():
            asked.cold = asked.cold or asked.arrival_ns <= ts_ns

    def wanted(self, now_ns: int) -> bool:
        """Whether to sample now."""
        if not self._asked or now_ns - self._read_ns < READING_NS:
            return False
        return any(self._slow(asked, now_ns) for asked in self._asked.values())

    def _slow(self, asked: _Asked, now_ns: int) -> bool:
        waited_ns = now_ns - asked.arrival_ns
        if waited_ns > AT_MOST_NS:
            return False
        took = self._took.get(asked.kind, ())
        known = len(took) >= _TYPICAL_OF
        if asked.cold or (asked.whole and not known):
            return True
        return waited_ns > max(self._slow_ns, self._factor * median(took) if known else 0)


def _bound(kept: dict[Any, Any], most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]
