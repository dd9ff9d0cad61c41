"""What a killed daemon left open is not open for ever."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import orjson
import pytest
from msgspec.structs import replace

from tests.unit.answer_cases import spike, warm
from tracer.derive import derive
from tracer.derived import Derived
from tracer.render import verdict
from tracer.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history.db"


def cut(item: Derived, *, token: bool) -> Derived:
    """As it was stored before its end."""
    request = replace(item.evidence.request, end_ns=None, why=None)
    if not token:
        request = replace(request, first_token_ns=None, second_token_ns=None)
    return derive(replace(item.evidence, request=request))


def left_by_a_killed_daemon(path: Path, *items: Derived) -> None:
    child = os.fork()
    if child == 0:
        Store(path).put(items)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_the_next_run_says_that_their_end_was_not_seen(path: Path) -> None:
    whole, token, none = spike(1), cut(spike(2), token=True), cut(warm(3), token=False)
    assert (token.outcome, none.outcome) == ("open", "open")
    left_by_a_killed_daemon(path, whole, token, none)
    store = Store(path)
    first, second, third = (orjson.loads(one) for one in store.requests())
    assert (first["outcome"], first["complete"]) == ("ok", whole.complete)
    assert (second["outcome"], second["complete"]) == ("ok", False)
    assert "end.unseen" in second["incomplete_because"]
    assert second["ttft_ms"] == first["ttft_ms"]
    assert (third["outcome"], third["ttft_ms"], verdict(third)) == ("open", None, "end unseen")
    store.close()
    again = Store(path)
    assert [orjson.loads(one) for one in again.requests()] == [first, second, third]
    again.close()


def test_what_is_open_in_this_run_stays_so(path: Path) -> None:
    store = Store(path)
    store.put([cut(warm(1), token=False)])
    (answer,) = (orjson.loads(one) for one in store.requests())
    assert (answer["outcome"], verdict(answer)) == ("open", "open")
    store.close()


def test_evidence_that_cannot_be_read_stops_no_start(path: Path) -> None:
    left_by_a_killed_daemon(path, cut(spike(1), token=False), cut(spike(2), token=False))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE details SET evidence = x'00' WHERE id = 1")
    connection.close()
    store = Store(path)
    answers = [orjson.loads(one) for one in store.requests()]
    assert [verdict(one) for one in answers] == ["open", "end unseen"]
    store.close()
