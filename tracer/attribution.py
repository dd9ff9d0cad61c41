"""The verdict: is it a spike, which phase grew first, which grew most, why, and what to do.

Confidence is 0.97 for a verdict on full evidence with a baseline, less: 0.15 without a baseline,
0.2 where the request is incomplete, 0.15 where over a tenth of the dominant phase is an estimate,
0.25 where the cause is not known further, and the share of `other` in the whole.
"""

from __future__ import annotations

from tracer import baseline, clocks, codes, contention, reasons, scene, wording
from tracer.baseline import Baseline
from tracer.case import Case
from tracer.derived import PHASES, Phases, Spike
from tracer.evidence import Evidence
from tracer.servers import same_model

#: A phase that holds this part of the excess has expanded (one tenth).
_EXPANDED_PART = 10
#: Phases whose excess is within a tenth of the largest are named beside it.
_NEAR_PART = 10
#: Prefill up to so many times what its size lets expect is explained by its size, ...
_EXPLAINED = 2.0
#: ... and up to so many times far outside the sizes seen: attention grows faster than a line.
_EXPLAINED_FAR = 4.0
_FAR = 4
_COLD = ("evict", "spawn", "load", "transfer", "init")
_WHOLE = ("chat/whole", "completion/whole", "infill/whole")
_SWITCH_STAGES = ("queue.switch", "queue.drain")


def judge(case: Case) -> Spike:
    """The verdict by the rules of the contract."""
    base = baseline.of(case.evidence.baseline, case.evidence.server, case.model, case.kind)
    if case.took_ns is None or not _is_spike(case, base, case.took_ns):
        return Spike(is_spike=False, typical_ns=base.typical_ns)
    excess = excess_ns(case, base)
    total = max(1, case.took_ns - (base.typical_ns or 0))
    first = next((p for p in PHASES if excess[p] * _EXPANDED_PART >= total), None)
    top = max(PHASES, key=lambda p: (excess[p], -PHASES.index(p)))
    near = [p for p in PHASES if excess[p] and excess[p] * _NEAR_PART >= excess[top] * 9]
    cause = _cause(case, base, top)
    why = reasons.of(case.evidence, case.phases, case.facts)
    if cause == "prefill.throttled" and _processor_held(case, base) is None:
        why = (*why, "power.clock")
    return Spike(
        is_spike=True,
        typical_ns=base.typical_ns,
        first_expanded=first or top,
        dominant="+".join(near) or top,
        cause=cause,
        why=why,
        because=wording.because(case, cause, why),
        advice=advice(cause, why, died=case.outcome == "server_died"),
        switch_is_cause=switch_is_cause(case),
        confidence=_confidence(case, base, top, cause),
    )  # fmt: skip


def work_ns(phases: Phases) -> dict[str, int]:
    """Phases less decoding, which is generation and no wait for a first token."""
    decode = phases.stages_ns.get("prefill.decode", 0)
    return {p: n - decode if p == "prefill" else n for p, n in phases.phases_ns.items()}


def excess_ns(case: Case, base: Baseline) -> dict[str, int]:
    """How much longer than typical each phase took; without a baseline, all of it."""
    return {
        p: max(0, n - base.phases_ns.get(p, 0)) for p, n in work_ns(case.phases).items()
    }  # fmt: skip


def _is_spike(case: Case, base: Baseline, took: int) -> bool:
    settings = case.evidence.settings
    least = round(settings.min_ms * 1e6)
    if base.typical_ns is not None:
        return took > max(least, round(settings.factor * base.typical_ns))
    cold = sum(case.phases.phases_ns[p] for p in _COLD)
    return took > least and cold * 2 > took


def _cause(case: Case, base: Baseline, phase: str) -> str:
    if phase == "other":
        return "unknown"
    if phase == "prefill":
        return _prefill_cause(case, base)
    stages = {s: n for s, n in case.phases.stages_ns.items() if s.partition(".")[0] == phase}
    return _largest(stages, phase)


def _largest(stages: dict[str, int], phase: str) -> str:
    """The longest stage that is told apart; the rest only where hardly anything is."""
    rest = f"{phase}.rest"
    named = {s: n for s, n in stages.items() if s != rest}
    top = max(named, key=lambda s: (named[s], -codes.STAGES.index(s)), default=rest)
    return top if named.get(top, 0) * _EXPANDED_PART >= sum(stages.values()) else rest


def _prefill_cause(case: Case, base: Baseline) -> str:
    stages = {
        s: n for s, n in case.phases.stages_ns.items()
        if s.startswith("prefill.") and s != "prefill.decode"
    }  # fmt: skip
    largest = _largest(stages, "prefill")
    if largest not in ("prefill.prompt", "prefill.rest"):
        return largest
    tokens, took = case.uncached_tokens, work_ns(case.phases)["prefill"]
    expected = _expected_ns(case, base)
    # What a whole reply took to generate is not always told.
    mixed = case.kind in _WHOLE and not case.stage_ns("prefill.decode")
    if tokens is None or expected is None:  # its size may explain it
        return "prefill.decode" if mixed else largest
    far = tokens > _FAR * base.most_tokens
    if took <= expected * (_EXPLAINED_FAR if far else _EXPLAINED):
        return largest
    if mixed:
        return "prefill.decode"
    held = _processor_held(case, base)
    if held:
        return held
    slow = clocks.low(case.evidence, case.phases)
    return "prefill.throttled" if clocks.explains(slow, took, expected) else "prefill.unexplained"


def _expected_ns(case: Case, base: Baseline) -> int | None:
    """What a prompt of this size takes when warm."""
    return None if case.uncached_tokens is None else base.prefill_ns(case.uncached_tokens)


def _processor_held(case: Case, base: Baseline) -> str | None:
    """The code for a processor that was not there for a prompt of this size."""
    expected = _expected_ns(case, base)
    if expected is None:
        return None
    found = contention.of(scene.of(case.evidence), case.timeline)
    return contention.cause(found, work_ns(case.phases)["prefill"] - expected)


def advice(cause: str, why: tuple[str, ...], *, died: bool = False) -> str | None:
    """The antecedent's advice, being nearer to what can be changed, else the cause's.

    Antecedents of a load say nothing about a long wait or prompt, nor the other way round.
    """
    found = codes.get(cause, "stage", "cause")
    cold = found is not None and found.phase in _COLD
    for code in why:
        reason = codes.get(code, "why")
        ends = died and code.startswith("died.")
        if reason and reason.advice and (ends or (reason.phase in _COLD) == cold):
            return reason.advice
    return found.advice if found else None


def switch_is_cause(case: Case) -> bool | None:
    """Whether a switch of models changed what is resident, or made the request wait.

    A switch that started nothing, brought nothing in and was not waited for is correlation.
    So is a load without a switch: first of all, after sleep, or from a cache that was emptied.
    """
    waited = sum(case.stage_ns(s) for s in _SWITCH_STAGES)
    if waited * _EXPANDED_PART >= max(case.took_ns or 0, 1):
        return True
    if case.facts.switched_from is None and not reasons.evicted_other(case.evidence):
        return False
    resident = case.evidence.resident_before
    started = ("evict.stop", "evict.wait", "spawn.exec", "spawn.fit")
    if any(case.stage_ns(x) for x in started) or resident is False:
        return bool(reasons.evicted_other(case.evidence)) or _there_before(case.evidence)
    if resident is None and not case.timeline.engine_seen:
        return True if reasons.read_from_disk(case.evidence, case.facts) else None
    return False


def _there_before(e: Evidence) -> bool:
    """Whether some process may have held the previous model as this request came."""
    came = e.request.arrival_ns
    for x in e.lives:
        if x.tgid != e.runner and not scene.may_run_models(e, x):
            continue
        if not (x.fork_ns or 0) < came < (came + 1 if x.exit_ns is None else x.exit_ns):
            continue
        named = [o.model for o in e.others if o.runner == x.tgid]
        named += [x.command.model] if x.command is not None and x.tgid != e.runner else []
        known = [name for name in named if name is not None]
        if not known or any(same_model(name, e.previous_model) for name in known):
            return True
    return False


def _confidence(case: Case, base: Baseline, phase: str, cause: str) -> float:
    score = 0.97
    if base.typical_ns is None:
        score -= 0.15
    if not case.complete:
        score -= 0.2
    mine = [x for x in case.phases.intervals if x.stage.partition(".")[0] == phase]
    guessed = sum(x.end_ns - x.start_ns for x in mine if x.estimate)
    if guessed * 10 > max(1, case.phases.phases_ns[phase]):
        score -= 0.15
    if cause in ("unknown", "prefill.unexplained") or cause.endswith(".rest"):
        score -= 0.25
    window = max(1, case.timeline.end_ns - case.timeline.start_ns)
    score -= case.phases.phases_ns["other"] / window
    return round(min(0.99, max(0.05, score)), 2)
