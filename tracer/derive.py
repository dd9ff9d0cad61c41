"""One request's evidence to what is concluded from it: `derive(evidence) -> Derived`."""

from __future__ import annotations

from tracer import attribution, clocks, codes, facts, phases, scene, timeline
from tracer.arming import GROUP
from tracer.case import Case
from tracer.derived import Derived, Outcome, Phases, Timeline
from tracer.evidence import Evidence, Exchange
from tracer.http.endpoints import kind_of
from tracer.records import Says, Warm
from tracer.scene import Scene
from tracer.waiting import ROUTING_NS

#: Loading that takes no more of a request than this does not make it a cold one.
#: So many events of unknown files change no figure: of 4 KiB each, or of microseconds.
_UNPLACED = 16
_WARM_NS = 1_000_000
_WARM_PART = 100
#: A front answers for a runner that died within this time before.
_DEATH_NS = 2_000_000_000


def _says(e: Evidence) -> Says:
    """What the server reports of itself: to the client, else to the front."""
    for x in (e.request, e.hop):
        if x and x.says:
            return x.says
    return Says()


def _runner_died(s: Scene) -> int | None:
    """When the runner that was to serve this request died before its end, if it did."""
    end = s.e.request.end_ns if s.e.request.end_ns is not None else s.end_ns
    lives = [*s.failures, *([s.life] if s.life else [])]
    times = [
        x.exit_ns for x in lives
        if x.exit_ns is not None and s.start_ns <= x.exit_ns <= end and x.exit_ns >= end - _DEATH_NS
    ]  # fmt: skip
    return max(times, default=None)


def outcome_of(s: Scene) -> Outcome:
    req = s.e.request
    if req.why == "client_gone":
        return "client_gone"
    if req.why == "server_gone":
        return "server_died"
    hop = s.e.hop
    if hop is not None and hop.why == "server_gone" and _runner_died(s) is not None:
        return "server_died"  # though the front ended its own reply in good order
    if scene.failed(req):
        return "server_died" if _runner_died(s) is not None else "server_error"
    if req.why == "complete" or (req.why == "gap" and scene.token_ns(req) is not None):
        return "ok"
    return "open"


def _died_in(s: Scene, outcome: Outcome, tiled: Phases) -> str | None:
    """The phase at the end, or when the runner died, of a request that got no token."""
    if scene.token_ns(s.e.request) is not None or outcome in ("ok", "open") or not tiled.intervals:
        return None
    died = _runner_died(s) if outcome == "server_died" else None
    at = s.end_ns if died is None else died
    last = [x for x in tiled.intervals if x.start_ns < at] or list(tiled.intervals[:1])
    return last[-1].stage.partition(".")[0]


def _reasons(s: Scene, t: Timeline, tiled: Phases) -> list[str]:
    """Codes of what could make a figure of this request wrong."""
    e, req = s.e, s.e.request
    got_token = scene.token_ns(req) is not None
    found = {
        "records.lost": _lost(e),
        "unreadable": req.unreadable is not None,
        "began.late": req.arrival_ns < e.began_ns or _begun_before(s, tiled),
        "armed.late": bool(t.unseen) and not scene.off_for_good(e, GROUP),
        "end.unseen": req.why == "gap",
        "open": req.end_ns is None and not got_token,
        "read.unseen": req.read_ns is None,
        "hop.unseen": not t.engine_seen and _routed(s) and got_token,
        "probes.missing": _probes_missing(s, t, tiled),
        "engine.unseen": not t.engine_seen and not (_routed(s) and got_token),
        "weights.unseen": bool(tiled.stages_ns.get("spawn.exec")) and not s.weights and got_token,
        "weights.guessed": s.weights_guessed and bool(tiled.phases_ns["load"]),
    }
    return [code for code, holds in found.items() if holds]


def _probes_missing(s: Scene, t: Timeline, tiled: Phases) -> bool:
    """Whether something may have been loaded that nothing here could tell of."""
    loaded = bool(tiled.phases_ns["load"])
    files = bool(t.unseen) or loaded or not s.e.resident_before
    return (files and scene.off_for_good(s.e, GROUP)) or (
        loaded and scene.off_for_good(s.e, "cache")
    )


def _lost(e: Evidence) -> bool:
    """Whether so much was lost that a figure could be wrong.

    `KIND.lookup` is an event whose file the kernel could not tell at that moment, a page fault or
    an unmapping most often of no file at all: a few are no loss.
    """
    unplaced = sum(x.count for x in e.lost if x.kind.endswith(".lookup"))
    return unplaced > _UNPLACED or any(not x.kind.endswith(".lookup") for x in e.lost)


def _routed(s: Scene) -> bool:
    """Whether the front never runs a model itself."""
    front = scene.life_of(s.e, s.e.front, s.end_ns)
    return front is not None and scene.role(front) == "front"


def _begun_before(s: Scene, tiled: Phases) -> bool:
    """Whether a runner older than the daemon may have been loading while the front waited."""
    older = s.life is not None and s.life.fork_ns is None and not s.front_serves
    kept = tiled.stages_ns.get("queue.front", 0) >= ROUTING_NS
    return older and kept and s.e.resident_before is None


def _explain(found: list[str]) -> str | None:
    return "; ".join(f"{c}: {codes.meaning(c, 'incomplete')}" for c in found) or None


def _is_warm(tiled: Phases, t: Timeline, ttft: int | None, outcome: Outcome, e: Evidence) -> bool:
    if ttft is None or outcome != "ok" or _lost(e) or t.unseen or e.request.why == "gap":
        return False
    if any(tiled.stages_ns.get(x) for x in ("queue.switch", "queue.drain")):
        return False
    if any(tiled.phases_ns[p] for p in ("evict", "spawn", "init")):
        return False
    cold = tiled.phases_ns["load"] + tiled.phases_ns["transfer"]
    return cold <= max(_WARM_NS, ttft // _WARM_PART)


def _kind(x: Exchange) -> str:
    return f"{kind_of(x.endpoint) or 'other'}/{'stream' if scene.streams(x) else 'whole'}"


def _prompt_tokens(says: Says) -> int | None:
    if says.prompt_tokens is not None:
        return says.prompt_tokens
    return None if says.prompt_n is None else says.prompt_n + (says.cache_n or 0)


def uncached_tokens(says: Says) -> int | None:
    """Prompt tokens the engine had to work on."""
    if says.prompt_n is not None:
        return says.prompt_n
    if says.prompt_tokens is not None:
        return max(0, says.prompt_tokens - (says.cache_n or 0))
    return None


def _since(start: int, at: int | None) -> int | None:
    return None if at is None else max(0, at - start)


def _judged_ns(outcome: Outcome, window: int, ttft: int | None, tiled: Phases) -> int | None:
    """What is held against the baseline: TTFT less decoding.

    Who gave up, or lost the server, has waited at least so long: judged by that.
    """
    if ttft is None:
        return window if outcome in ("client_gone", "server_died") else None
    if outcome == "server_error":
        return None
    return ttft - tiled.stages_ns.get("prefill.decode", 0)


def derive(e: Evidence) -> Derived:
    """Everything concluded about one request; the same evidence gives the same answer."""
    s = scene.of(e)
    t = timeline.build(e)
    tiled = phases.split(t)
    figures = facts.of(e, t)
    model, kind, outcome = facts.model_of(e), _kind(e.request), outcome_of(s)
    token = scene.token_ns(e.request)
    ttft = None if token is None else token - s.start_ns
    missing = _reasons(s, t, tiled)
    says = _says(e)
    window = t.end_ns - t.start_ns
    case = Case(
        evidence=e, timeline=t, phases=tiled, facts=figures, model=model, kind=kind,
        outcome=outcome, took_ns=_judged_ns(outcome, window, ttft, tiled),
        uncached_tokens=uncached_tokens(says), complete=not missing,
    )  # fmt: skip
    streamed = scene.streams(e.request)
    first, second = e.request.first_token_ns, e.request.second_token_ns
    answer = e.request.first_answer_ns
    tokens = says.completion_tokens if says.completion_tokens is not None else says.predicted_n
    return Derived(
        evidence=e, model=model, kind=kind, outcome=outcome,
        died_in=_died_in(s, outcome, tiled), ttft_ns=ttft, window_ns=window,
        first_decode_ns=None if first is None or not streamed else _since(first, second),
        first_answer_ns=_since(s.start_ns, answer),
        prompt_tokens=_prompt_tokens(says), cached_tokens=says.cache_n,
        tokens=tokens if tokens is not None else e.request.tokens,
        timeline=t, phases=tiled, facts=figures, spike=attribution.judge(case),
        warm=_is_warm(tiled, t, ttft, outcome, e), complete=not missing,
        incomplete_because=_explain(missing),
    )  # fmt: skip


def warm_record(d: Derived) -> Warm | None:
    """What the history keeps of a warm request, for the baseline; decoding is left out."""
    if not d.warm or d.ttft_ns is None or d.model is None:
        return None
    return Warm(
        ts_ns=d.timeline.start_ns,
        server=d.evidence.server,
        model=d.model,
        kind=d.kind,
        ttft_ns=d.ttft_ns - d.phases.stages_ns.get("prefill.decode", 0),
        prompt_tokens=uncached_tokens(_says(d.evidence)),
        phases_ns=attribution.work_ns(d.phases),
        clocks_mhz=clocks.of_prompt(d.evidence, d.phases),
    )
