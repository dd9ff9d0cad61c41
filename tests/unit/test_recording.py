"""Recordings: written, read, replayed, and refused with a reason when broken."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.build import Story
from tests.unit.test_requests import cold_switch
from tracer.errors import RecordError
from tracer.pipeline import Pipeline
from tracer.recording import MAX_LINE, Recording, Writer, end_line, header, line, replay
from tracer.records import AnyRecord, Tick


def recorded(records: list[AnyRecord]) -> bytes:
    stream = io.BytesIO()
    writer = Writer(stream)
    for record in records:
        writer.write(record)
    writer.close()
    return stream.getvalue()


RECORDS = cold_switch().records()
DATA = recorded(RECORDS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slow.ttft"


@pytest.mark.parametrize("pack", [bytes, lambda data: gzip.compress(data, mtime=0)])
def test_round_trip(path: Path, pack: object) -> None:
    path.write_bytes(pack(DATA))  # type: ignore[operator]
    recording = Recording(path)
    assert list(recording) == RECORDS
    assert not recording.truncated
    assert list(recording) == RECORDS, "a recording can be read again"


def test_shape(path: Path) -> None:
    lines = DATA.splitlines(keepends=True)
    assert (lines[0], lines[-1]) == (header(), end_line(len(RECORDS)))
    assert lines[1:-1] == [line(r) for r in RECORDS]
    assert msgspec.json.decode(lines[0])["ttft_recording"] == 1
    assert lines[-1] == b'{"end":%d}\n' % len(RECORDS)


def test_replay_gives_what_the_pipeline_gave(path: Path) -> None:
    path.write_bytes(DATA)
    pipeline = Pipeline()
    live = {d.evidence.id: d for r in RECORDS for d in pipeline.feed(r)}
    first, second = (msgspec.json.encode(replay(path)) for _ in range(2))
    assert first == second == msgspec.json.encode([live[i] for i in sorted(live)])
    assert [d.evidence.id for d in replay(path)] == [1, 2]


def test_recording_begun_in_the_middle_replays_to_the_same(path: Path) -> None:
    cut = RECORDS.index(Tick(ts_ns=500_000_000)) + 1
    pipeline = Pipeline()
    before = [d for r in RECORDS[:cut] for d in pipeline.feed(r)]
    path.write_bytes(recorded([*pipeline.snapshot(), *RECORDS[cut:]]))
    after = [d for r in RECORDS[cut:] for d in pipeline.feed(r)]
    assert [d.evidence.id for d in before] == [1]
    assert msgspec.json.encode(replay(path)) == msgspec.json.encode(after[-1:])


def test_what_is_open_at_the_end_is_open(path: Path) -> None:
    story = Story(role="single", model="alpha")
    story.request(100, 50001, model="alpha", token=190, end=200)
    story.request(300, 50002, model="alpha")
    path.write_bytes(recorded(story.records()))
    assert [(d.evidence.id, d.outcome) for d in replay(path)] == [(1, "ok"), (2, "open")]


@pytest.mark.parametrize("packed", [False, True])
def test_truncated_gives_what_is_there(path: Path, packed: bool) -> None:
    data = gzip.compress(DATA, mtime=0) if packed else DATA
    path.write_bytes(data[: len(data) * 2 // 3])
    recording = Recording(path)
    got = list(recording)
    assert recording.truncated
    assert 0 < len(got) < len(RECORDS)
    assert got == RECORDS[: len(got)]


def test_without_end_line_is_truncated_but_whole(path: Path) -> None:
    path.write_bytes(DATA[: -len(end_line(len(RECORDS)))])
    recording = Recording(path)
    assert list(recording) == RECORDS
    assert recording.truncated


TICK = line(Tick(ts_ns=1))
BROKEN = {
    "empty": (b"", "line 1: not a ttft recording"),
    "other file": (b"\x7fELF\x02\x01\x01", "line 1: not a ttft recording"),
    "other json": (b'{"a": 1}\n', "line 1: not a ttft recording"),
    "no header": (TICK, "line 1: not a ttft recording"),
    "later format": (
        b'{"ttft_recording":2,"version":"9.1"}\n',
        "line 1: recording format 2, made by ttft 9.1; this version reads format 1",
    ),
    "corrupt": (header() + TICK + b'{"t":"tick","ts_ns":\n' + TICK, "line 3: not a record"),
    "unknown kind": (header() + b'{"t":"dream","ts_ns":1}\n', "line 2: not a record"),
    "unknown field": (header() + b'{"t":"tick","ts_ns":1,"x":2}\n', "line 2: not a record"),
    "missing field": (header() + b'{"t":"fork","ts_ns":1}\n', "line 2: not a record"),
    "bad utf-8": (header() + b'{"t":"lost","ts_ns":1,"kind":"\xff","count":1}\n', "line 2:"),
    "deep": (header() + b'{"t":"warm","x":' + b"[" * 100_000 + b"\n", "line 2: not a record"),
    "huge number": (header() + b'{"t":"tick","ts_ns":' + b"9" * 400 + b"}\n", "beyond 64 bits"),
    "blank line": (header() + b"\n" + TICK, "line 2: not a record"),
    "long line": (header() + b" " * (MAX_LINE + 1), f"line 2: longer than {MAX_LINE} bytes"),
    "long first line": (b" " * (MAX_LINE + 1), f"line 1: longer than {MAX_LINE} bytes"),
    "wrong count": (header() + TICK + end_line(2), "line 3: the end says 2 records, there are 1"),
    "bad end": (header() + b'{"end":"x"}\n', "line 2: not an end line"),
    "more after the end": (header() + end_line(0) + TICK, "line 3: something follows the end"),
    "bad gzip": (b"\x1f\x8b\x08\x00nonsense nonsense", ""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_is_refused_with_line_and_reason(path: Path, name: str) -> None:
    data, reason = BROKEN[name]
    path.write_bytes(data)
    with pytest.raises(RecordError) as caught:
        list(Recording(path))
    assert str(path) in caught.value.message
    assert reason in caught.value.message
    assert caught.value.hint is not None


def test_records_before_a_corrupt_line_were_given(path: Path) -> None:
    path.write_bytes(header() + TICK + TICK + b"nonsense\n")
    got = []
    with pytest.raises(RecordError, match="line 4"):
        for record in Recording(path):
            got.append(record)
    assert got == [Tick(ts_ns=1)] * 2


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="No such file"):
        list(Recording(tmp_path / "none"))
    with pytest.raises(RecordError, match="Is a directory"):
        list(Recording(tmp_path))


def survives(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        for record in Recording(path):
            assert isinstance(record, msgspec.Struct)
    except RecordError as error:
        assert str(path) in error.message


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([b"", header(), header() + TICK, b"\x1f\x8b"]), st.binary(max_size=300))
def test_any_bytes_are_survived(
    tmp_path_factory: pytest.TempPathFactory, begin: bytes, rest: bytes
) -> None:
    survives(tmp_path_factory.getbasetemp() / "fuzz.ttft", begin + rest)


@settings(max_examples=200, deadline=None)
@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_any_mutation_is_survived_by_replay(
    tmp_path_factory: pytest.TempPathFactory, packed: bool, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(gzip.compress(DATA, mtime=0) if packed else DATA)
    for at, value in changes:
        data[at % len(data)] = value
    path = tmp_path_factory.getbasetemp() / "mutated.ttft"
    survives(path, bytes(data))
    try:
        replay(path)
    except RecordError as error:
        assert str(path) in error.message
