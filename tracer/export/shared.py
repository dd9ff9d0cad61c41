"""What several requests' evidence says about the same processes and files, said once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from tracer.derived import Derived
from tracer.evidence import Evidence, Life
from tracer.records import DeviceCall, File, Insert, Memory, Open, Resident, Span, Telemetry

FileKey = tuple[int, int]
Run = TypeVar("Run", Span, Insert, DeviceCall)
Did = Span | Open | DeviceCall
Fact = TypeVar("Fact", Open, Resident, Memory, Telemetry)


@dataclass(slots=True)
class Shared:
    """The union of the evidence of some requests, in order of time.

    `start_ns` to `end_ns` is the time the requests and their evidence cover. `threads` is
    what each thread of a tgid did to files and devices, `roles` what a tgid was to the requests.
    """

    start_ns: int
    end_ns: int
    lives: dict[int, list[Life]]
    files: dict[FileKey, File]
    spans: list[Span]
    threads: dict[int, dict[int, list[Did]]]
    inserts: list[Insert]
    resident: list[Resident]
    memory: list[Memory]
    telemetry: list[Telemetry]
    roles: dict[int, str] = field(default_factory=dict)

    def label(self, dev: int, ino: int) -> str:
        """The name of a file: the last part of its path, else its identity."""
        file = self.files.get((dev, ino))
        if file is not None and file.path:
            return file.path.rstrip("/").rpartition("/")[2] or file.path
        return f"{dev >> 20}:{dev & 0xFFFFF} inode {ino}"

    def is_weights(self, dev: int, ino: int) -> bool:
        """Whether the file is known to hold weights."""
        file = self.files.get((dev, ino))
        return file is not None and file.fmt is not None


def merge(items: Sequence[Derived]) -> Shared:
    """Join the evidence of requests; facts kept by several of them appear once."""
    evidences = [item.evidence for item in items]
    spans = _latest(
        ((one.tid, one.dev, one.ino, one.op, one.ts_ns), one) for e in evidences for one in e.spans
    )
    driven = _latest(
        ((one.tid, one.device, one.what, one.ts_ns), one) for e in evidences for one in e.devices
    )
    inserts = _latest(((one.dev, one.ino, one.ts_ns), one) for e in evidences for one in e.inserts)
    start_ns, end_ns = _bounds(items)
    shared = Shared(
        start_ns=start_ns,
        end_ns=end_ns,
        lives=_lives(evidences),
        files=_files(evidences),
        spans=spans,
        threads=_threads(spans, _once(one for e in evidences for one in e.opens), driven),
        inserts=inserts,
        resident=_once(one for e in evidences for one in e.resident),
        memory=_once(one for e in evidences for one in e.memory),
        telemetry=_once(one for e in evidences for one in e.telemetry),
    )
    _roles(shared, items)
    return shared


def _latest(keyed: Iterable[tuple[object, Run]]) -> list[Run]:
    """The longest version of each span or insertion: a later one replaces its beginnings."""
    best: dict[object, Run] = {}
    for key, one in keyed:
        if key not in best or best[key].end_ns < one.end_ns:
            best[key] = one
    return sorted(best.values(), key=lambda one: one.ts_ns)


def _once(records: Iterable[Fact]) -> list[Fact]:
    return sorted(dict.fromkeys(records), key=lambda one: one.ts_ns)


def _threads(
    spans: list[Span], opens: list[Open], driven: list[DeviceCall]
) -> dict[int, dict[int, list[Did]]]:
    threads: dict[int, dict[int, list[Did]]] = {}
    did: list[Did] = [*opens, *spans, *driven]
    for one in did:
        threads.setdefault(one.tgid, {}).setdefault(one.tid, []).append(one)
    return threads


def _files(evidences: Iterable[Evidence]) -> dict[FileKey, File]:
    files = (one for evidence in evidences for one in evidence.files)
    return {(one.dev, one.ino): one for one in sorted(files, key=lambda one: one.ts_ns)}


def _bounds(items: Iterable[Derived]) -> tuple[int, int]:
    starts: list[int] = []
    ends: list[int] = []
    for item in items:
        evidence = item.evidence
        starts.append(evidence.request.arrival_ns)
        ends.append(request_end(item))
        runs: list[Span | Insert | DeviceCall]
        runs = [*evidence.spans, *evidence.inserts, *evidence.devices]
        starts.extend(one.ts_ns for one in runs)
        ends.extend(one.end_ns for one in runs)
        if evidence.hop is not None and evidence.hop.end_ns is not None:
            ends.append(evidence.hop.end_ns)
    return min(starts, default=0), max(ends, default=0)


def request_end(item: Derived) -> int:
    """When a request was over, or as far as it was followed."""
    request = item.evidence.request
    return max(request.arrival_ns + max(item.window_ns, 0), request.end_ns or 0)


def began(life: Life) -> int | None:
    """When a process began, as far as it is known."""
    return life.start_ns if life.fork_ns is None else life.fork_ns


def _lives(evidences: Iterable[Evidence]) -> dict[int, list[Life]]:
    by_tgid: dict[int, list[Life]] = {}
    known = [life for evidence in evidences for life in evidence.lives]
    for life in sorted(known, key=lambda one: (one.tgid, began(one) or 0)):
        mine = by_tgid.setdefault(life.tgid, [])
        if mine and _same(mine[-1], life):
            mine[-1] = _join(mine[-1], life)
        else:
            mine.append(life)
    return by_tgid


def _same(earlier: Life, later: Life) -> bool:
    """A pid is one process at a time: the same unless one ended before the other began."""
    begin = began(later)
    if earlier.fork_ns is not None and later.fork_ns is not None:
        return earlier.fork_ns == later.fork_ns
    return begin is None or earlier.exit_ns is None or begin < earlier.exit_ns


def _join(earlier: Life, later: Life) -> Life:
    """Of each field, what is known; of both, what was known later."""
    told = {
        name: value
        for one in (earlier, later)
        for name in Life.__struct_fields__
        if (value := getattr(one, name)) is not None
    }
    signals = dict.fromkeys((*earlier.signals, *later.signals))
    told["signals"] = tuple(sorted(signals, key=lambda one: one.ts_ns))
    return msgspec.structs.replace(earlier, **told)


def _roles(shared: Shared, items: Iterable[Derived]) -> None:
    for item in items:
        evidence = item.evidence
        for life in evidence.lives:
            model = life.command.model if life.command is not None else None
            role = life.command.role if life.command is not None else "helper"
            shared.roles.setdefault(life.tgid, f"{role} of {model}" if model else role)
    for item in items:
        if item.evidence.runner is not None:
            model = item.model or "an unknown model"
            shared.roles[item.evidence.runner] = f"runner of {model}"
    for item in items:
        front = item.evidence.front
        same = front == item.evidence.runner
        shared.roles[front] = "front and runner" if same else "front"
