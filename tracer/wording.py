"""The one sentence with figures that says what a slow request waited for."""

from __future__ import annotations

from tracer import clocks, codes, contention, device, drivers, reasons, scene, spinup
from tracer.case import Case
from tracer.derived import Facts
from tracer.facts import own_files
from tracer.records import File

_DEATHS = {
    "died.oom": "after the kernel had killed the runner for lack of memory",
    "died.signal": "after the runner had crashed",
    "died.killed_by_front": "and the front killed the runner before it was ready",
}
_HOLDS = {
    "power": "its power limit", "thermal": "its temperature", "hardware": "its hardware",
    "setting": "a setting", "sync": "the other devices of its group",
    "display": "the setting of its display",
}  # fmt: skip
"""What holds a device's clock."""


def seconds(ns: int) -> str:
    """`1.23 s`, or `340 ms` below a second."""
    return f"{ns / 1e9:.2f} s" if ns >= 1_000_000_000 else f"{ns / 1e6:.0f} ms"


def megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count >= 1_000_000 else f"{count / 1e3:.0f} kB"


def _share(part: int, whole: int) -> str:
    return f"{100 * part // max(1, whole)} %"


def because(case: Case, cause: str, why: tuple[str, ...]) -> str:
    """One sentence: how long, of what, with bytes, rates and names where they are known."""
    t, facts = case.timeline, case.facts
    phase = cause.partition(".")[0]
    phase = phase if phase in case.phases.phases_ns else "other"
    took, whole = case.phase_ns(phase), t.end_ns - t.start_ns
    body = {
        "queue": _queue, "evict": _evict, "spawn": _spawn, "load": _load, "prefill": _prefill,
        "transfer": _transfer, "init": _init,
    }.get(phase, _plain)  # fmt: skip
    text = f"{seconds(took)} of {seconds(whole)} ({_share(took, whole)}) went to {phase}: "
    text += body(case, cause)
    if "power.clock" not in why:
        text += _held(case, cause)
    old = reasons.evicted_other(case.evidence)
    if phase not in ("evict", "queue") and old:
        text += f", after {old} had been stopped to make room"
    text += _antecedents(why, facts) + _clock(case, why)
    if case.outcome == "client_gone":
        text += "; the client then gave up"
    elif case.outcome == "server_died" and "died.killed_by_front" not in why:
        text += "; the server then died"
    return text + "."


def _antecedents(why: tuple[str, ...], facts: Facts) -> str:
    parts = [_DEATHS[w] for w in why if w in _DEATHS]
    if "idle.timeout" in why:
        parts.append("the model having been unloaded after idle time, its prompt cache with it")
    if "options.changed" in why:
        parts.append("the same weights having been loaded with other options before")
    if "evicted.pagecache" in why:
        parts.append("the weights of the running model having been dropped from the page cache")
    if "load.readahead" in why:
        faults = (facts.major_faults or 0) + (facts.minor_faults or 0)
        parts.append(f"in {faults} page faults of 4 KiB")
    if "load.refault" in why:
        parts.append("more than the file holds, so parts were read again")
    return "".join(f", {p}" for p in parts)


def _queue(case: Case, cause: str) -> str:
    ids = ", ".join(str(i) for i in case.timeline.waited_for)
    took = seconds(case.stage_ns(cause))
    if cause == "queue.busy":
        return f"the runner was busy for {took}" + (f" with request {ids}" if ids else "")
    if cause == "queue.drain":
        return f"request {ids or 'of another model'} had to end first ({took})"
    if cause == "queue.switch":
        return f"another model was being started for {took}" + (
            f" for request {ids}" if ids else ""
        )
    return f"{codes.meaning(cause, 'stage')} for {took}"


def _evict(case: Case, cause: str) -> str:
    old = reasons.evicted_other(case.evidence) or "the old runner"
    stop = case.stage_ns("evict.stop")
    wait = case.stage_ns("evict.wait")
    return f"stopping {old} took {seconds(stop)}, waiting before the next start {seconds(wait)}"


def _spawn(case: Case, cause: str) -> str:
    parts = {
        "spawn.exec": "starting the program", "spawn.device": "looking for devices",
        "spawn.fit": "working out what fits in memory",
    }  # fmt: skip
    told = [
        f"{text} took {seconds(case.stage_ns(stage))}"
        for stage, text in parts.items()
        if case.stage_ns(stage)
    ]
    if case.stage_ns("spawn.device"):
        told += _driver(case)
    return ", ".join(told) or codes.meaning(cause, "stage")


def _driver(case: Case) -> list[str]:
    """The call into a driver that took longest, where such calls were seen."""
    longest = next(iter(drivers.brought_up(scene.of(case.evidence))), None)
    if longest is None:
        return []
    what = "opening" if longest.what == "open" else f"{longest.what} calls on"
    return [f"of it {what} {longest.device} {seconds(longest.busy_ns)}"]


def _load(case: Case, cause: str) -> str:
    header = case.stage_ns("load.meta")
    text = f"parsing the header took {seconds(header)}, and " if cause == "load.meta" else ""
    text += _bytes(case)
    between = case.stage_ns("load.rest")
    if 10 * between >= max(1, case.phase_ns("load")):
        text += f", and copying or placing it between reads took {seconds(between)}"
    return text


def _bytes(case: Case) -> str:
    facts, s = case.facts, scene.of(case.evidence)
    files, slept = own_files(s), spinup.of(s)
    file = files[0] if files else None
    name = facts.weights[0] if facts.weights else "the weights"
    spent = sum(case.stage_ns(s) for s in ("load.disk", "load.network"))
    disk = facts.weights_bytes_from_disk
    if disk is None and spent:
        place = _place(file, "load.network" if case.stage_ns("load.network") else "load.disk")
        return f"{name} came from {place}; how many bytes is not known"
    if not disk or not spent or not reasons.read_from_disk(case.evidence, facts):
        brought = facts.weights_bytes
        size = f"{megabytes(brought)} of " if brought else ""
        return f"{size}{name} came from the page cache, none from disk to speak of"
    place = _place(file, "load.network" if case.stage_ns("load.network") else "load.disk")
    asleep = slept.end_ns - slept.start_ns if slept else 0
    spent = max(1, spent - asleep)
    came = f"{megabytes(disk)} of {name} came from {place} in {seconds(spent)}"
    came += f" ({disk / 1e6 / (spent / 1e9):.0f} MB/s)"
    return f"the first read took {seconds(asleep)}, then {came}" if asleep else came


def _place(file: File | None, stage: str) -> str:
    kind = "the network" if stage == "load.network" else "disk"
    known = [x for x in (file.device, file.fs) if x] if file else []
    return f"{kind} ({', '.join(known)})" if known else kind


def _prefill(case: Case, cause: str) -> str:
    tokens = case.uncached_tokens
    size = f"a prompt of {tokens} tokens to work on" if tokens is not None else "work on the prompt"
    if cause == "prefill.unexplained":
        return f"{size}, longer than that size takes when warm, with nothing seen to explain it"
    if cause in ("prefill.contention", "prefill.throttled"):
        return size
    if cause in ("prefill.prompt", "prefill.rest"):
        return f"{size}, with nothing loaded and nothing started" if _idle(case) else size
    return f"{codes.meaning(cause, 'stage', 'cause')} ({size})"


def _held(case: Case, cause: str) -> str:
    """What kept the processor from the prompt."""
    if cause not in ("prefill.contention", "prefill.throttled"):
        return ""
    found = contention.of(scene.of(case.evidence), case.timeline)
    if found is None:
        return ""
    if cause == "prefill.throttled":
        held = found.passed_ns(found.throttled_ns)
        quota = "which the CPU quota of its control group held back for"
        return f", {quota} {seconds(held)}" if held else ""
    waited = found.passed_ns(found.waited_ns)
    if found.others is None or waited is None:
        return ""
    used = f"other programs used {found.others:.1f} processors"
    return f", while {used} and its threads waited {seconds(waited)} for one"


def _clock(case: Case, why: tuple[str, ...]) -> str:
    """How fast the device ran, and what held it."""
    slow = clocks.low(case.evidence, case.phases) if "power.clock" in why else None
    if slow is None:
        return ""
    state = "" if slow.pstate is None else f" (P{slow.pstate})"
    text = f", while {slow.name or slow.device} ran at {slow.clock_mhz}"
    if slow.compared == "warm":
        text += f" MHz{state} in place of {slow.clock_warm_mhz} in warm prompts"
    else:
        text += f" of {slow.clock_max_mhz} MHz{state}"
    held = [_HOLDS[limit] for limit in slow.limits if limit in _HOLDS]
    return text + (f", held back by {' and '.join(held)}" if held else "")


def _idle(case: Case) -> bool:
    return not any(case.phase_ns(p) for p in ("evict", "spawn", "load", "transfer", "init"))


def _transfer(case: Case, cause: str) -> str:
    size, took = device.uploaded(scene.of(case.evidence))
    if not size or not took:
        return codes.meaning(cause, "stage")
    rate = size / 1e6 / (took / 1e9)
    hidden = took - case.phase_ns("transfer")
    text = f"{megabytes(size)} went to the device in {seconds(took)} ({rate:.0f} MB/s)"
    text += f", {seconds(hidden)} of it hidden behind load" if hidden > took // 10 else ""
    return text + _link(case)


def _link(case: Case) -> str:
    """Of PCI Express, where it was less than the device could have."""
    slow = clocks.link(case.evidence, case.phases)
    if slow is None:
        return ""
    told = slow.link_generation is not None
    now = _lanes(slow.link_generation, slow.link_width)
    could = _lanes(slow.link_generation_max if told else None, slow.link_width_max)
    return f", by PCI Express {now} where the device could {could}"


def _lanes(generation: int | None, width: int | None) -> str:
    """`3 x4`."""
    parts = ("" if generation is None else str(generation), "" if width is None else f"x{width}")
    return " ".join(part for part in parts if part)


def _init(case: Case, cause: str) -> str:
    if cause != "init.compile":
        return codes.meaning(cause, "stage")
    s = scene.of(case.evidence)
    missed = [c for c, end in device.misses(s) if end > s.start_ns and c.ts_ns < s.end_ns]
    text = f"compiling kernels or shaders took {seconds(case.stage_ns(cause))}"
    if not missed:
        return text
    text += f", {len(missed)} of them not in the cache {missed[0].folder}"
    return text if device.hits(s) else text + ", in which nothing that was looked up was there"


def _plain(case: Case, cause: str) -> str:
    return codes.meaning(cause, "stage", "cause")
