"""One request's evidence as figures. None is unknown, never 0."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from tracer import drivers, scene, unseen
from tracer.arming import GROUP, PAGING
from tracer.derived import Facts, Timeline
from tracer.evidence import Evidence
from tracer.records import File, Span
from tracer.scene import Key, Range, Scene
from tracer.servers import name_model, same_model
from tracer.weights import BULK_BYTES, FAULTS, PAGE, READS, Disk, share

_ENDINGS = (".gguf", ".safetensors", ".bin", ".pt", ".pth")


def name_of(s: Scene, file: File) -> str:
    """The file's own name, else the one on the command line, else its inode."""
    if file.path:
        return PurePosixPath(file.path).name
    path = s.life.command.model_path if s.life and s.life.command else None
    if path and len(own_files(s)) == 1:
        return PurePosixPath(path).name
    return f"inode-{file.ino}"


def _stem(name: str) -> str:
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name


def model_of(e: Evidence) -> str | None:
    """As the request names it, else the reply, the runner's command line, its weights file."""
    both = [x for x in (e.request, e.hop) if x is not None]
    s = scene.of(e)
    named = name_model(
        next((x.model for x in both if x.model), None),
        next((x.reply_model for x in both if x.reply_model), None),
        s.life.command if s.life else None,
    )
    if named is not None:
        return named
    files = own_files(s)
    return _stem(name_of(s, files[0])) if files else None


def own_files(s: Scene) -> list[File]:
    """Weights of this request's runner: what it touched, else what its command line names."""
    tgids = _own(s)
    touched = {(x.dev, x.ino) for x in s.e.opens if x.tgid in tgids}
    touched |= {(x.dev, x.ino) for x in s.e.spans if x.tgid in tgids}
    touched |= {(x.dev, x.ino) for x in s.e.inserts if x.tgid in tgids}
    found = [f for key, f in s.weights.items() if key in touched]
    path = s.life.command.model_path if s.life and s.life.command else None
    if not found and path:
        found = [f for f in s.weights.values() if f.path == path]
    if not found and len(s.weights) == 1 and s.e.resident_before:
        found = list(s.weights.values())
    return sorted(found, key=lambda f: (-f.size, f.path or "", f.dev, f.ino))


def of(e: Evidence, t: Timeline) -> Facts:
    s = scene.of(e)
    files = own_files(s)
    spans = _own_spans(s)
    off = scene.off_for_good(e, GROUP)
    known = s.runner is not None and not off and not t.unseen
    pages_known = not unseen.off(e, "cache", s.start_ns, s.end_ns)
    faults_known = s.runner is not None and not unseen.off(e, "faults", s.start_ns, s.end_ns)
    minor_known = faults_known and not unseen.off(e, PAGING, s.start_ns, s.end_ns)
    disk = _from_disk(s, files, spans) if known else _accounted(s, files, t.unseen)
    own = [x for x in e.lives if x.tgid != e.front and scene.role(x) != "decoy"]
    forks = [x.fork_ns for x in own if x.fork_ns is not None]
    exits = [x.exit_ns for x in own if x.exit_ns is not None]
    model = model_of(e)
    return Facts(
        weights=tuple(dict.fromkeys(name_of(s, f) for f in files)),
        weights_bytes=_brought(s, files, spans) if known else None,
        weights_bytes_from_disk=disk if pages_known else None,
        major_faults=_faults(s, spans, "fault_major") if faults_known else None,
        minor_faults=_faults(s, spans, "fault_minor") if minor_known else None,
        gpu_calls=_gpu_calls(s),
        processes_started=sum(t.start_ns <= x <= t.end_ns for x in forks),
        processes_exited=sum(t.start_ns <= x <= t.end_ns for x in exits),
        reclaim_ns=None,
        resident_before=e.resident_before,
        switched_from=None if same_model(e.previous_model, model) else e.previous_model,
    )


def _gpu_calls(s: Scene) -> int | None:
    """Calls into drivers of accelerators by those that were to serve it."""
    if s.runner is None or not drivers.known(s.e, s.start_ns, s.end_ns):
        return None
    return drivers.count(s, _own(s))


def _own(s: Scene) -> frozenset[int]:
    trees = [s.tree, *(scene.descendants(s.e.lives, x.tgid) for x in s.failures)]
    return frozenset().union(*trees)


def _own_spans(s: Scene) -> list[Span]:
    return [x for x in s.spans_of(_own(s)) if x.ts_ns < s.end_ns and x.end_ns >= s.start_ns]


def _within(s: Scene, span: Span, amount: int) -> int:
    return share(amount, span.ts_ns, span.end_ns, s.start_ns, s.end_ns)


def _faults(s: Scene, spans: list[Span], op: str) -> int:
    return sum(_within(s, x, x.count) for x in spans if x.op == op)


def _from_disk(s: Scene, files: list[File], spans: list[Span]) -> int:
    disk = Disk(s.e.inserts)
    inserted = sum(disk.bytes((f.dev, f.ino), s.start_ns, s.end_ns) for f in files)
    return inserted + sum(_within(s, x, x.bytes) for x in spans if x.op == "read_direct")


def _accounted(s: Scene, files: list[File], missed: Iterable[Range]) -> int | None:
    """What is always counted: pages that came in, or what storage gave in the time unseen."""
    if s.runner is None or scene.off_for_good(s.e, GROUP):
        return None
    counts = [unseen.read_meanwhile(s, tgid, gap) for gap in missed for tgid in sorted(s.tree)]
    known = [found[1] for found in counts if found is not None]
    if not counts or len(known) < len(counts):
        return None
    return max(_from_disk(s, files, _own_spans(s)), sum(known))


def _brought(s: Scene, files: list[File], spans: list[Span]) -> int:
    """Distinct file bytes: mapped with populate or read in bulk, else inserted or faulted."""
    disk = Disk(s.e.inserts)
    total = 0
    for f in files:
        mine = [x for x in spans if (x.dev, x.ino) == (f.dev, f.ino)]
        mapped = max(
            (x.bytes for x in mine if x.op == "mmap" and x.populate and x.bytes >= BULK_BYTES),
            default=0,
        )
        read: dict[Key, int] = {}
        for x in mine:
            if x.op in READS:
                through = (x.tgid, x.token)
                read[through] = read.get(through, 0) + _within(s, x, x.bytes)
        faulted = sum(_within(s, x, x.count) * PAGE for x in mine if x.op in FAULTS)
        inserted = disk.bytes((f.dev, f.ino), s.start_ns, s.end_ns)
        total += min(f.size, max(mapped, faulted, inserted, *read.values(), 0))
    return total
