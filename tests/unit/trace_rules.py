"""The rules of Chrome trace JSON as Perfetto reads it, as a checker.

`check(events)` returns every violation as a line; an empty list is a clean trace. Load a
trace with `load` (numbers as Decimal), since floats cannot hold nanoseconds of a long uptime.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

Event = dict[str, Any]
Task = tuple[int, int]

METADATA = {
    "process_name": str,
    "thread_name": str,
    "process_sort_index": int,
    "thread_sort_index": int,
}
FIELDS = {"process_name": "name", "thread_name": "name"}
THREAD_BOUND = "XBEistfT"
PHASES = set(THREAD_BOUND) | set("MCben")


def load(data: bytes | str) -> list[Event]:
    """The events of a trace file, with decimals kept as written."""
    document = json.loads(data, parse_float=Decimal)
    events: list[Event] = document["traceEvents"]
    return events


def nanoseconds(value: object) -> int | None:
    """Microseconds as JSON holds them, in ns; None if malformed or finer than 1 ns."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        exact = Decimal(repr(value) if isinstance(value, float) else value) * 1000
    except ArithmeticError:
        return None
    if not exact.is_finite() or exact != exact.to_integral_value():
        return None
    return int(exact)


def check(events: Sequence[Event]) -> list[str]:
    """All violations in a list of trace events, in file order."""
    wrong = [f"{n}: {text}" for n, event in enumerate(events) for text in _form(event)]
    if wrong:
        return wrong
    ordered = sorted(
        (event for event in events if event["ph"] != "M"), key=lambda event: _ns(event["ts"])
    )
    return [
        *_nesting(ordered),
        *_begin_end(ordered),
        *_async(ordered),
        *_flows(ordered),
        *_names(events),
    ]


def _ns(value: object) -> int:
    exact = nanoseconds(value)
    assert exact is not None
    return exact


def _task(event: Event) -> Task:
    return event["pid"], event["tid"]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _form(event: Event) -> Iterable[str]:
    """What is wrong with one event by itself."""
    ph = event.get("ph")
    if ph not in PHASES:
        yield f"unknown ph {ph!r}"
        return
    if not _is_id(event.get("pid")):
        yield f"pid {event.get('pid')!r} is not of 32 bits"
    if (ph in THREAD_BOUND or event.get("name") == "thread_name") and not _is_id(event.get("tid")):
        yield f"tid {event.get('tid')!r} is not of 32 bits"
    if ph != "E" and not (isinstance(event.get("name"), str) and event["name"]):
        yield f"{ph} without a name"
    if "args" in event and not isinstance(event["args"], dict):
        yield "args is not an object"
        return
    if ph == "M":
        yield from _form_metadata(event)
    else:
        yield from _form_timed(event, ph)


def _form_metadata(event: Event) -> Iterable[str]:
    name = event["name"]
    if name not in METADATA:
        yield f"metadata {name!r} is ignored"
        return
    value = event.get("args", {}).get(FIELDS.get(name, "sort_index"))
    if not isinstance(value, METADATA[name]):
        yield f"metadata {name} is {value!r}"


def _form_timed(event: Event, ph: str) -> Iterable[str]:
    ts = nanoseconds(event.get("ts"))
    if ts is None or ts < 0:
        yield f"{ph} at {event.get('ts')!r}"
    if ph in "XT":
        dur = nanoseconds(event.get("dur"))
        if dur is None or dur < 0:
            yield f"{ph} lasts {event.get('dur')!r}"
    if ph in "bensft" and not (isinstance(event.get("id"), int | str) and event.get("cat")):
        yield f"{ph} without id and cat"
    if ph == "f" and event.get("bp") != "e":
        yield "f without bp e"
    if ph == "i" and event.get("s") not in ("g", "p", "t"):
        yield f"instant of scope {event.get('s')!r}"
    if ph == "C":
        yield from _form_counter(event)
    if ph == "T" and not {"cpu", "io_wait"} <= set(event.get("args", {})):
        yield "thread state without cpu and io_wait"


def _form_counter(event: Event) -> Iterable[str]:
    values = event.get("args")
    if not values:
        yield "C without args"
        return
    for field, value in values.items():
        number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            yield f"counter {event['name']} {field} is {value!r}"


def _nesting(ordered: Sequence[Event]) -> Iterable[str]:
    """Slices of one thread lie inside one another or apart."""
    stacks: dict[Task, list[tuple[int, str]]] = {}
    for event in ordered:
        if event["ph"] != "X":
            continue
        start = _ns(event["ts"])
        end = start + _ns(event["dur"])
        stack = stacks.setdefault(_task(event), [])
        while stack and stack[-1][0] <= start:
            stack.pop()
        if stack and end > stack[-1][0]:
            yield f"{event['name']!r} at {start} overlaps {stack[-1][1]!r} on {_task(event)}"
            continue
        stack.append((end, event["name"]))


def _begin_end(ordered: Sequence[Event]) -> Iterable[str]:
    depth: dict[Task, int] = {}
    for event in ordered:
        if event["ph"] in "BE":
            task = _task(event)
            depth[task] = depth.get(task, 0) + (1 if event["ph"] == "B" else -1)
            if depth[task] < 0:
                yield f"E without B on {task}"
                depth[task] = 0
    yield from (f"B without E on {task}" for task, open_ in depth.items() if open_)


def _async(ordered: Sequence[Event]) -> Iterable[str]:
    depth: dict[tuple[str, object], int] = {}
    for event in ordered:
        if event["ph"] in "be":
            key = (event["cat"], event["id"])
            depth[key] = depth.get(key, 0) + (1 if event["ph"] == "b" else -1)
            if depth[key] < 0:
                yield f"e without b of {key}"
                depth[key] = 0
    yield from (f"b without e of {key}" for key, open_ in depth.items() if open_)


def _flows(ordered: Sequence[Event]) -> Iterable[str]:
    """Each flow starts once, ends once, later, and both ends are on an open slice."""
    open_until: dict[Task, int] = {}
    started: set[tuple[str, object]] = set()
    ended: set[tuple[str, object]] = set()
    for event in ordered:
        ph = event["ph"]
        if ph not in "Xstf":
            continue
        ts, task = _ns(event["ts"]), _task(event)
        if ph == "X":
            open_until[task] = max(open_until.get(task, 0), ts + _ns(event["dur"]))
            continue
        key = (event["cat"], event["id"])
        if open_until.get(task, 0) <= ts:
            yield f"flow {key} {ph} at {ts} is on no slice of {task}"
        if ph == "s":
            if key in started:
                yield f"flow {key} starts twice"
            started.add(key)
        elif key not in started or key in ended:
            yield f"flow {key} {ph} at {ts} before its start or after its end"
        if ph == "f":
            ended.add(key)
    yield from (f"flow {key} has no end" for key in started - ended)


def _names(events: Sequence[Event]) -> Iterable[str]:
    """Every process and thread used is named once, and no tid belongs to two processes."""
    processes: Counter[int] = Counter()
    threads: Counter[Task] = Counter()
    owner: dict[int, int] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            processes[event["pid"]] += 1
        if event["ph"] == "M" and event["name"] == "thread_name":
            threads[_task(event)] += 1
        if "tid" in event and owner.setdefault(event["tid"], event["pid"]) != event["pid"]:
            yield f"tid {event['tid']} is in {event['pid']} and {owner[event['tid']]}"
    for task in {_task(event) for event in events if event["ph"] in THREAD_BOUND}:
        if threads[task] != 1:
            yield f"thread {task} is named {threads[task]} times"
    for pid in {event["pid"] for event in events}:
        if processes[pid] != 1:
            yield f"process {pid} is named {processes[pid]} times"
