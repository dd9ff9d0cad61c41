"""Why the dominant phase was what it was: antecedents that the evidence shows."""

from __future__ import annotations

from collections.abc import Iterator

from tracer import device, eviction, scene, spinup, startup
from tracer.derived import Facts, Phases
from tracer.eviction import CRASHES, ENDING
from tracer.evidence import Evidence, Life
from tracer.facts import own_files
from tracer.records import Span
from tracer.scene import Scene, may_run_models
from tracer.startup import Start
from tracer.weights import FAULTS, PAGE, share

_SIGKILL = 9
#: Page faults that bring in at least this share of what came from disk one page each.
_PAGEWISE_SHARE = 2
_MANY_FAULTS = 1000
#: More than the file by this part was read again.
_REFAULT_PART = 20
#: Less than a hundredth of the weights is no news about the page cache.
_SOME_PART = 100


def total_size(e: Evidence) -> int:
    """Bytes of this request's weight files."""
    return sum(f.size for f in own_files(scene.of(e)))


def read_from_disk(e: Evidence, facts: Facts) -> bool:
    """More than noise came from the disk."""
    bytes_ = facts.weights_bytes_from_disk or 0
    return bytes_ * _SOME_PART >= max(total_size(e), _SOME_PART)


def evicted_other(e: Evidence) -> str | None:
    """The model of a runner that was stopped to make room, if it held another one.

    Also where that was before this request came, which then waited for what followed.
    """
    s = scene.of(e)
    starts = startup.of(s)
    gone = eviction.of(s, starts[0] if starts else None)
    names = [x.life.command.model for x in gone if x.life.command and _other_weights(s, x.life)]
    return next((name for name in names if name is not None), None)


def _other_weights(s: Scene, life: Life) -> bool:
    mine, old = s.life.command if s.life else None, life.command
    if mine is None or old is None:
        return True
    return (mine.model_path or mine.model) != (old.model_path or old.model)


def death_of(s: Scene, life: Life) -> str | None:
    """What ended a runner that was not meant to end; None for a stop in good order."""
    if life.exit_ns is None or life.exit_signal in CRASHES:
        return None if life.exit_ns is None else "died.signal"
    sent = [x for x in life.signals if x.ts_ns <= (life.exit_ns or 0) and x.signal in ENDING]
    if life.exit_signal == _SIGKILL and any(
        x.sender is None and x.signal == _SIGKILL for x in sent
    ):
        return "died.oom"
    senders = scene.descendants(s.e.lives, s.e.front) - {life.tgid}
    if any(x.sender in senders for x in sent):
        return "died.killed_by_front"
    return "died.signal" if life.exit_signal or (life.exit_code and not sent) else None


def _predecessor(s: Scene, start: Start) -> Life | None:
    """The last runner of the same weights that was gone before this one began."""
    mine = s.life.command if s.life else None
    if start.wake or mine is None:
        return None
    gone = [
        x
        for x in s.e.lives
        if x is not s.life
        and x not in s.failures
        and may_run_models(s.e, x)
        and x.exit_ns is not None
        and x.exit_ns <= start.begin_ns
        and not _other_weights(s, x)
    ]
    return max(gone, key=lambda x: x.exit_ns or 0, default=None)


def _deaths(s: Scene, before: Life | None, starting: bool) -> Iterator[str]:
    """Deaths of runners of this model: of those started for this request, and the last one."""
    own = s.life if s.life and s.life.exit_ns is not None and s.life.exit_ns <= s.end_ns else None
    for life in (*s.failures, own):
        death = death_of(s, life) if life else None
        if death and (starting or death != "died.killed_by_front"):
            yield death
    death = death_of(s, before) if before else None
    # A front that kills an idle runner makes room; a runner that died by itself did not.
    if death in ("died.signal", "died.oom"):
        yield death


def _unloaded(s: Scene, start: Start, before: Life | None, same: bool) -> str | None:
    """The same weights had been here: with other options, or until they were idle too long."""
    if start.wake:
        return "idle.timeout" if same and s.e.previous_model is not None else None
    if before is None or before.exit_ns is None or not same or _came_between(s, before, start):
        return None
    asked = eviction.trigger(s, start.begin_ns, start.tgid)
    if before.exit_ns < min(s.start_ns, s.start_ns if asked is None else asked.arrival_ns):
        return "idle.timeout"
    old, new = before.command, s.life.command if s.life else None
    return "options.changed" if old and new and old.options != new.options else None


def _came_between(s: Scene, before: Life, start: Start) -> bool:
    """Another model was started after the last runner of these weights had gone."""
    return any(
        x.fork_ns is not None and (before.exit_ns or 0) <= x.fork_ns < start.begin_ns
        for x in s.e.lives
        if x is not s.life and may_run_models(s.e, x) and _other_weights(s, x)
    )


def _pagewise(spans: list[Span], facts: Facts) -> bool:
    """Page faults of one page each brought what came from disk."""
    count = sum(x.count for x in spans if x.op == "fault_major")
    count = count or sum(x.count for x in spans if x.op in FAULTS)
    disk = facts.weights_bytes_from_disk or 0
    return count >= _MANY_FAULTS and count * PAGE * _PAGEWISE_SHARE >= disk > 0


def _inserted(s: Scene, facts: Facts) -> int:
    """Bytes of its weights that came into the page cache; direct reads may repeat themselves."""
    direct = [x for x in s.spans_of(s.tree) if x.op == "read_direct"]
    past = sum(share(x.bytes, x.ts_ns, x.end_ns, s.start_ns, s.end_ns) for x in direct)
    return (facts.weights_bytes_from_disk or 0) - past


def of(e: Evidence, phases: Phases, facts: Facts) -> tuple[str, ...]:
    """Antecedents, in the order of the chain: what died or was unloaded, then how weights came."""
    s = scene.of(e)
    starts = startup.of(s)
    before = _predecessor(s, starts[0]) if starts else None
    found = list(_deaths(s, before, bool(starts)))
    if starts and not found:
        found.append(_unloaded(s, starts[-1], before, facts.switched_from is None) or "")
    if phases.phases_ns["load"] and read_from_disk(e, facts):
        size = total_size(e)
        spans = s.spans_of(s.tree)
        again = size and _inserted(s, facts) > size + size // _REFAULT_PART
        if again:
            found.append("load.refault")
        elif not starts and facts.processes_started == 0:
            found.append("evicted.pagecache")
        if spinup.of(s):
            found.append("load.spinup")
        if _pagewise(spans, facts):
            found.append("load.readahead")
    if phases.stages_ns.get("init.compile") and device.misses(s) and not device.hits(s):
        found.append("cache.missing")
    return tuple(dict.fromkeys(f for f in found if f))
