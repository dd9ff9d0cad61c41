"""A few top-level keys of a JSON object that streams by, in memory that does not grow.

No text is kept but the values of the wanted keys, each up to a limit.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

import orjson

MAX_VALUE = 4096
_MAX_KEY = 128
_MAX_DEPTH = 1 << 20

# Skips balanced strings and all else up to the next bracket or the quote of an unfinished
# string. Possessive within, so it takes linear time; not without: Python before 3.11.4, Debian
# 12's too, then takes an unfinished string for a whole one.
_NESTED = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*', re.DOTALL)
_LITERAL = re.compile(rb"[^,}\]\s]*+")
_SPACE = b" \t\r\n"
_QUOTE, _COLON, _COMMA = 0x22, 0x3A, 0x2C
_OPEN, _CLOSE = b"{[", b"}]"


class _Expect(Enum):
    OBJECT = 0
    KEY = 1
    COLON = 2
    VALUE = 3
    LITERAL = 4


class TopLevel:
    """Feed it the object in any pieces; `get` what it found. A repeated key: the last wins."""

    __slots__ = (
        "_depth",
        "_escaped",
        "_expect",
        "_found",
        "_in_string",
        "_key",
        "_raw",
        "_wanted",
        "broken",
        "done",
    )

    def __init__(self, wanted: frozenset[str]) -> None:
        self.broken = False
        self.done = False
        self._wanted = wanted
        self._found: dict[str, bytes] = {}
        self._expect = _Expect.OBJECT
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._key = ""
        self._raw: bytearray | None = None

    def feed(self, data: bytes) -> None:
        """Scan the next bytes; never raises, whatever they are."""
        at, size = 0, len(data)
        while at < size and not self.done:
            if self._in_string:
                at = self._string(data, at)
            elif self._depth > 1:
                at = self._nested(data, at)
            elif self._expect is _Expect.LITERAL:
                at = self._literal(data, at)
            else:
                at = self._top(data, at)

    def get(self, key: str) -> Any:
        """The value of a wanted key; a string may be cut, anything else cut or bad is None."""
        raw = self._found.get(key)
        return None if raw is None else _decode(raw)

    def has(self, key: str) -> bool:
        return key in self._found

    @property
    def held(self) -> int:
        """Bytes of what was found."""
        return sum(map(len, self._found.values())) + len(self._raw or b"")

    def shed(self) -> None:
        """Drop it, and find no more."""
        self._found.clear()
        self._stop(broken=True)

    def _stop(self, broken: bool) -> None:
        self.done, self.broken = True, broken
        self._raw = None

    def _keep(self, data: bytes, start: int, end: int) -> None:
        if self._raw is not None:
            limit = _MAX_KEY if self._expect is _Expect.KEY else MAX_VALUE
            room = limit - len(self._raw)
            if room > 0:
                self._raw += data[start : min(end, start + room)]

    def _string(self, data: bytes, at: int) -> int:
        start = at
        if self._escaped:
            self._escaped = False
            at += 1
        while True:
            end = data.find(b'"', at)
            stop = len(data) if end == -1 else end
            slashes = stop
            while slashes > at and data[slashes - 1] == 0x5C:
                slashes -= 1
            odd = (stop - slashes) % 2 == 1
            if end == -1:
                self._escaped = odd
                self._keep(data, start, stop)
                return stop
            at = end + 1
            if not odd:
                self._keep(data, start, at)
                self._end_string()
                return at

    def _end_string(self) -> None:
        self._in_string = False
        if self._depth > 1:
            return
        if self._expect is _Expect.KEY:
            key = _decode(bytes(self._raw or b""))
            self._key = key if isinstance(key, str) else ""
            self._raw = None
            self._expect = _Expect.COLON
        else:
            self._end_value()

    def _end_value(self) -> None:
        if self._raw is not None:
            self._found[self._key] = bytes(self._raw)
            self._raw = None
        self._expect = _Expect.KEY

    def _nested(self, data: bytes, at: int) -> int:
        match = _NESTED.match(data, at)
        end = match.end() if match else at
        if end < len(data):
            byte = data[end]
            end += 1
            if byte == _QUOTE:
                self._in_string = True
            elif byte in _OPEN:
                self._depth += 1
            else:
                self._depth -= 1
        self._keep(data, at, end)
        if self._depth == 1:
            self._end_value()
        elif self._depth > _MAX_DEPTH:
            self._stop(broken=True)
        return end

    def _literal(self, data: bytes, at: int) -> int:
        match = _LITERAL.match(data, at)
        end = match.end() if match else at
        self._keep(data, at, end)
        if end < len(data):
            self._end_value()
        return end

    def _top(self, data: bytes, at: int) -> int:
        byte = data[at]
        if byte in _SPACE:
            return at + 1
        if self._expect is _Expect.VALUE:
            return self._value(data, at)
        if self._expect is _Expect.KEY and byte == _QUOTE:
            self._raw = bytearray(b'"')
            self._in_string = True
        elif self._expect is _Expect.COLON and byte == _COLON:
            self._expect = _Expect.VALUE
        elif self._expect is _Expect.OBJECT and byte == _OPEN[0]:
            self._depth = 1
            self._expect = _Expect.KEY
        elif self._expect is _Expect.KEY and byte == _CLOSE[0]:
            self._stop(broken=False)
        elif self._expect is not _Expect.KEY or byte != _COMMA:
            self._stop(broken=True)
        return at + 1

    def _value(self, data: bytes, at: int) -> int:
        byte = data[at]
        self._raw = bytearray() if self._key in self._wanted else None
        if byte == _QUOTE:
            self._in_string = True
        elif byte in _OPEN:
            self._depth = 2
        else:
            self._expect = _Expect.LITERAL
            return at
        self._keep(data, at, at + 1)
        return at + 1


def _decode(raw: bytes) -> Any:
    """The JSON value of `raw`; a string that was cut ends before the cut."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        if raw[:1] != b'"' or len(raw) < _MAX_KEY:
            return None
    for shorter in range(14):  # the longest escape, a surrogate pair, is 12 bytes
        try:
            return orjson.loads(raw[: len(raw) - shorter] + b'"')
        except orjson.JSONDecodeError:
            continue
    return None
