"""`ttft status` and `ttft doctor` as text."""

from __future__ import annotations

from datetime import tzinfo

from tracer.arming import WORDS
from tracer.render import COLUMNS, Json, Paint, columns, moment, plain
from tracer.render_units import duration, fit, size, wrap


def status(answer: Json, zone: tzinfo | None = None, paint: Paint = plain) -> list[str]:
    """Watched servers, probes, records lost, own cost, history."""
    date, clock = moment(answer["began"], zone)
    head = f"ttftd {answer['version']} on Linux {answer['kernel']} {answer['machine']}"
    return [
        paint("head", fit(head, COLUMNS)),
        f"since {date} {clock[:8]}, pid {answer['pid']}",
        "",
        *_servers(answer["servers"], paint),
        "",
        *_probes(answer["probes"], paint),
        *_lost(answer["lost"], paint),
        *_cost(answer["cost"]),
        *_history(answer["history"], paint),
        *_exports(answer.get("exports", []), paint),
        *_telemetry(answer.get("telemetry"), paint),
        *_clock(answer.get("clock", {}), paint),
    ]


def _clock(clock: Json, paint: Paint) -> list[str]:
    """Only where it did anything but run."""
    told = []
    if clock.get("steps"):
        step = clock["last_step_s"]
        times = "once" if clock["steps"] == 1 else f"{clock['steps']} times, last"
        way = "ahead" if step > 0 else "back"
        told.append(f"set {times} by {duration(abs(step) * 1e3)} {way}")
    if clock.get("suspensions"):
        times = "once" if clock["suspensions"] == 1 else f"{clock['suspensions']} times"
        told.append(f"stood still {times} for {duration(clock['suspended_s'] * 1e3)} (suspended)")
    if not told:
        return []
    lines = wrap("; ".join(told), COLUMNS, "Clock    ", " " * 9)
    return [paint("dim", line) for line in lines]


def _servers(servers: list[Json], paint: Paint) -> list[str]:
    if not servers:
        text = "No server found yet. Known ones are found by themselves; name any other in "
        return wrap(text + "[[server]] of the configuration.", COLUMNS)
    head = [("SERVER", 24), ("PORT", -5), ("PID", -7), ("REQUESTS", -8), ("MODEL", 28)]
    lines = [paint("head", columns(head))]
    for server in servers:
        fields = [
            (server["name"], 24),
            (server["port"], -5),
            (server["pid"], -7),
            (server["requests"], -8),
            (server["model"] or "-", 28),
        ]
        lines.append(columns(fields))
        if server.get("place"):
            lines += wrap(f"in {server['place']}", COLUMNS, "  ", "  ")
        if server["unreadable"]:
            text = f"not readable: {server['unreadable_means']}"
            lines += [paint("bad", line) for line in wrap(text, COLUMNS, "  ", "  ")]
            lines += wrap(server["advice"], COLUMNS, "  -> ", "     ")
    return lines


def _probes(probes: list[Json], paint: Paint) -> list[str]:
    attached = [probe for probe in probes if probe["attached"]]
    lines = [f"Probes   {len(attached)} of {len(probes)} groups attached"]
    for probe in probes:
        if probe.get("cgroups") is not None:
            lines += [paint("dim", line) for line in _in_cgroups(probe)]
        if probe.get("why") is not None:
            lines += [paint("dim", line) for line in _comes_and_goes(probe)]
            continue
        if probe["attached"]:
            continue
        text = f"{probe['group']}: off, {probe['off_because'] or 'reason unknown'}"
        if probe["unseen"]:
            text += f"; not seen: {probe['unseen']}"
        kind = "bad" if probe["required"] else "dim"
        lines += [paint(kind, line) for line in wrap(text, COLUMNS, " " * 9, " " * 11)]
    return lines


def _comes_and_goes(probe: Json) -> list[str]:
    """A group that is on only while a model may be loading."""
    state = "on" if probe["attached"] else "off"
    long = duration(probe["since_s"] * 1e3)
    text = f"{probe['group']}: {state} for {long}, {WORDS.get(probe['why'], probe['why'])}"
    if not probe["attached"]:
        text += "; on when a model may be loading"
    return wrap(text, COLUMNS, " " * 9, " " * 11)


def _in_cgroups(probe: Json) -> list[str]:
    """Where a group is attached that others pay for by their cgroup."""
    where = ", ".join(probe["cgroups"]) or "none yet, there is no server"
    if probe["root_because"] is not None:
        where = f"all of them, as {probe['root_because']}"
    return wrap(f"{probe['group']}: of cgroups {where}", COLUMNS, " " * 9, " " * 11)


_LOST_ADVICE = {
    "table": "a table in the kernel was full: too many files or threads at once",
    "lookup": "the kernel could not say which file these belonged to",
    "half": "the kernel left out a program at the begin or end of these calls",
    "program": "the kernel left these programs out: they were running on that processor already",
    "packet": "raise [probes] packet_ring_kb in the configuration",
    "": "raise [probes] ring_kb in the configuration",
}
"""By how the name of the kind ends; `packet` and all others were lost to a full ring."""


def _lost(lost: Json, paint: Paint) -> list[str]:
    counts = {kind: count for kind, count in lost.items() if count}
    if not counts:
        return ["Lost     no records"]
    text = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    lines = [paint("bad", line) for line in wrap(text, COLUMNS, "Lost     ", " " * 9)]
    for advice in dict.fromkeys(map(_lost_advice, counts)):
        lines += wrap(advice, COLUMNS, "      -> ", " " * 9)
    return lines


def _lost_advice(kind: str) -> str:
    end = "program" if kind.startswith("ttft_") else kind.rpartition(".")[2]
    return _LOST_ADVICE.get(end, _LOST_ADVICE[""])


def _cost(cost: Json) -> list[str]:
    share = cost["cpu_share"]
    parts = [
        None if cost["pss_bytes"] is None else f"{size(cost['pss_bytes'])} memory",
        None if share is None else f"{share * 100:.2f} % of one core",
        None if cost["bpf_ns"] is None else f"{duration(cost['bpf_ns'] / 1e6)} in BPF programs",
    ]
    known = ", ".join(part for part in parts if part)
    return wrap(known or "not measured", COLUMNS, "Cost     ", " " * 9)


def _history(history: Json, paint: Paint) -> list[str]:
    text = f"{history['path']}, {size(history['size_bytes'])}"
    lines = wrap(text, COLUMNS, "History  ", " " * 9)
    if history["trouble"]:
        text = f"not written: {history['trouble']}; {history['pending']} requests wait in memory"
        lines += [paint("bad", line) for line in wrap(text, COLUMNS, " " * 9, " " * 9)]
        lines += wrap(history["hint"] or "", COLUMNS, "      -> ", " " * 9)
    for name in history.get("set_aside", []):
        text = f"a damaged history was set aside as {name}, and a new one begun"
        lines += [paint("bad", line) for line in wrap(text, COLUMNS, " " * 9, " " * 9)]
    if history["dropped"]:
        lines += wrap(f"{history['dropped']} requests were dropped", COLUMNS, " " * 9, " " * 9)
    return lines


def _exports(exports: list[Json], paint: Paint) -> list[str]:
    lines: list[str] = []
    for export in exports:
        text = f"{export['name']} at {export['to']}"
        if export["sent"] is not None:
            text += f", {export['sent']} requests sent, {export['dropped']} dropped"
        lines += wrap(text, COLUMNS, "         " if lines else "Exports  ", " " * 9)
        if export["trouble"]:
            trouble = wrap(export["trouble"], COLUMNS, "      -> ", " " * 9)
            lines += [paint("bad", line) for line in trouble]
    return lines


def _telemetry(told: Json | None, paint: Paint) -> list[str]:
    """Devices that were read; nothing where there was none to read."""
    if told is None:
        return []
    lines: list[str] = []
    for key, name in told["devices"].items():
        text = f"{name} ({key}), read while a request waits"
        lines += wrap(text, COLUMNS, " " * 9 if lines else "Devices  ", " " * 9)
    for trouble in told["troubles"]:
        first = "      -> " if lines else "Devices  "
        lines += [paint("dim", line) for line in wrap(trouble, COLUMNS, first, " " * 9)]
    return lines


def doctor(answer: Json, paint: Paint = plain) -> list[str]:
    """What this host allows, what is missing, what to do."""
    lines: list[str] = []
    for fact in answer["facts"]:
        mark, kind = {True: ("ok", "good"), False: ("NO", "bad"), None: ("  ", "dim")}[fact["ok"]]
        if fact["ok"] is None and fact["missing"]:
            mark = "- "
        text = wrap(f"{fact['name']}: {fact['value']}", COLUMNS, " " * 4, " " * 6)
        lines += [paint(kind, mark) + text[0][2:], *text[1:]]
        if fact["missing"] and fact["ok"] is not True:
            lines += wrap(f"without it: {fact['missing']}", COLUMNS, " " * 6, " " * 6)
        if fact["advice"] and fact["ok"] is not True:
            lines += wrap(fact["advice"], COLUMNS, "   -> ", " " * 6)
    missing = sum(1 for fact in answer["facts"] if fact["ok"] is False)
    less = sum(1 for fact in answer["facts"] if fact["ok"] is None and fact["missing"])
    end = f"{missing} needed and not here: see NO above." if missing else "All needed is here."
    if less and not missing:
        end = f"All needed is here; {less} more would tell more: see - above."
    return [*lines, "", paint("bad" if missing else "good", end)]
