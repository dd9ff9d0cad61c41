"""What calls into libraries tell: context, key-value cache, warm-up, uploads, compilation, and
when the prompt was begun. By entries alone, so all of it is an estimate but the counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.derived import Interval
from tracer.evidence import Life
from tracer.records import Cached, Call
from tracer.scene import Scene, length, union
from tracer.startup import Start

#: Less is no upload of weights: tokens and positions go to the device at each step.
UPLOAD_BYTES = 1 << 20
#: A call into a driver's compiler that took less has compiled nothing to speak of.
COMPILE_NS = 20_000_000
#: A miss whose result was written later than this was written for another reason.
_MISS_NS = 600_000_000_000
_LAYERS = ("engine", "runtime", "driver", "compiler")
#: Programs that compile; their time is compilation, whoever started them.
COMPILERS = frozenset(
    {"nvcc", "ptxas", "cicc", "cudafe++", "fatbinary", "hipcc", "clang", "clang++", "gcc", "g++",
     "cc1", "cc1plus", "ninja", "lld", "ld", "as"}
)  # fmt: skip


def decodes(scene: Scene) -> list[Call]:
    """Runs of decoding by the runner, in order."""
    return [c for c in scene.e.calls if c.what == "decode" and c.tgid in scene.tree and c.tokens]


def first_decode(
    scene: Scene, since_ns: int, tokens: int | None, alone: bool
) -> tuple[int, bool] | None:
    """When the prompt's tokens were first worked on, and whether their number proves it.

    `tokens`: how many the engine says it worked on. `alone`: nobody else was served meanwhile.
    """
    runs = [c for c in decodes(scene) if since_ns <= c.ts_ns < scene.end_ns]
    if tokens is not None:
        for part in (False, True):
            for i in range(len(runs)):
                if _adds_up(runs[i:], tokens, part):
                    return runs[i].ts_ns, True
    return (runs[0].ts_ns, False) if runs and alone and tokens is None else None


def _adds_up(runs: list[Call], tokens: int, part: bool) -> bool:
    """Whether runs from the first on make up so many tokens. `part`: or a part of the last."""
    left = tokens
    for c in runs:
        size = c.tokens or 0
        if size >= left:
            each = size // max(1, c.count)
            return size == left or (part and each > 0 and left % each == 0)
        left -= size
    return False


def _over_ns(c: Call) -> int:
    """When the last call of a run was over at the latest, as far as it is known."""
    return c.end_ns + (c.last_ns or 0)


def start_claims(scene: Scene, start: Start) -> Iterator[Interval]:
    """A runner's start: device, context, key-value cache, warm-up."""
    last = min(start.ready_ns, scene.end_ns)
    calls = [c for c in scene.e.calls if c.tgid in start.tree and start.begin_ns <= c.ts_ns < last]
    load = start.load_ns
    if load is None:
        return
    for c in calls:
        if c.what == "context" and c.layer == "driver":
            stage = "spawn.device" if c.ts_ns < load else "init.context"
            end = min(_over_ns(c), load) if c.ts_ns < load else min(_over_ns(c), last)
            yield from scene.claim(stage, c.ts_ns, end, estimate=True, tgid=c.tgid, tid=c.tid)
    for c in transfers(scene)[1]:
        if c.tgid in start.tree and load <= c.ts_ns < last:
            yield from scene.claim(
                "load.rest", c.ts_ns, _copied_ns(c), estimate=True, tgid=c.tgid, tid=c.tid
            )
    yield from _context_claims(scene, [c for c in calls if c.ts_ns >= load], last, start)


def _context_claims(scene: Scene, calls: list[Call], last: int, start: Start) -> Iterator[Interval]:
    contexts = [c for c in calls if c.what == "context" and c.layer == "engine"]
    if not contexts:
        return
    made = contexts[0]
    warm = [c for c in calls if c.what == "decode" and c.ts_ns >= made.ts_ns]
    until = warm[0].ts_ns if warm else last
    yield from scene.claim("init.context", made.ts_ns, until, estimate=True, tgid=made.tgid)
    reserved = [c.ts_ns for c in contexts[1:] if c.ts_ns > made.ts_ns]
    kept = [
        c for c in calls
        if c.what == "alloc" and c.layer == "engine"
        and made.ts_ns <= c.ts_ns < min([*reserved, until])
    ]  # fmt: skip
    if kept:
        end = min([*reserved, until])
        yield from scene.claim("init.kv", kept[0].ts_ns, end, estimate=True, tgid=made.tgid)
    if warm:
        ready = last if start.noticed_ns is None else min(last, start.noticed_ns)
        own = [_over_ns(c) for c in calls if c.tid == warm[0].tid]
        end = min(max(own), ready) if own else ready
        yield from scene.claim("init.warmup", until, end, estimate=True, tgid=made.tgid)


def transfers(scene: Scene) -> tuple[list[Call], list[Call]]:
    """Uploads of weights to the device, and copies of weights that stay on the host.

    An engine puts all weights in place by the same calls. What goes to the device is no more than
    the driver made room for; with no room made, there is no device.
    """
    own = [c for c in scene.e.calls if c.tgid in scene.tree]
    found = [
        c for c in own if c.what in ("upload", "copy") and (c.bytes or 0) >= UPLOAD_BYTES
    ]  # fmt: skip
    by_engine = [c for c in found if c.layer == "engine"]
    if not by_engine:
        layers = [c.layer for c in found]
        return [c for c in found if c.layer == min(layers, key=_LAYERS.index)], []
    room = sum(c.bytes or 0 for c in own if c.what == "alloc" and c.layer != "engine")
    device, host = [], []
    for c in by_engine:
        size = c.bytes or 0
        if size <= room:
            room -= size
            device.append(c)
        else:
            host.append(c)
    return device, host


def _copied_ns(c: Call) -> int:
    """When a run of copies was over. What followed the last one may be anything: it took about
    as long as those before."""
    before = c.follow_ns - (c.last_ns or 0)
    usual = before // (c.count - 1) if c.count > 1 else c.last_ns or 0
    return c.end_ns + min(c.last_ns or 0, usual)


def transfer_claims(scene: Scene) -> Iterator[Interval]:
    for c in transfers(scene)[0]:
        yield from scene.claim(
            "transfer.h2d", c.ts_ns, _copied_ns(c), estimate=True, tgid=c.tgid, tid=c.tid
        )


def uploaded(scene: Scene) -> tuple[int, int]:
    """Bytes of weights that went to the device in the window, and ns it took by their entries."""
    device = [
        c for c in transfers(scene)[0]
        if c.end_ns >= scene.start_ns and c.ts_ns <= scene.end_ns
    ]  # fmt: skip
    took = length(union((c.ts_ns, _copied_ns(c)) for c in device))
    return sum(c.bytes or 0 for c in device), took


def misses(scene: Scene) -> list[tuple[Cached, int]]:
    """Look-ups in compile caches that found nothing, and when the result was written."""
    written: dict[tuple[int, int], list[int]] = {}
    for c in scene.e.cached:
        if c.write:
            written.setdefault((c.tgid, c.stem), []).append(c.ts_ns)
    found, seen = [], set()
    for c in scene.e.cached:
        key = (c.tgid, c.stem)
        if c.write or key in seen or c.tgid not in scene.tree:
            continue
        end = next((t for t in written.get(key, []) if 0 <= t - c.ts_ns <= _MISS_NS), None)
        if end is not None:
            seen.add(key)
            found.append((c, end))
    return found


def hits(scene: Scene) -> list[Cached]:
    """Look-ups of what was there: nothing was written under that name."""
    written = {(c.tgid, c.stem) for c in scene.e.cached if c.write}
    return [
        c for c in scene.e.cached
        if not c.write and c.tgid in scene.tree and (c.tgid, c.stem) not in written
    ]  # fmt: skip


def compile_claims(scene: Scene) -> Iterator[Interval]:
    """Compilation: from a miss in a cache to the write of what was missing, compilers at work,
    and calls into a compiler where no cache is seen."""
    missed = misses(scene)
    for c, end in missed:
        yield from scene.claim("init.compile", c.ts_ns, end, estimate=True, tgid=c.tgid, tid=c.tid)
    for life in scene.e.lives:
        if life.tgid in scene.tree and _compiles(life) and life.fork_ns is not None:
            end = scene.end_ns if life.exit_ns is None else life.exit_ns
            yield from scene.claim("init.compile", life.fork_ns, end, tgid=life.tgid)
    if not missed and hits(scene):
        return
    for call in scene.e.calls:
        known = call.what in ("compile", "module") and call.last_ns is not None
        if known and call.tgid in scene.tree and call.follow_ns >= COMPILE_NS * call.count:
            yield from scene.claim(
                "init.compile",
                call.ts_ns,
                _over_ns(call),
                estimate=True,
                tgid=call.tgid,
                tid=call.tid,
            )


def _compiles(life: Life) -> bool:
    name = (life.exe or life.comm).rpartition("/")[2]
    return name in COMPILERS or name.split("-")[0] in ("clang", "gcc")


def graph_claims(scene: Scene) -> Iterator[Interval]:
    """From the first call about a graph to the last, of a run."""
    for c in scene.e.calls:
        if c.what == "graph" and c.tgid in scene.tree and c.follow_ns >= COMPILE_NS:
            yield from scene.claim(
                "init.graph", c.ts_ns, _over_ns(c), estimate=True, tgid=c.tgid, tid=c.tid
            )
