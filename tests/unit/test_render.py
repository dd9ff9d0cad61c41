"""Text for people: whole outputs, and 80 columns whatever comes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.answer_cases import ARRIVAL, MS, spike, warm
from tests.unit.fake_daemon import FACTS, MODELS, STATUS
from tests.unit.trace_cases import arbitrary
from tracer import answers, answers_state, render, render_show, render_spikes, render_state
from tracer import render_units as units
from tracer.derived import Derived

GOLDEN = Path(__file__).parent / "golden"


def listed(item: Derived) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(answers.dumps(answers.answer(item)))
    return found


def whole(item: Derived) -> dict[str, Any]:
    both = {**answers.answer(item), **answers.detail(item)}
    found: dict[str, Any] = orjson.loads(answers.dumps(both))
    return found


def unended(item: Derived) -> Derived:
    """Still open when it was stored."""
    request = replace(item.evidence.request, end_ns=None, why=None)
    return replace(item, outcome="open", evidence=replace(item.evidence, request=request))


REQUESTS = [
    warm(16),
    spike(17, ARRIVAL + 3000 * MS),
    replace(
        warm(18, ARRIVAL + 50_000_000 * MS),
        outcome="client_gone",
        died_in="load",
        ttft_ns=None,
        complete=False,
        incomplete_because="records were lost",
    ),
    unended(replace(warm(19, ARRIVAL + 50_001_000 * MS), ttft_ns=None, model="a" * 30)),
]
BUSY = replace(
    spike(20),
    facts=replace(spike().facts, resident_before=True, switched_from=None, weights=()),
    timeline=replace(spike().timeline, waited_for=(18, 19), retry_of=(17,), triggered_by=18),
    complete=False,
    incomplete_because="the hop to the runner was not seen",
)


def outputs() -> dict[str, list[str]]:
    """Every kind of output, for requests of 2026-01-31 in UTC."""
    return {
        "requests": render.requests([listed(item) for item in REQUESTS], UTC),
        "spikes": render_spikes.spikes([listed(spike()), listed(BUSY)], UTC),
        "show": render_show.show(whole(spike()), UTC),
        "show_busy": render_show.show(whole(BUSY), UTC),
        "show_warm": render_show.show(whole(warm(16)), UTC),
        "models": render.models(
            [orjson.loads(answers.dumps(answers_state.model(item))) for item in MODELS], UTC
        ),
        "status": render_state.status(answers_state.status(STATUS), UTC),
        "doctor": render_state.doctor(answers_state.doctor(FACTS, daemon=False)),
    }


@pytest.mark.parametrize("name", sorted(outputs()))
def test_whole_output(name: str) -> None:
    text = "".join(line + "\n" for line in outputs()[name])
    assert text == (GOLDEN / f"{name}.txt").read_text()


def test_every_golden_file_is_used() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(outputs())


def test_nothing_to_list() -> None:
    assert render.requests([]) == ["No requests."]
    assert render_spikes.spikes([]) == ["No slow first tokens."]
    assert render.models([]) == ["No models seen yet."]


def test_a_status_without_servers_and_with_trouble() -> None:
    state = replace(
        STATUS,
        servers=(),
        lost={},
        history=replace(
            STATUS.history, trouble="disk full", hint="free some", pending=4, dropped=2
        ),
    )
    text = "\n".join(render_state.status(answers_state.status(state), UTC))
    assert "No server found yet." in text
    assert "Lost     no records" in text
    assert "not written: disk full; 4 requests wait in memory\n      -> free some" in text
    assert "2 requests were dropped" in text


@pytest.mark.parametrize(
    ("cgroups", "because", "line"),
    [
        (("/a.service", "/b.service"), None, "sockets: of cgroups /a.service, /b.service"),
        ((), None, "sockets: of cgroups none yet, there is no server"),
        (("/",), "a server is there", "sockets: of cgroups all of them, as a server is there"),
    ],
)
def test_where_segments_are_seen(cgroups: tuple[str, ...], because: str | None, line: str) -> None:
    probe = answers_state.Probe(
        group="sockets", attached=True, cgroups=cgroups, root_because=because
    )
    state = replace(STATUS, probes=(probe,))
    assert f"         {line}" in render_state.status(answers_state.status(state), UTC)


def test_how_long_a_group_is_on_or_off() -> None:
    probe = answers_state.Probe(group="files", attached=True, why="arrival", since_s=2.57)
    off = replace(probe, attached=False, why="quiet")
    lines = render_state.status(answers_state.status(replace(STATUS, probes=(probe, off))), UTC)
    assert "         files: on for 2.57 s, a request came after a pause" in lines
    assert any(line.startswith("         files: off for 2.57 s, all is warm") for line in lines)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("span", "raise [probes] ring_kb in the configuration"),
        ("packet", "raise [probes] packet_ring_kb in the configuration"),
        ("span.table", "a table in the kernel was full: too many files or threads at once"),
        ("span.lookup", "the kernel could not say which file these belonged to"),
        ("span.half", "the kernel left out a program at the begin or end of these calls"),
        ("ttft_take", "the kernel left these programs out: they were running on that processor"),
    ],
)
def test_each_kind_of_loss_has_its_own_advice(kind: str, advice: str) -> None:
    state = replace(STATUS, lost={kind: 7})
    lines = render_state.status(answers_state.status(state), UTC)
    start = lines.index(f"Lost     7 {kind}")
    assert lines[start + 1] == f"      -> {advice}"


def test_times_are_local() -> None:
    zone = timezone(timedelta(hours=9))
    assert render.moment("2026-01-31T23:00:00.123Z", zone) == ("2026-02-01", "08:00:00.123")


def test_disagreement_with_the_server_is_marked() -> None:
    item = spike()
    assert item.evidence.request.says is not None
    says = replace(item.evidence.request.says, prompt_ms=150.0)
    request = replace(item.evidence.request, says=says)
    other = replace(item, evidence=replace(item.evidence, request=request))
    line = "  prompt time   150 ms for the prompt, ours 202 ms (they disagree)"
    assert line in render_show.show(whole(other), UTC)


def test_what_waits() -> None:
    waits = [listed(spike(18, ARRIVAL + 3000 * MS)), listed(replace(spike(17), model=None))]
    now = datetime.fromisoformat("2026-01-31T12:00:05.123Z")
    told = "waiting: #17 - 5.00 s, mostly load; #18 beta 2.00 s, mostly load"
    assert render.waiting(waits, now) == told
    assert render.waiting([], now) == ""


def test_why_nothing_is_typical_yet() -> None:
    item = spike()
    found = whole(replace(item, spike=replace(item.spike, typical_ns=None)))
    line = "  typical       not known yet: 0 warm requests of its kind came before"
    assert line in render_show.show(found, UTC)
    assert not any("not known yet" in line for line in render_show.show(whole(item), UTC))


def test_stages_are_shown_in_the_order_they_began() -> None:
    item = spike()
    stages = dict(reversed(item.phases.stages_ns.items()))
    mixed = replace(item, phases=replace(item.phases, stages_ns=stages))
    assert render_show.show(whole(mixed), UTC) == render_show.show(whole(item), UTC)


def test_colours_take_no_columns() -> None:
    from click import unstyle

    for answer in (listed(item) for item in REQUESTS):
        coloured = render.requests([answer], UTC, render.colour)
        assert list(map(unstyle, coloured)) == render.requests([answer], UTC)
    coloured = render_show.show(whole(spike()), UTC, render.colour)
    assert coloured != render_show.show(whole(spike()), UTC)
    assert list(map(unstyle, coloured)) == render_show.show(whole(spike()), UTC)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (0.0, "0.00 ms"),
        (9.994, "9.99 ms"),
        (9.996, "10.0 ms"),
        (99.96, "100 ms"),
        (999.6, "1.00 s"),
        (1912.4, "1.91 s"),
        (59_000, "59.0 s"),
        (599_400, "599 s"),
        (600_000, "10 min"),
        (86_400_000, "24 h"),
        (864_000_000, "10 d"),
        (-5.0, "-5.00 ms"),
    ],
)
def test_durations(ms: float | None, text: str) -> None:
    assert units.duration(ms) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (253_113_024, "253 MB"),
        (999_600_000, "1.00 GB"),
        (10**15, "1000 TB"),
    ],
)
def test_sizes(count: float | None, text: str) -> None:
    assert units.size(count) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("10m", 600), ("1.5h", 5400), ("7d", 604800)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds * 1e9


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert 0 < units.parse_duration(text) <= units.MAX_DURATION_NS
    except ValueError as error:
        assert str(error)


@given(st.text(max_size=60), st.integers(0, 30))
def test_text_fits_and_is_harmless(text: str, columns: int) -> None:
    fitted = units.fit(text, columns)
    assert units.width(fitted) <= columns
    assert units.width(units.left(text, columns)) == columns
    assert units.width(units.right(text, columns)) == columns
    assert all(char.isprintable() for char in units.clean(text))


@given(st.text(max_size=200), st.integers(8, 40))
def test_wrapping_loses_nothing(text: str, columns: int) -> None:
    lines = units.wrap(text, columns, "> ", "  ")
    assert all(units.width(line) <= columns for line in lines)
    joined = "".join(line[2:] for line in lines)
    assert joined.replace(" ", "") == units.clean(text).replace(" ", "")


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert units.clean("\x1b[31m\u202e\u0301\n\u4e2d") == "\\x1b[31m\\u202e\\u0301\\x0a\u4e2d"


odd = st.text(max_size=90)
figures = st.none() | st.floats(-1e3, 1e12) | st.integers(0, 10**12)


@st.composite
def odd_answers(draw: st.DrawFn) -> dict[str, Any]:
    """Any request, with words and figures nobody would expect."""
    answer = whole(draw(arbitrary))
    spike_part = answer["spike"]
    answer["server"] = draw(odd)
    answer["incomplete_because"] = draw(st.none() | odd)
    answer["complete"] = draw(st.booleans())
    answer["weights"] = draw(st.lists(odd, max_size=2))
    answer["waited_for"] = draw(st.lists(st.integers(1, 10**9), max_size=40))
    answer["server_says"]["prompt_ms"] = draw(figures)
    answer["server_says"]["prompt_n"] = draw(st.none() | st.integers(0, 10**9))
    spike_part["is_spike"] = draw(st.booleans())
    for key in ("cause", "because", "advice", "first_expanded", "dominant"):
        spike_part[key] = draw(st.none() | odd)
    spike_part["why"] = draw(st.none() | st.lists(odd, max_size=3))
    spike_part["typical_ms"] = draw(figures)
    spike_part["switch_is_cause"] = draw(st.none() | st.booleans())
    answer["evidence"]["switched_from"] = draw(st.none() | odd)
    answer["evidence"]["weights_bytes"] = draw(figures)
    answer["evidence"]["major_faults"] = draw(st.none() | st.integers(0, 10**18))
    return answer


@settings(max_examples=60, deadline=None)
@given(st.lists(odd_answers(), max_size=3))
def test_every_line_fits_in_80_columns(found: list[dict[str, Any]]) -> None:
    lines = render.requests(found, UTC) + render_spikes.spikes(found, UTC)
    for answer in found:
        lines += render_show.show(answer, UTC, block="\u2588")
    assert render_show.widest(lines) <= 80
    assert all(line.isprintable() for line in lines)


@settings(max_examples=60, deadline=None)
@given(odd, odd, st.integers(0, 10**12), st.lists(st.integers(1, 2**22), max_size=40))
def test_every_line_of_the_state_fits_too(
    name: str, value: str, count: int, pids: list[int]
) -> None:
    state = replace(
        STATUS,
        version=name,
        kernel=value,
        pid=count,
        servers=tuple(
            replace(server, name=name, model=value, requests=count, pid=count)
            for server in STATUS.servers
        ),
        probes=tuple(replace(item, group=name, off_because=value) for item in STATUS.probes),
        lost={name: count, value: count},
        history=replace(STATUS.history, path=value, trouble=name, hint=value, size_bytes=count),
        cost=replace(STATUS.cost, pss_bytes=count, bpf_ns=count),
    )
    facts = [fact._replace(name=name, value=value, advice=value) for fact in FACTS]
    models = [replace(MODELS[0], model=name, server=value, size_bytes=count, pids=tuple(pids))]
    lines = [
        *render_state.status(answers_state.status(state), UTC),
        *render_state.doctor(answers_state.doctor(facts, daemon=True)),
        *render.models([answers_state.model(item) for item in models], UTC),
    ]
    assert render_show.widest(lines) <= 80
    assert all(line.isprintable() for line in lines)
