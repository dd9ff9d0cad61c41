"""Records and evidence as earlier versions wrote them still tell the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.unit.test_clocks import held, replayed, story
from tests.unit.test_contention import CROWDED, slow
from tracer.derive import derive
from tracer.evidence import Evidence
from tracer.recording import Writer, replay
from tracer.records import AnyRecord, Holder, Ran, Telemetry, Warm

OLDER: list[tuple[bytes, AnyRecord]] = [
    (
        b'{"t":"ran","ts_ns":1,"tgid":2,"ran_ns":3,"waited_ns":0,"host_ns":5,"throttled_ns":6}',
        Ran(ts_ns=1, tgid=2, ran_ns=3, waited_ns=0, host_ns=5, throttled_ns=6),
    ),
    (
        b'{"t":"warm","ts_ns":1,"server":"s","model":"m","kind":"chat/stream","ttft_ns":2,'
        b'"prompt_tokens":null,"phases_ns":{"prefill":2}}',
        Warm(ts_ns=1, server="s", model="m", kind="chat/stream", ttft_ns=2, prompt_tokens=None,
             phases_ns={"prefill": 2}),
    ),
    (
        b'{"t":"telemetry","ts_ns":1,"device":"d","source":"nvml","holders":[{"tgid":7}]}',
        Telemetry(ts_ns=1, device="d", source="nvml", holders=(Holder(tgid=7),)),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "record"), OLDER)
def test_records(line: bytes, record: AnyRecord) -> None:
    assert msgspec.json.decode(line, type=AnyRecord) == record


def test_what_an_earlier_version_had_no_word_for_is_left_out() -> None:
    """So that a recording of a host without such things is one of any version."""
    for line, record in OLDER:
        written = msgspec.json.decode(msgspec.json.encode(record))
        assert written == msgspec.json.decode(line)


def test_unknown_counts_come_back_from_a_recording_and_from_the_history(tmp_path: Path) -> None:
    mute = [msgspec.structs.replace(r, waited_ns=None) for r in CROWDED]
    with (tmp_path / "r").open("wb") as file:
        writer = Writer(file)
        for record in [*story(200, held(300, 900), 900), *mute]:
            writer.write(record)
        writer.close()
    assert replay(tmp_path / "r")[-1].spike.why == ("power.clock",)
    evidence = slow(*mute)
    again = msgspec.json.decode(msgspec.json.encode(evidence), type=Evidence)
    assert again == evidence
    assert derive(again) == derive(evidence)


def test_clocks_of_warm_prompts_come_back_from_a_recording(tmp_path: Path) -> None:
    d = replayed(story(200, held(300, 900), 900), tmp_path / "r")
    again = msgspec.json.decode(msgspec.json.encode(d.evidence), type=Evidence)
    assert derive(again) == d
