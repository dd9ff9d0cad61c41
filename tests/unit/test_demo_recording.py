"""The checked-in recording of the demo still gives the answers that its checks ask for."""

from __future__ import annotations

import msgspec

from demo.__main__ import RECORDING, SENT
from demo.checks import Case, checks
from demo.scenarios import NAMES, WARMUP, Sent
from tests.workloads.ttftd import matched
from tracer.answers import answer
from tracer.recording import replay


def test_all_checks_hold() -> None:
    sent = msgspec.json.decode(SENT.read_bytes(), type=list[Sent])
    derived = replay(RECORDING)
    found = matched([answer(item) for item in derived], sent)
    cases = [Case(one, item) for one, item in zip(sent, found, strict=True) if item is not None]
    assert [case.sent.scenario for case in cases if case.sent.scenario != WARMUP] == list(NAMES)
    size = next(file.size for file in derived[0].evidence.files if file.fmt)
    assert [check for check in checks(cases, size) if check.wrong] == []
