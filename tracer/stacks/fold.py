"""What ran in each stage of a request: samples put into stages by time. Pure.

A slot of time belongs to the stage that holds most of it. Counted are the processes that worked
for this request: not the runners of other models, except where these have to go first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from tracer.derived import Interval, Phases
from tracer.evidence import Evidence
from tracer.records import Samples

#: Functions and modules told of each stage, and fewer samples than this say nothing.
TOP = 5
TOP_MODULES = 3
FEW = 5
_CALLERS = 3
#: Phases in which others' runners are what is waited for.
_OF_OTHERS = ("queue", "evict")

Place = tuple[str, int]
Frames = tuple[Place, ...]


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """`name` None: no name is known for any of its code in that module.

    `callers`: of its most frequent stack, the nearest first, as far as they have names.
    """

    name: str | None
    module: str
    samples: int
    share: float
    callers: tuple[str, ...] = ()


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """A file that code ran from."""

    module: str
    samples: int
    share: float


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """`processors`: how many were kept busy on average. The most frequent come first."""

    stage: str
    samples: int
    processors: float
    modules: tuple[Module, ...]
    functions: tuple[Function, ...]


def stages(evidence: Evidence, phases: Phases) -> tuple[Stage, ...]:
    """Stages with samples, in the order in which they began."""
    intervals = sorted(phases.intervals, key=lambda i: (i.start_ns, i.end_ns))
    found: dict[str, Counter[Frames]] = {}
    periods: Counter[str] = Counter()
    others = _others(evidence)
    for samples in evidence.samples:
        stage = _stage_of(samples, intervals)
        if stage is None:
            continue
        if samples.tgid in others and stage.partition(".")[0] not in _OF_OTHERS:
            continue
        counted = found.setdefault(stage, Counter())
        for count, frames in _stacks(samples):
            counted[frames] += count
            periods[stage] += count * samples.period_ns
    names = names_of(evidence)
    return tuple(
        Stage(
            stage=stage,
            samples=counted.total(),
            processors=round(periods[stage] / max(1, phases.stages_ns.get(stage, 0)), 2),
            modules=_modules(counted),
            functions=_functions(counted, names),
        )
        for stage, counted in found.items()
        if counted.total() >= FEW
    )


def names_of(evidence: Evidence) -> dict[Place, str]:
    """Names of functions by module and offset."""
    names = evidence.names
    if names is None:
        return {}
    return {(names.modules[m], offset): names.functions[f] for m, offset, f in names.at}


def places(evidence: Evidence) -> list[tuple[int, str, int]]:
    """(process, module, offset) of all code that was found running, the most frequent first."""
    found: Counter[tuple[int, str, int]] = Counter()
    for samples in evidence.samples:
        for count, frames in _stacks(samples):
            for n, (module, offset) in enumerate(frames):
                # Who called matters less than where it was.
                found[samples.tgid, module, offset] += count << 8 if n == 0 else count
    return [place for place, _ in sorted(found.items(), key=lambda item: (-item[1], item[0]))]


def _others(evidence: Evidence) -> set[int]:
    """Runners that worked for others."""
    found = {other.runner for other in evidence.others if other.runner is not None}
    roles = {life.tgid: life.command.role for life in evidence.lives if life.command is not None}
    found |= {tgid for tgid, role in roles.items() if role == "runner"}
    return found - {evidence.runner, evidence.front} if evidence.runner is not None else set()


def _stage_of(samples: Samples, intervals: Sequence[Interval]) -> str | None:
    """The stage that holds most of the time of the samples; the first of several."""
    at = max(0, bisect_right(intervals, samples.ts_ns, key=lambda i: i.start_ns) - 1)
    best: str | None = None
    most = 0
    held: defaultdict[str, int] = defaultdict(int)
    for interval in intervals[at:]:
        if interval.start_ns >= samples.end_ns:
            break
        shared = min(interval.end_ns, samples.end_ns) - max(interval.start_ns, samples.ts_ns)
        held[interval.stage] += max(0, shared)
        if held[interval.stage] > most:
            best, most = interval.stage, held[interval.stage]
    return best


def _stacks(samples: Samples) -> Iterator[tuple[int, Frames]]:
    for count, *frames in samples.stacks:
        pairs = zip(frames[::2], frames[1::2], strict=True)
        yield count, tuple((samples.modules[m], offset) for m, offset in pairs)


def _modules(counted: Counter[Frames]) -> tuple[Module, ...]:
    total = counted.total()
    sums: Counter[str] = Counter()
    for frames, count in counted.items():
        sums[frames[0][0]] += count
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Module(module=module, samples=count, share=round(count / total, 4))
        for module, count in ordered[:TOP_MODULES]
    )


def _functions(counted: Counter[Frames], names: dict[Place, str]) -> tuple[Function, ...]:
    total = counted.total()
    sums: Counter[tuple[str | None, str]] = Counter()
    chains: defaultdict[tuple[str | None, str], Counter[tuple[str, ...]]] = defaultdict(Counter)
    for frames, count in counted.items():
        key = (names.get(frames[0]), frames[0][0])
        sums[key] += count
        chains[key][_callers(frames[1:], names)] += count
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1]))
    return tuple(
        Function(
            name=name,
            module=module,
            samples=count,
            share=round(count / total, 4),
            callers=min(chains[name, module].items(), key=lambda item: (-item[1], item[0]))[0],
        )
        for (name, module), count in ordered[:TOP]
    )


def _callers(frames: Frames, names: dict[Place, str]) -> tuple[str, ...]:
    found: list[str] = []
    for place in frames[:_CALLERS]:
        name = names.get(place)
        if name is None:
            break
        found.append(name)
    return tuple(found)
