"""`ttft show`: one request as a waterfall, with its evidence, verdict and advice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo

from tracer import codes
from tracer.render import COLUMNS, Json, Paint, ago, columns, moment, plain
from tracer.render_stacks import ran
from tracer.render_units import duration, fit, right, size, width, wrap

_ENDED = {
    "ok": "none was seen",
    "client_gone": "the client left",
    "server_error": "the server answered with an error",
    "server_died": "the server died",
    "open": "still open",
}

#: Classes of driver calls that are named.
_CLASSES = 4
_THIN = {"\u2588": "\u2501"}
"""What stages are drawn with, beside what phases are."""

_NAME = 18
_TIME = 8
_BAR = COLUMNS - _NAME - _TIME - 4


def show(
    answer: Json,
    zone: tzinfo | None = None,
    paint: Paint = plain,
    block: str = "#",
    now: datetime | None = None,
) -> list[str]:
    """All of one request (an answer with `intervals`); `block` draws the bars."""
    parts = [
        _head(answer, zone, paint, now),
        _verdict(answer, paint),
        _waterfall(answer, paint, block),
        _judgement(answer, paint),
        _evidence(answer, paint),
        ran(answer, paint),
        _own_figures(answer, paint),
    ]
    lines: list[str] = []
    for part in parts:
        if part:
            lines += ["", *part] if lines else part
    return lines


def _head(answer: Json, zone: tzinfo | None, paint: Paint, now: datetime | None) -> list[str]:
    date, clock = moment(answer["wall_time"], zone)
    past = ago(answer["wall_time"], now)
    clock += f" ({past})" if past else ""
    title = f"Request {answer['id']}: {answer['model'] or 'model unknown'} on {answer['server']}"
    facts = [
        answer["endpoint"] or "unknown path",
        {True: "streaming", False: "not streaming", None: None}[answer["stream"]],
        None if answer["status"] is None else f"status {answer['status']}",
        _count(answer["prompt_tokens"], "prompt token"),
        None if answer["cached_tokens"] is None else f"{answer['cached_tokens']} of them cached",
        _count(answer["tokens"], "token"),
    ]
    return [
        paint("head", fit(title, COLUMNS)),
        *wrap(f"{date} {clock}, " + ", ".join(fact for fact in facts if fact), COLUMNS),
    ]


def _count(count: int | None, word: str) -> str | None:
    return None if count is None else f"{count} {word}{'' if count == 1 else 's'}"


def _verdict(answer: Json, paint: Paint) -> list[str]:
    """How slow and why in one sentence, then the figures behind it and what to do."""
    spike = answer["spike"]
    kind = "bad" if spike["is_spike"] else "head"
    lines = [paint(kind, line) for line in wrap(_sentence(answer), COLUMNS)]
    if spike["is_spike"]:
        lines += wrap(spike["because"] or "", COLUMNS) if spike["because"] else []
        lines += wrap(spike["advice"], COLUMNS, "-> ", "   ") if spike["advice"] else []
    if not answer["complete"]:
        reason = answer["incomplete_because"] or "reason unknown"
        lines += wrap(f"Incomplete: {reason}.", COLUMNS)
    return lines


def _sentence(answer: Json) -> str:
    spike = answer["spike"]
    typical = spike["typical_ms"]
    what = "First token" if answer["stream"] is not False else "Whole answer (not streamed)"
    text = f"{what} after {duration(answer['ttft_ms'])}"
    if answer["ttft_ms"] is None:
        where = f" in {answer['died_in']}" if answer["died_in"] else ""
        text = f"No first token: {_ENDED[answer['outcome']]}{where}"
    if not spike["is_spike"]:
        return text + (f"; typically {duration(typical)}." if typical is not None else ".")
    text += f", typically {duration(typical)}" if typical is not None else ""
    text += f": {codes.meaning(spike['cause'] or 'unknown', 'stage', 'cause')}"
    if spike["switch_is_cause"]:
        before = answer["evidence"]["switched_from"]
        text += f", caused by the switch from {before}" if before else ", caused by a switch"
    return text + "."


def _judgement(answer: Json, paint: Paint) -> list[str]:
    """The verdict in its codes, each with the words to look it up."""
    spike = answer["spike"]
    if not spike["is_spike"]:
        return []
    cause = spike["cause"] or "unknown"
    switch = {True: "the cause", False: "not the cause", None: ""}[spike["switch_is_cause"]]
    sure = "" if spike["confidence"] is None else f"{spike['confidence']:.2f}"
    rows = [
        ("cause", f"{cause}; more: ttft explain {cause}"),
        *(("after", f"{why}: {codes.meaning(why, 'why')}") for why in spike["why"] or ()),
        ("first to grow", spike["first_expanded"] or ""),
        ("most of it", spike["dominant"] or ""),
        ("model switch", switch),
        ("typical", _unknown_typical(answer)),
        ("confidence", sure),
    ]
    return [paint("head", "Verdict"), *_labelled(row for row in rows if row[1])]


def _unknown_typical(answer: Json) -> str:
    """Why it is not said how long such a request usually takes."""
    count = answer["evidence_detail"]["baseline_requests"]
    if answer["spike"]["typical_ms"] is not None or not isinstance(count, int):
        return ""
    came = f"{count} warm request{'' if count == 1 else 's'} of its kind came before"
    return f"not known yet: {came}"


def _waterfall(answer: Json, paint: Paint, block: str) -> list[str]:
    intervals = answer["intervals"]
    if not intervals:
        return []
    start = min(item["start_ns"] for item in intervals)
    end = max(item["end_ns"] for item in intervals)
    whole = duration((end - start) / 1e6)
    scale = "0" + right(whole, _BAR - 1)
    lines = [paint("dim", " " * (COLUMNS - _BAR) + scale)]
    for phase, spent in answer["phases_ms"].items():
        mine = [item for item in intervals if item["stage"].split(".")[0] == phase]
        if not spent and not mine:
            continue
        lines.append(_row(phase, spent, _bar(mine, start, end, block), phase=phase, paint=paint))
        stages = [stage for stage in answer["stages_ms"] if stage.startswith(f"{phase}.")]
        if stages == [f"{phase}.rest"]:
            continue
        by_stage = {stage: [item for item in mine if item["stage"] == stage] for stage in stages}
        for stage, parts in sorted(by_stage.items(), key=lambda pair: _begin(pair[1], end)):
            mark = " ~" if any(item["estimate"] for item in parts) else ""
            name = f"  .{stage.partition('.')[2]}{mark}"
            bar = _bar(parts, start, end, _THIN.get(block, "-"))
            lines.append(
                _row(name, answer["stages_ms"][stage], bar, phase=phase, paint=paint, words="dim")
            )
    if any(item["estimate"] for item in intervals):
        lines.append("~ an estimate")
    hidden = [f"{pair} {duration(spent)}" for pair, spent in answer["overlaps_ms"].items()]
    if hidden:
        lines += wrap(f"At the same time: {', '.join(hidden)}", COLUMNS)
    return lines


def _begin(intervals: Sequence[Json], end: int) -> int:
    return min((item["start_ns"] for item in intervals), default=end)


def _row(
    name: str, spent: float | None, bar: str, *, phase: str, paint: Paint, words: str = "plain"
) -> str:
    label = columns([(name, _NAME), (duration(spent), -_TIME)])
    return f"{paint(words, label)}  {paint(phase, bar.rstrip())}".rstrip()


def _bar(intervals: Sequence[Json], start: int, end: int, block: str) -> str:
    cells = [" "] * _BAR
    whole = max(1, end - start)
    for item in intervals:
        first = min(_BAR - 1, (item["start_ns"] - start) * _BAR // whole)
        last = min(_BAR, -((start - item["end_ns"]) * _BAR // whole))
        # A piece too short to fill a cell shows in the one it begins in.
        for cell in range(first, max(first + 1, last)):
            cells[cell] = block
    return "".join(cells)


def _evidence(answer: Json, paint: Paint) -> list[str]:
    rows = [row for row in _facts(answer) if row[1]]
    return [paint("head", "Evidence"), *_labelled(rows)] if rows else []


def _facts(answer: Json) -> list[tuple[str, str]]:
    facts = answer["evidence"]
    names = ", ".join(answer["weights"])
    brought = facts["weights_bytes"]
    disk = facts["weights_bytes_from_disk"]
    bytes_in = "" if brought is None else f"{size(brought)} brought in"
    if disk is not None:
        bytes_in += (", " if bytes_in else "") + f"{size(disk)} from disk"
    return [
        ("weights", ": ".join(text for text in (names, bytes_in) if text)),
        ("page faults", _pair(facts, "major_faults", "major", "minor_faults", "minor")),
        ("processes", _pair(facts, "processes_started", "started", "processes_exited", "exited")),
        ("driver calls", _driver_calls(facts, answer["evidence_detail"])),
        *_work(answer["evidence_detail"]),
        *(("device", _device(one)) for one in answer["evidence_detail"].get("telemetry", ())),
        ("reclaim", "" if facts["reclaim_ms"] is None else duration(facts["reclaim_ms"])),
        ("model before", _before(facts)),
        ("waited for", ", ".join(f"#{number}" for number in answer["waited_for"])),
        ("retry of", ", ".join(f"#{number}" for number in answer["retry_of"])),
        ("started by", _trigger(answer)),
        *_files(answer["evidence_detail"]["files"]),
    ]


def _driver_calls(facts: Json, detail: Json) -> str:
    """How many, and by class those that took longest."""
    if facts["gpu_calls"] is None and not detail.get("devices"):
        return ""
    sums: dict[str, list[float]] = {}
    for one in detail.get("devices", ()):
        held = sums.setdefault(one["what"], [0, 0.0, 0])
        for n, name in enumerate(("count", "busy_ms", "bytes")):
            held[n] += one[name] or 0
    ordered = sorted(sums.items(), key=lambda pair: -pair[1][1])[:_CLASSES]
    parts = [
        f"{what} {count:.0f} in {duration(busy)}" + (f" ({size(int(brought))})" if brought else "")
        for what, (count, busy, brought) in ordered
    ]
    whole = "in part" if facts["gpu_calls"] is None else str(facts["gpu_calls"])
    return ": ".join(text for text in (whole, ", ".join(parts)) if text)


def _work(detail: Json) -> list[tuple[str, str]]:
    """Uploads, compile caches, the processor: where an older daemon or nothing tells, no line."""
    sent, made, waited = (detail.get(name) for name in ("transfer", "compiled", "processor"))
    rows = []
    if sent:
        rate = f" ({size(sent['bytes_per_s'])}/s)" if sent["bytes_per_s"] else ""
        rows.append(
            ("to the device", f"{size(sent['bytes'])} in {duration(sent['took_ms'])}{rate}")
        )
    if made:
        looked = made["missed"] + made["found"]
        text = f"{made['found']} of {looked} found in {', '.join(made['caches'])}"
        rows.append(("compile cache", text))
    if waited:
        rows.append(("processor", _processor(waited)))
    return rows


def _processor(one: Json) -> str:
    """What is known of it: an older daemon told less."""
    parts = []
    if one["waited_ms"] is not None:
        parts.append(f"waited {duration(one['waited_ms'])}")
    if one.get("others_processors") is not None:
        parts.append(f"others used {one['others_processors']:.1f} processors")
    if one["throttled_ms"]:
        parts.append(f"held back {duration(one['throttled_ms'])} by a quota")
    return ", ".join(parts)


def _device(one: Json) -> str:
    """How a device ran while the prompt was worked on, or at other times of the wait."""
    parts = []
    if one["clock_mhz"] is not None:
        of = "" if one["clock_max_mhz"] is None else f" of {one['clock_max_mhz']}"
        state = "" if one["pstate"] is None else f" (P{one['pstate']})"
        warm = one.get("clock_warm_mhz")
        usual = "" if warm is None else f", {warm} in warm prompts"
        parts.append(f"{one['clock_mhz']}{of} MHz{state}{usual}")
    if one["limits"]:
        parts.append(f"held by {', '.join(one['limits'])}")
    if one["busy_percent"] is not None:
        parts.append(f"{one['busy_percent']} % busy")
    if one["own_bytes"] is not None:
        parts.append(f"{size(one['own_bytes'])} of its memory")
    now, could = (
        _link(one[f"link_generation{end}"], one[f"link_width{end}"]) for end in ("", "_max")
    )
    if now and could and now != could:
        parts.append(f"PCIe {now}, could be {could}")
    when = "in the prompt" if one["prompt"] else "before the prompt"
    told = ", ".join(parts) or "held, no figures"
    return f"{one['name'] or one['source']} ({one['device']}), {when}: {told}"


def _link(generation: int | None, width: int | None) -> str:
    return "" if generation is None or width is None else f"{generation} x{width}"


def _pair(facts: Json, one: str, one_word: str, other: str, other_word: str) -> str:
    pairs = ((facts[one], one_word), (facts[other], other_word))
    return ", ".join(f"{count} {word}" for count, word in pairs if count is not None)


def _before(facts: Json) -> str:
    held = {True: "resident", False: "not resident", None: ""}[facts["resident_before"]]
    before = facts["switched_from"]
    return ", ".join(text for text in (held, before and f"previous was {before}") if text)


def _trigger(answer: Json) -> str:
    trigger = answer["triggered_by"]
    return "" if trigger in (None, answer["id"]) else f"#{trigger}"


def _files(files: Iterable[Json]) -> list[tuple[str, str]]:
    rows = []
    for file in files:
        if file["format"] is None:
            continue
        text = f"{file['path'] or 'inode ' + str(file['ino'])}, {size(file['size'])}"
        place = [word for word in (file["file_system"], file["device"]) if word]
        rows.append(("file", text + (f" on {' '.join(place)}" if place else "")))
    return rows


def _labelled(rows: Iterable[tuple[str, str]]) -> list[str]:
    lines: list[str] = []
    for label, text in rows:
        lines += wrap(text, COLUMNS, f"  {label:<14}", " " * 16)
    return lines


def _own_figures(answer: Json, paint: Paint) -> list[str]:
    said = answer["server_says"]
    rows = []
    if said["prompt_ms"] is not None:
        ours = _prompt_ms(answer)
        text = f"{duration(said['prompt_ms'])} for the prompt"
        if ours is not None:
            text += f", ours {duration(ours)}"
            if abs(ours - said["prompt_ms"]) > max(5.0, 0.03 * said["prompt_ms"]):
                text += " (they disagree)"
        rows.append(("prompt time", text))
    if said["prompt_n"] is not None:
        cached = "" if said["cache_n"] is None else f", {said['cache_n']} from its cache"
        rows.append(("prompt tokens", f"{said['prompt_n']} worked on{cached}"))
    if said["load_ms"] is not None:
        rows.append(("load time", duration(said["load_ms"])))
    return [paint("head", "The server's own figures"), *_labelled(rows)] if rows else []


def _prompt_ms(answer: Json) -> float | None:
    """Our figure for the server's prompt time: work from prompt start on, relay left out."""
    start = answer["at_ns"]["prompt_start"]
    if start is None:
        return None
    spent = 0
    for item in answer["intervals"]:
        phase = item["stage"].split(".")[0]
        counts = phase in ("load", "transfer", "init") or item["stage"] in (
            "prefill.prompt",
            "prefill.shared",
            "prefill.rest",
            "prefill",
        )
        if counts and item["start_ns"] >= start:
            spent += item["end_ns"] - item["start_ns"]
    return spent / 1e6


def widest(lines: Iterable[str]) -> int:
    """Columns of the widest line."""
    return max(map(width, lines), default=0)
