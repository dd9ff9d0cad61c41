"""Why the dominant phase was what it was: antecedents that the evidence shows."""

from __future__ import annotations

from collections.abc import Iterator

from tracer import scene, startup
from tracer.derived import Facts, Phases
from tracer.eviction import ENDING
from tracer.evidence import Evidence, Life
from tracer.records import Span
from tracer.scene import Scene, may_run_models
from tracer.startup import Start
from tracer.weights import FAULTS, PAGE

_SIGKILL = 9
_CRASHES = (4, 6, 7, 8, 11)  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV
#: Page faults that bring in at least this share of what came from disk one page each.
_PAGEWISE_SHARE = 2
_MANY_FAULTS = 1000
#: More than the file by this part was read again.
_REFAULT_PART = 20
#: Less than a hundredth of the weights is no news about the page cache.
_SOME_PART = 100


def total_size(e: Evidence, facts: Facts) -> int:
    """Bytes of this request's weight files."""
    named = set(facts.weights)
    return sum(f.size for f in e.files if f.path and f.path.rpartition("/")[2] in named)


def read_from_disk(e: Evidence, facts: Facts) -> bool:
    """More than noise came from the disk."""
    bytes_ = facts.weights_bytes_from_disk or 0
    return bytes_ * _SOME_PART >= max(total_size(e, facts), _SOME_PART)


def death_of(s: Scene, life: Life) -> str | None:
    """What ended a runner that was not meant to end; None for a stop in good order."""
    if life.exit_ns is None or life.exit_signal in _CRASHES:
        return None if life.exit_ns is None else "died.signal"
    sent = [x for x in life.signals if x.ts_ns <= (life.exit_ns or 0) and x.signal in ENDING]
    if life.exit_signal == _SIGKILL and any(x.sender is None for x in sent):
        return "died.oom"
    senders = scene.descendants(s.e.lives, s.e.front) - {life.tgid}
    if any(x.sender in senders for x in sent):
        return "died.killed_by_front"
    return "died.signal" if life.exit_signal else None


def _deaths(s: Scene, starts: list[Start]) -> Iterator[str]:
    """Deaths of runners of this model: its own, those before it, the one it replaces."""
    for life in s.failures:
        yield death_of(s, life) or ""
    if s.life and s.life.exit_ns is not None and s.life.exit_ns <= s.end_ns:
        yield death_of(s, s.life) or ""
    if not starts:
        return
    for life in s.e.lives:
        gone = life.exit_ns
        if life is s.life or life in s.failures or gone is None or gone > starts[0].begin_ns:
            continue
        if may_run_models(s.e, life) and not _other_model(s, life):
            death = death_of(s, life)
            # A front that kills an idle runner makes room; one that died by itself did not.
            if death in ("died.signal", "died.oom"):
                yield death


def _other_model(s: Scene, life: Life) -> bool:
    """Whether an old runner evidently held another model than this request's."""
    mine = s.life.command if s.life else None
    if mine is None or life.command is None:
        return False
    if mine.model_path and life.command.model_path:
        return mine.model_path != life.command.model_path
    return mine.model != life.command.model


def _replaced_same(s: Scene, starts: list[Start]) -> Iterator[Life]:
    """Old runners of the same weights that went before this one came."""
    for life in s.e.lives:
        if life is s.life or life in s.failures or not may_run_models(s.e, life):
            continue
        if life.exit_ns is not None and life.exit_ns <= starts[0].begin_ns:
            path = life.command.model_path if life.command else None
            mine = s.life.command.model_path if s.life and s.life.command else None
            if path is not None and path == mine:
                yield life


def _unloaded(s: Scene, starts: list[Start], deaths: list[str]) -> Iterator[str]:
    """The same weights had been here: with other options, or until it was idle too long."""
    if not starts:
        return
    before = list(_replaced_same(s, starts))
    new = s.life.command if s.life else None
    if any(x.command and new and x.command.options != new.options for x in before):
        yield "options.changed"
    elif starts[-1].wake or (before and not deaths and before[-1].exit_ns is not None):
        gone = max((x.exit_ns or 0 for x in before), default=0)
        if starts[-1].wake or gone < s.start_ns:
            yield "idle.timeout"


def _pagewise(spans: list[Span], facts: Facts) -> bool:
    """Page faults of one page each brought what came from disk."""
    count = sum(x.count for x in spans if x.op == "fault_major")
    count = count or sum(x.count for x in spans if x.op in FAULTS)
    disk = facts.weights_bytes_from_disk or 0
    return count >= _MANY_FAULTS and count * PAGE * _PAGEWISE_SHARE >= disk > 0


def of(e: Evidence, phases: Phases, facts: Facts) -> tuple[str, ...]:
    """Antecedents, in the order of the chain: what died or was unloaded, then how weights came."""
    s = scene.of(e)
    starts = startup.of(s)
    deaths = [d for d in _deaths(s, starts) if d]
    found = [*deaths, *_unloaded(s, starts, deaths)]
    if phases.phases_ns["load"] and read_from_disk(e, facts):
        size = total_size(e, facts)
        spans = s.spans_of(s.tree)
        if not starts and facts.processes_started == 0:
            found.append("evicted.pagecache")
        if _pagewise(spans, facts):
            found.append("load.readahead")
        if size and (facts.weights_bytes_from_disk or 0) > size + size // _REFAULT_PART:
            found.append("load.refault")
    return tuple(dict.fromkeys(found))
