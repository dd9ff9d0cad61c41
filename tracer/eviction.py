"""The previous model is stopped and its memory given back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer.derived import Interval
from tracer.evidence import Life, Other
from tracer.scene import Scene, may_run_models
from tracer.servers import same_model
from tracer.startup import Start

#: SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM: signals that ask a process to end.
ENDING = (1, 2, 3, 9, 15)
#: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: who ends by these was not stopped.
CRASHES = (4, 6, 7, 8, 11)
#: Fronts that ask a runner to stop over a pipe; a signal is only their last resort.
_ASKS_BY_PIPE = ("llama-server",)


@dataclass(frozen=True, slots=True)
class Eviction:
    """`begin_ns` .. `gone_ns`: the old runner is stopped; then memory is waited for."""

    life: Life
    begin_ns: int
    gone_ns: int | None


def trigger(scene: Scene, begin_ns: int, runner: int) -> Other | None:
    """The earliest other request for this runner that was waiting when its start began."""
    waiting = [
        o for o in scene.others
        if o.runner == runner and o.arrival_ns <= begin_ns
        and (o.end_ns is None or o.end_ns >= begin_ns)
    ]  # fmt: skip
    return waiting[0] if waiting else None


def _last_work_ns(scene: Scene, life: Life) -> int | None:
    gone = life.exit_ns if life.exit_ns is not None else scene.end_ns
    ends = [
        min(o.end_ns, gone) for o in scene.others if o.runner == life.tgid and o.end_ns is not None
    ]
    return max(ends, default=None)


def _begin_ns(scene: Scene, life: Life, read_ns: int) -> int:
    after_work = max(read_ns, _last_work_ns(scene, life) or read_ns)
    asked = [s.ts_ns for s in life.signals if s.signal in ENDING]
    asked = [t for t in asked if life.exit_ns is None or t <= life.exit_ns]
    if not asked:
        return after_work
    told = max(read_ns, min(asked))
    return min(told, after_work) if scene.e.program in _ASKS_BY_PIPE else told


def _made_room_for_another(scene: Scene, life: Life, until_ns: int, own: set[int | None]) -> bool:
    """Another model's runner was started after this one left and before ours."""
    return any(
        x.fork_ns is not None and life.exit_ns is not None and life.exit_ns <= x.fork_ns < until_ns
        for x in scene.e.lives
        if x.tgid not in own and x is not life and may_run_models(scene.e, x)
    )


def _crashed(scene: Scene, life: Life) -> bool:
    """Whether a runner of this very model ended by itself: it made room for nobody."""
    model = life.command.model if life.command is not None else None
    return life.exit_signal in CRASHES and same_model(model, scene.e.request.model)


def of(scene: Scene, start: Start | None) -> list[Eviction]:
    """Old runners that had to go before `start`; without one, before a request that saw none."""
    if start is None and (scene.hop_ns is not None or scene.front_serves):
        return []
    since, until = scene.start_ns, scene.end_ns
    read = scene.read_end_ns
    if start is not None:
        first = trigger(scene, start.begin_ns, start.tgid)
        if first is not None and first.arrival_ns < since:
            since = read = first.arrival_ns
        until = start.begin_ns if not start.wake else start.access_ns or start.begin_ns
    own = {scene.runner, *(x.tgid for x in scene.failures)}
    found = []
    for life in scene.e.lives:
        if life.tgid in own or not may_run_models(scene.e, life):
            continue
        if life.fork_ns is not None and life.fork_ns >= since:
            continue
        asked = any(s.signal in ENDING and since <= s.ts_ns < until for s in life.signals)
        left = life.exit_ns is not None and since <= life.exit_ns <= until
        if not asked and _crashed(scene, life):
            continue
        if left and _made_room_for_another(scene, life, until, own):
            continue
        if left or (asked and (life.exit_ns is None or life.exit_ns > since)):
            found.append(Eviction(life, _begin_ns(scene, life, read), life.exit_ns))
    return [x for x in found if x.begin_ns < until]


def claims(scene: Scene, evictions: list[Eviction], start: Start | None) -> Iterator[Interval]:
    if not evictions:
        return
    until = scene.end_ns
    if start is not None:
        until = start.begin_ns if not start.wake else start.access_ns or start.begin_ns
    for x in evictions:
        end = until if x.gone_ns is None else min(x.gone_ns, until)
        yield from scene.claim("evict.stop", x.begin_ns, end, tgid=x.life.tgid)
    gone = [x.gone_ns for x in evictions if x.gone_ns is not None]
    if gone:
        yield from scene.claim("evict.wait", max(gone), until)
