"""Recordings: a list of records as a file, and back.

NDJSON, maybe gzip-compressed: a header line, one record a line, and an end line with their count.
A file without its end line is truncated; what is there is still read.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from tracer import __version__
from tracer.derived import Derived
from tracer.errors import RecordError
from tracer.pipeline import Derive, Pipeline
from tracer.records import AnyRecord

SCHEMA = 1
MAX_LINE = 1 << 20

_GZIP_MAGIC = b"\x1f\x8b"
_HUGE = re.compile(rb"[:,\[]-?\d{20}")
_HINT = "record it again with: ttft record -o FILE"

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)


class _Header(msgspec.Struct, frozen=True):
    ttft_recording: int
    version: str | None = None


class _End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    end: int


_header_decoder = msgspec.json.Decoder(_Header)
_end_decoder = msgspec.json.Decoder(_End)
# A corrupt line may be bad JSON, bad UTF-8, or nested too deep.
_CORRUPT = (msgspec.MsgspecError, ValueError, RecursionError)


def header() -> bytes:
    """The first line of a recording made by this version."""
    return _encoder.encode(_Header(SCHEMA, __version__)) + b"\n"


def line(record: AnyRecord) -> bytes:
    """One record as a line."""
    return _encoder.encode(record) + b"\n"


def end_line(count: int) -> bytes:
    """The last line, after `count` records."""
    return _encoder.encode(_End(count)) + b"\n"


class Writer:
    """Writes a recording to a binary stream; `close` ends the recording, not the stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.count = 0
        stream.write(header())

    def write(self, record: AnyRecord) -> None:
        self._stream.write(line(record))
        self.count += 1

    def close(self) -> None:
        self._stream.write(end_line(self.count))


class Recording:
    """Iterates over the records of a file. `truncated` is known after the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False

    def __iter__(self) -> Iterator[AnyRecord]:
        self.truncated = False
        try:
            with self.path.open("rb") as raw:
                packed = raw.read(2) == _GZIP_MAGIC
                raw.seek(0)
                if packed:
                    with gzip.open(raw, "rb") as stream:
                        yield from self._records(stream)
                else:
                    yield from self._records(raw)
        except (OSError, zlib.error) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise RecordError(f"{self.path}: {reason or error}", _HINT) from error

    def _records(self, stream: BinaryIO | gzip.GzipFile) -> Iterator[AnyRecord]:
        lines = self._lines(stream)
        self._check_header(next(lines, b""))
        for number, text in enumerate(lines, 2):
            if text.startswith(b'{"end":'):
                self._check_end(text, number, number - 2)
                if next(lines, None) is not None:
                    raise self._error(number + 1, "something follows the end")
                return
            if not text.endswith(b"\n"):
                break  # cut in the middle of a line
            if _HUGE.search(text):
                raise self._error(number, "not a record: a number beyond 64 bits")
            try:
                record = _decoder.decode(text)
            except _CORRUPT as error:
                raise self._error(number, f"not a record: {error}") from error
            yield record
        self.truncated = True

    def _lines(self, stream: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
        number = 0
        while True:
            number += 1
            try:
                text = stream.readline(MAX_LINE + 1)
            except EOFError:  # a gzip file cut short
                return
            if not text:
                return
            if len(text) > MAX_LINE:
                raise self._error(number, f"longer than {MAX_LINE} bytes")
            yield text

    def _check_header(self, text: bytes) -> None:
        try:
            found = _header_decoder.decode(text)
        except _CORRUPT as error:
            raise RecordError(f"{self.path}, line 1: not a ttft recording", _HINT) from error
        if found.ttft_recording != SCHEMA:
            made_by = f", made by ttft {found.version}" if found.version else ""
            raise RecordError(
                f"{self.path}, line 1: recording format {found.ttft_recording}{made_by};"
                f" this version reads format {SCHEMA}",
                "replay it with the version of ttft that recorded it",
            )

    def _check_end(self, text: bytes, number: int, count: int) -> None:
        try:
            end = _end_decoder.decode(text).end
        except _CORRUPT as error:
            raise self._error(number, f"not an end line: {error}") from error
        if end != count:
            raise self._error(number, f"the end says {end} records, there are {count}")

    def _error(self, number: int, reason: str) -> RecordError:
        return RecordError(f"{self.path}, line {number}: {reason}", _HINT)


def replay(source: Recording | Path | str, derive: Derive | None = None) -> list[Derived]:
    """The last word on each request of a recording, by id; what is open at its end is `open`."""
    recording = source if isinstance(source, Recording) else Recording(Path(source))
    pipeline = Pipeline(derive)
    latest: dict[int, Derived] = {}
    for record in recording:
        for derived in pipeline.feed(record):
            latest[derived.evidence.id] = derived
    for derived in pipeline.finish():
        latest[derived.evidence.id] = derived
    return [latest[id_] for id_ in sorted(latest)]
