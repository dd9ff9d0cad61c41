"""Whatever text is anywhere in an answer: no renderer passes on what a terminal would obey.

Codes that this version does not know are text too: a newer daemon may send them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.answer_cases import ARRIVAL, MS, spike, warm
from tests.unit.fake_daemon import FACTS, MODELS, STATUS
from tests.unit.test_render import BUSY, listed, whole
from tracer import answers, answers_state, render, render_show, render_spikes, render_state
from tracer.answers_state import Clocks, Export

Json = dict[str, Any]
#: Read by all as moments; a daemon writes them itself.
MOMENTS = ("wall_time", "began", "last_use", "since", "until")
STACKS = [{
    "stage": "load.disk", "processors": 1.5, "samples": 70, "unnamed": 3,
    "modules": [{"module": "/usr/lib/libx.so", "share": 0.9, "samples": 60}],
    "functions": [{"function": "memcpy", "module": "/usr/lib/libx.so", "share": 0.9,
                   "samples": 60}],
}]  # fmt: skip
NOW = datetime(2026, 1, 31, 12, 5, tzinfo=UTC)


def as_json(value: object) -> Any:
    return orjson.loads(answers.dumps(value))


def status() -> Json:
    from msgspec.structs import replace

    state = replace(
        STATUS,
        history=replace(STATUS.history, trouble="full", hint="free", set_aside=("a", "b")),
        exports=(Export(name="otlp", to="http://x", sent=1, dropped=2, trouble="down"),),
        clock=Clocks(steps=1, last_step_s=2.0, suspensions=1, suspended_s=3.0),
    )
    found: Json = as_json(answers_state.status(state))
    return found


def shown() -> Json:
    found = whole(spike())
    found["evidence_detail"]["stacks"] = STACKS
    return found


RENDERERS: dict[str, tuple[Callable[[], Any], Callable[[Any], list[str]]]] = {
    "requests": (
        lambda: [listed(warm(16)), listed(spike(17, ARRIVAL + 3000 * MS)), listed(BUSY)],
        lambda found: render.requests(found, UTC),
    ),
    "spikes": (
        lambda: [listed(spike()), listed(BUSY)],
        lambda found: render_spikes.spikes(found, UTC),
    ),
    "waiting": (lambda: [listed(warm(16))], lambda found: [render.waiting(found, NOW)]),
    "show": (shown, lambda found: render_show.show(found, UTC)),
    "show busy": (lambda: whole(BUSY), lambda found: render_show.show(found, UTC)),
    "models": (
        lambda: [as_json(answers_state.model(one)) for one in MODELS],
        lambda found: render.models(found, UTC),
    ),
    "status": (status, lambda found: render_state.status(found, UTC)),
    "doctor": (
        lambda: as_json(answers_state.doctor(FACTS, daemon=True)),
        render_state.doctor,
    ),
}


def replaced(value: Any, text: str, key: str = "") -> Any:
    """The same with `text` for every text in it that is no moment."""
    if isinstance(value, dict):
        return {name: replaced(item, text, name) for name, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, text, key) for item in value]
    return text if isinstance(value, str) and key not in MOMENTS else value


odd = st.text(
    st.one_of(
        st.characters(), st.sampled_from("\x1b\x07\x9b\x9d\r\n\t\u2028\u202e\u0301\u200b\x7f\0 ")
    ),
    max_size=60,
)


@pytest.mark.parametrize("name", RENDERERS)
@settings(max_examples=80, deadline=None)
@given(text=odd)
def test_nothing_is_passed_on(name: str, text: str) -> None:
    make, draw = RENDERERS[name]
    lines = draw(replaced(make(), text))
    assert all(line.isprintable() for line in lines), lines
    if name != "waiting":  # cut to the terminal by who prints it
        assert render_show.widest(lines) <= 80


@pytest.mark.parametrize("name", RENDERERS)
def test_each_is_given_something_to_say(name: str) -> None:
    """The test of the test: what is replaced is shown."""
    make, draw = RENDERERS[name]
    assert any("ODD" in line for line in draw(replaced(make(), "ODD")))
