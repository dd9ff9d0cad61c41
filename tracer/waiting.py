"""When the prompt was begun, and whom the request waited for until then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from tracer import device
from tracer.derived import Interval
from tracer.eviction import Eviction
from tracer.evidence import Life, Other
from tracer.scene import Scene, descendants, may_run_models, streams, token_ns
from tracer.startup import Start, early_head_ns, program_of

#: A slot is given on before the last bytes of the reply that held it are on the wire.
HANDOVER_NS = 50_000_000
#: A front that passed a request on this fast had not kept it back for anyone.
ROUTING_NS = 20_000_000
#: Parsing, templating and tokenising takes no longer than this, and so much for each byte.
TOKENIZE_NS = 500_000_000
TOKENIZE_NS_PER_BYTE = 10_000
TOKENIZE_BYTES = 1 << 20
#: Our prompt time is to be within this of the server's own.
_NEAR_NS = 5_000_000
_MOST_NS = 2**62


@dataclass(frozen=True, slots=True)
class Wait:
    """A claim on the queue and the requests (by id) it was spent on."""

    claim: Interval
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """`start_ns`: prompt start; `free_ns`: when the last request ahead was done."""

    start_ns: int | None
    estimate: bool
    free_ns: int | None
    ahead: tuple[Other, ...]


def _ids(others: list[Other] | tuple[Other, ...]) -> tuple[int, ...]:
    return tuple(sorted({o.id for o in others if o.id is not None}))


def engine_seen(scene: Scene) -> bool:
    """Whether the engine's work shows: in a hop, or in a server that holds the model itself."""
    if scene.e.hop is not None or device.decodes(scene):
        return True
    if not scene.front_serves:
        return False
    return program_of(scene) == "llama-server"


def _beside(scene: Scene) -> list[Other]:
    """Other requests on the same runner that were not over when this one was read."""
    return [
        o for o in scene.others
        if o.runner is not None and o.runner == scene.runner
        and (o.done_ns is None or o.done_ns > scene.read_end_ns)
        and _reached_ns(o) < scene.end_ns
    ]  # fmt: skip


def _reached_ns(o: Other) -> int:
    return o.arrival_ns if o.runner_arrival_ns is None else o.runner_arrival_ns


def _one_slot(scene: Scene) -> bool:
    command = scene.life.command if scene.life else None
    return command is not None and "parallel=1" in command.options


def _ahead(scene: Scene, by_ns: int, known: bool) -> list[Other]:
    """Who held what this request waited for: done by the time it was begun.

    Who was still at work then held another slot. Where the begin is not known, a later
    arrival that was done earlier has overtaken only if there is a single slot.
    """
    reached = scene.read_end_ns if scene.hop_ns is None else scene.hop_ns
    slack = HANDOVER_NS if by_ns - scene.read_end_ns >= ROUTING_NS else 0
    vain = _one_slot(scene) and scene.serving.head_ns is None and token_ns(scene.e.request) is None
    found = []
    for o in _beside(scene):
        if o.failed and o.first_token_ns is None:
            continue
        over = o.done_ns is not None and o.done_ns <= by_ns + slack
        if not over and not (vain and _reached_ns(o) <= reached):
            continue
        if known or _reached_ns(o) <= reached or _one_slot(scene):
            found.append(o)
    return found


def _said_ns(milliseconds: float | None) -> int:
    """A duration the server gives, in nanoseconds; 0 for what can be none."""
    if milliseconds is None or not isfinite(milliseconds) or milliseconds < 0:
        return 0
    return round(min(milliseconds * 1e6, _MOST_NS))


def _free_ns(ahead: list[Other], by_ns: int) -> int | None:
    ends = [by_ns if o.done_ns is None else o.done_ns for o in ahead]
    return min(max(ends), by_ns) if ends else None


def _latest_start_ns(scene: Scene) -> int:
    """The prompt cannot have been begun later than this, by the server's own word."""
    for x in (scene.e.hop, scene.e.request):
        if x and x.says and x.says.prompt_ms is not None:
            took, done = _said_ns(x.says.prompt_ms), scene.end_ns
            if not streams(scene.e.request):
                took += _said_ns(x.says.predicted_ms)
            elif x.first_token_ns is not None:
                done = min(done, x.first_token_ns)
            return max(scene.start_ns, done - took)
    return scene.end_ns


def _begun_ns(scene: Scene, head_ns: int, free_ns: int | None) -> int:
    """The headers' time, unless the thread that sends them was late by the server's own word."""
    reached = scene.hop_ns if scene.hop_ns is not None else scene.read_end_ns
    earliest = max(reached, free_ns if free_ns is not None else reached)
    return min(head_ns, max(earliest, _latest_start_ns(scene)))


def _worked_ns(scene: Scene, decode_ns: int, free_ns: int | None) -> int:
    """The first decode, unless the server had worked on the prompt well before, by its own word:
    on what it kept of earlier ones, say."""
    begun_ns = _begun_ns(scene, decode_ns, free_ns)
    return decode_ns if decode_ns - begun_ns <= _NEAR_NS else begun_ns


def prompt(scene: Scene, starts: list[Start]) -> Prompt:
    """Prompt start by the headers where they tell, else the last of hop, free slot, readiness."""
    if not engine_seen(scene):
        return Prompt(None, True, None, ())
    head = early_head_ns(scene.serving, program_of(scene))
    if head is not None and scene.start_ns <= head <= scene.end_ns:
        ahead = _ahead(scene, head, known=True)
        free = _free_ns(ahead, head)
        decoded = _decoded(scene, free, None)
        if decoded is not None and decoded[1]:
            begin = _worked_ns(scene, decoded[0], free)
            return Prompt(begin, begin != decoded[0], free, tuple(ahead))
        begin = _begun_ns(scene, head, free)
        return Prompt(begin, begin != head, free, tuple(ahead))
    latest = _latest_start_ns(scene)
    ahead = _ahead(scene, latest, known=False)
    free = _free_ns(ahead, latest)
    ready = max((s.ready_ns for s in starts), default=None)
    decoded = _decoded(scene, free, ready)
    if decoded is not None:
        return Prompt(decoded[0], not decoded[1], free, tuple(ahead))
    reached = scene.hop_ns if scene.hop_ns is not None else scene.read_end_ns
    begin = max(t for t in (reached, free, ready) if t is not None)
    return Prompt(min(begin, scene.end_ns), True, free, tuple(ahead))


def _decoded(scene: Scene, free_ns: int | None, ready_ns: int | None) -> tuple[int, bool] | None:
    """When the first of the prompt's tokens was worked on; whether their number proves it."""
    reached = scene.hop_ns if scene.hop_ns is not None else scene.read_end_ns
    since = reached if free_ns is None else max(reached, free_ns - HANDOVER_NS)
    says = next((x.says for x in (scene.e.hop, scene.e.request) if x and x.says), None)
    tokens = says.prompt_n if says is not None else None
    if tokens is None and ready_ns is not None:
        since = max(since, ready_ns)
    alone = all(o.done_ns is not None and o.done_ns <= since for o in _beside(scene))
    return device.first_decode(scene, since, tokens, alone)


def busy(scene: Scene, at: Prompt) -> Iterator[Wait]:
    if at.free_ns is None:
        return
    for x in scene.claim("queue.busy", scene.read_end_ns, at.free_ns, estimate=at.estimate):
        yield Wait(x, _ids(at.ahead))


def _reach_ns(scene: Scene, starts: list[Start]) -> int:
    """Until when the front kept the request back: its own runner's start, or the hop."""
    times = [s.begin_ns for s in starts]
    if scene.hop_ns is not None:
        times.append(scene.hop_ns)
    elif scene.front_serves:
        times.append(scene.read_end_ns)
    return min([*times, scene.end_ns])


def _went_through(scene: Scene) -> bool:
    """Whether a runner that was there got the request, though its hop may not have been seen."""
    return scene.hop_ns is not None or token_ns(scene.e.request) is not None


def drain(scene: Scene, starts: list[Start], evictions: list[Eviction]) -> Iterator[Wait]:
    """Requests on other runners that had to end before the switch this one needed."""
    if not starts and _went_through(scene):
        return
    if starts and not evictions:
        return
    until = _reach_ns(scene, starts)
    leaving = {x.life.tgid: x.begin_ns for x in evictions}
    for o in scene.others:
        if o.runner in (None, scene.runner, scene.e.front):
            continue
        if evictions and o.runner not in leaving:
            continue
        end = min(until, leaving.get(o.runner, until), until if o.done_ns is None else o.done_ns)
        begin = max(scene.read_end_ns, _reached_ns(o))
        for x in scene.claim("queue.drain", begin, end, tgid=o.runner):
            yield Wait(x, _ids([o]))


def _start_end_ns(scene: Scene, life: Life) -> int:
    """When another runner's start was over: it got work, or was gone."""
    begun = [
        next((t for t in (o.runner_arrival_ns, o.first_token_ns, o.end_ns) if t is not None), None)
        for o in scene.others if o.runner == life.tgid
    ]  # fmt: skip
    work = [t for t in begun if t is not None and t >= (life.fork_ns or 0)]
    gone = [life.exit_ns] if life.exit_ns is not None else []
    return min([*work, *gone], default=scene.end_ns)


def _brought_ns(scene: Scene, life: Life) -> list[int]:
    """When a runner was seen to have taken up weights."""
    tree = descendants(scene.e.lives, life.tgid)
    ends = [x.end_ns for x in scene.spans_of(tree)]
    return ends + [i.end_ns for i in scene.e.inserts if i.tgid in tree]


def switch(scene: Scene, starts: list[Start]) -> Iterator[Wait]:
    """Another model's start was in the way, from when it was asked for."""
    until = _reach_ns(scene, starts)
    if not starts and until - scene.read_end_ns < ROUTING_NS:
        return
    if not starts and scene.hop_ns is None and _went_through(scene):
        return
    own = {scene.runner, scene.e.front, *(x.tgid for x in scene.failures)}
    for life in scene.e.lives:
        if life.tgid in own or life.fork_ns is None or not may_run_models(scene.e, life):
            continue
        asking = [o for o in scene.others if o.runner == life.tgid and o.arrival_ns <= life.fork_ns]
        begin = min((o.arrival_ns for o in asking), default=life.fork_ns)
        begin = max(begin, scene.read_end_ns)
        end = min(until, _start_end_ns(scene, life))
        if not asking:  # one that is ready is in nobody's way
            end = min(end, max(_brought_ns(scene, life), default=begin))
        for x in scene.claim("queue.switch", begin, end, tgid=life.tgid):
            yield Wait(x, _ids(asking))


def prefill(scene: Scene, at: Prompt) -> Iterator[Interval]:
    """From prompt start to the first token; before it, tokenising with nobody ahead."""
    if at.start_ns is None:
        return
    begin = at.start_ns
    yield from scene.claim("prefill.prompt", begin, scene.end_ns, estimate=at.estimate)
    reached = scene.hop_ns if scene.hop_ns is not None else scene.read_end_ns
    free = reached if at.free_ns is None else max(reached, at.free_ns)
    size = scene.e.request.prompt_bytes
    most = TOKENIZE_NS + (TOKENIZE_BYTES if size is None else size) * TOKENIZE_NS_PER_BYTE
    if begin - free <= most:
        yield from scene.claim("prefill.tokenize", free, begin)
    else:  # whoever was ahead was not seen
        yield from scene.claim("queue.rest", free, begin, estimate=True)
    for o in _beside(scene):
        if o not in at.ahead:
            worked = o.runner_head_ns if o.runner_head_ns is not None else o.first_token_ns
            since = free if begin - free >= ROUTING_NS else begin
            since = max(since, _reached_ns(o) if worked is None else worked)
            end = scene.end_ns if o.done_ns is None else o.done_ns
            yield from scene.claim("prefill.shared", since, end, estimate=True)
    yield from _decode(scene, begin)
    yield from _relay(scene, begin)


def _decode(scene: Scene, begin_ns: int) -> Iterator[Interval]:
    """Not streaming: generation is inside; how long is the server's own word."""
    if streams(scene.e.request):
        return
    for x in (scene.e.hop, scene.e.request):
        says = x.says if x else None
        if x and says and _said_ns(says.predicted_ms):
            end = min(scene.end_ns, x.end_ns if x.end_ns is not None else scene.end_ns)
            took = min(_said_ns(says.predicted_ms), max(0, end - begin_ns))
            yield from scene.claim("prefill.decode", end - took, end, estimate=True)
            return


def _relay(scene: Scene, begin_ns: int) -> Iterator[Interval]:
    hop = scene.e.hop
    if hop is None:
        return
    left = hop.first_token_ns if streams(scene.e.request) else hop.end_ns
    if left is not None:
        yield from scene.claim("prefill.relay", max(left, begin_ns), scene.end_ns)
