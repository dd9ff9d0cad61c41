"""Does each answer hold, against the client, the server, the files and the rules themselves?"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from demo.scenarios import WARMUP, Sent
from tracer.derived import PHASES

Json = dict[str, Any]
PAGE = 4096


class Expected(msgspec.Struct, frozen=True):
    """A scenario's right verdict; None: any."""

    spike: bool
    cause: str | None = None
    never: str | None = None
    switch: bool = False


EXPECTED = {
    "cold_first": Expected(spike=True, cause="load.disk"),
    "cold_switch": Expected(spike=True, cause="load.disk", switch=True),
    "switch_back": Expected(spike=True, never="load.disk", switch=True),
    "both_a": Expected(spike=False),
    "both_b": Expected(spike=False),
    "short": Expected(spike=False),
    "long": Expected(spike=True, cause="prefill.prompt"),
    "slot_first": Expected(spike=False),
    "slot_second": Expected(spike=True, cause="queue.busy"),
}


class Case(msgspec.Struct, frozen=True):
    """One request as the client saw it and as it was explained."""

    sent: Sent
    answer: Json


class Check(msgspec.Struct, frozen=True):
    """One check over all cases it applies to; `wrong` says where it does not hold."""

    name: str
    count: int
    wrong: list[str]


def checks(cases: Sequence[Case], size: int) -> list[Check]:
    """All checks; `size` is the models' in bytes."""
    shown = [case for case in cases if case.sent.scenario != WARMUP]
    cold = [case for case in shown if case.sent.scenario.startswith("cold_")]
    back = [case for case in shown if case.sent.scenario == "switch_back"]
    second = [case for case in shown if case.sent.scenario == "slot_second"]
    spikes = [case for case in shown if EXPECTED[case.sent.scenario].spike]
    first_id = next(c.answer["id"] for c in shown if c.sent.scenario == "slot_first")
    whole = -(-size // PAGE) * PAGE
    return [
        _check("all is seen (complete)", shown, complete),
        _check("phases sum to TTFT, stages to phases, exactly", shown, sums),
        _check("unexplained (other) under 2 % of TTFT", shown, other),
        _check("TTFT as the client's own, within 2 ms or 1 %", shown, client),
        _check("prompt time as the server's own, within 5 ms or 3 %", shown, prompt),
        _check(f"bytes from disk are the file's {size:,}, to the page", cold, _disk(whole, whole)),
        _check("switched back: under 1 % of them from disk", back, _disk(0, size // 100)),
        _check("slow or not, cause and switch as they should be", shown, _verdict),
        _check("first expanded phase by the rule", spikes, _first_expanded(cases)),
        _check("the second on the slot waited for the first", second, _waited(first_id)),
    ]


def _check(name: str, cases: Sequence[Case], wrong: Callable[[Case], str | None]) -> Check:
    found = [(case.sent.scenario, wrong(case)) for case in cases]
    return Check(name, len(cases), [f"{scenario}: {text}" for scenario, text in found if text])


def _ns(milliseconds: float) -> int:
    return round(milliseconds * 1_000_000)


def complete(case: Case) -> str | None:
    """Why the answer is not complete; None where it is. The other checks answer alike."""
    return None if case.answer["complete"] else str(case.answer["incomplete_because"])


def sums(case: Case) -> str | None:
    """Phases against TTFT, stages against phases, in integers of nanoseconds."""
    phases, stages = case.answer["phases_ms"], case.answer["stages_ms"]
    if sum(map(_ns, phases.values())) != _ns(case.answer["ttft_ms"]):
        return f"phases sum to {sum(phases.values()):.6f} of {case.answer['ttft_ms']:.6f} ms"
    for phase, value in phases.items():
        parts = sum(_ns(ms) for name, ms in stages.items() if name.partition(".")[0] == phase)
        if parts != _ns(value):
            return f"stages of {phase} sum to {parts / 1e6:.6f} of {value:.6f} ms"
    return None


def other(case: Case) -> str | None:
    """What is left unexplained, against its budget."""
    left, ttft = case.answer["phases_ms"]["other"], case.answer["ttft_ms"]
    return f"{left:.3f} of {ttft:.1f} ms" if left >= 0.02 * ttft else None


def client(case: Case) -> str | None:
    """TTFT against what the client measured."""
    ours, theirs = case.answer["ttft_ms"], case.sent.ttft_ms
    off = abs(ours - theirs) > max(2.0, 0.01 * theirs)
    return f"{ours:.3f} ms, client {theirs:.3f} ms" if off else None


def prompt(case: Case, within_ms: float = 5.0, within: float = 0.03) -> str | None:
    """Prompt time against what the server reports."""
    stages = case.answer["stages_ms"]
    ours = stages.get("prefill.prompt", 0.0) + stages.get("prefill.shared", 0.0)
    server = case.sent.prompt_eval_ms
    off = abs(ours - server) > max(within_ms, within * server)
    return f"{ours:.3f} ms, server {server:.3f} ms" if off else None


def _disk(least: int, most: int) -> Callable[[Case], str | None]:
    def wrong(case: Case) -> str | None:
        count = case.answer["evidence"]["weights_bytes_from_disk"]
        # What the host itself put out and read again came from disk twice.
        allowed = most + case.sent.refaulted
        return None if count is not None and least <= count <= allowed else f"{count} bytes"

    return wrong


def _verdict(case: Case) -> str | None:
    expected, spike = EXPECTED[case.sent.scenario], case.answer["spike"]
    if spike["is_spike"] != expected.spike:
        return f"is_spike {spike['is_spike']}"
    if expected.cause is not None and spike["cause"] != expected.cause:
        return f"cause {spike['cause']}, not {expected.cause}"
    if expected.never is not None and spike["cause"] == expected.never:
        return f"cause {spike['cause']}"
    if bool(spike["switch_is_cause"]) != expected.switch:
        return f"switch_is_cause {spike['switch_is_cause']}"
    return None


def _waited(first: int) -> Callable[[Case], str | None]:
    def wrong(case: Case) -> str | None:
        waited = case.answer["waited_for"]
        return None if first in waited else f"waited for {waited}, not for {first}"

    return wrong


def _first_expanded(cases: Sequence[Case]) -> Callable[[Case], str | None]:
    """The rule, worked out here again from the phases and the warm-up requests."""

    def wrong(case: Case) -> str | None:
        said = case.answer["spike"]["first_expanded"]
        right = list(_candidates(case, _typical(case, cases)))
        return None if said in right else f"{said}, not {' or '.join(right)}"

    return wrong


def _typical(case: Case, cases: Sequence[Case]) -> Json:
    """Median of each phase over the warm-ups on the same server and model."""
    warm = [
        other.answer
        for other in cases
        if other.sent.scenario == WARMUP
        and other.answer["server"] == case.answer["server"]
        and other.answer["model"] == case.answer["model"]
        and other.answer["id"] < case.answer["id"]
    ]
    if len(warm) < 5:
        return dict.fromkeys((*PHASES, "ttft"), 0.0)
    typical = {p: statistics.median(one["phases_ms"][p] for one in warm) for p in PHASES}
    return typical | {"ttft": statistics.median(one["ttft_ms"] for one in warm)}


def _candidates(case: Case, typical: Json) -> Iterator[str]:
    """The first phase with a tenth of the excess, and those so near that rounding decides."""
    excess = case.answer["ttft_ms"] - typical["ttft"]
    for phase in PHASES:
        share = (case.answer["phases_ms"][phase] - typical[phase]) / excess
        if share >= 0.09:
            yield phase
        if share >= 0.11:
            return
