"""What may have gone unseen while the file probes were off, and whether it matters.

They come on as soon as a cold stage is possible (tracer/arming.py). A while without them is
harmless where nothing of this request's load can have fallen into it, as other evidence shows.
"""

from __future__ import annotations

from tracer.arming import GROUP, UNEXPECTED
from tracer.evidence import Evidence, Life
from tracer.records import Io
from tracer.scene import Range, Scene
from tracer.startup import Start, early_head_ns, program_of
from tracer.waiting import ROUTING_NS
from tracer.weights import BULK_BYTES

#: From its exec on a program links its libraries for longer than this before it opens weights.
LINK_NS = 5_000_000
#: A process that has a request works on it for longer than this before it opens weights.
WAKE_NS = 2_000_000
#: No model is taken up, from its open to its first token, in less.
LOAD_NS = 50_000_000


def off(e: Evidence, group: str, start_ns: int, end_ns: int) -> list[Range]:
    """When the group was off in [start, end]; one never told of was always on."""
    changes = sorted((a for a in e.armed if a.group == group), key=lambda a: a.ts_ns)
    found: list[Range] = []
    since = start_ns if changes and changes[0].on else None
    for change in changes:
        if change.on and since is not None:
            found.append((since, min(change.ts_ns, end_ns)))
            since = None
        elif not change.on and since is None:
            since = max(change.ts_ns, start_ns)
    if since is not None:
        found.append((since, end_ns))
    return [(a, b) for a, b in found if a < b]


def of(s: Scene, starts: list[Start]) -> tuple[Range, ...]:
    """The times in which something that counts may have gone unseen."""
    ranges = off(s.e, GROUP, s.start_ns, s.end_ns)
    return tuple(r for r in ranges if not _harmless(s, starts, r))


def _harmless(s: Scene, starts: list[Start], gap: Range) -> bool:
    begin, end = gap
    born = [t for x in (*s.failures, s.life) if x and (t := _began_ns(x)) > begin]
    if end >= s.end_ns:  # they never came on: it was no slower than the warm ones
        return not born and not starts
    if born or any(not x.wake and x.begin_ns < end and x.ready_ns > begin for x in starts):
        return (bool(born) and end <= min(born) + LINK_NS) or _load_seen(starts, gap)
    return (
        _not_yet_asked(s, end)
        or _load_seen(starts, gap)
        or _at_work(s, gap)
        or (not starts and (_too_short(s, end) or _read_nothing(s, gap)))
    )


def _began_ns(life: Life) -> int:
    began = life.exec_ns if life.exec_ns is not None else life.fork_ns
    return began if began is not None else 0


def _load_seen(starts: list[Start], gap: Range) -> bool:
    """Whether all that brought weights was seen, from its open on: the rest only looked at them."""
    bulks = [b for x in starts for b in x.bulks]
    return bool(bulks) and all(b.open_ns >= gap[1] or b.end_ns <= gap[0] for b in bulks)


def _not_yet_asked(s: Scene, until_ns: int) -> bool:
    return until_ns <= _asked_ns(s) + WAKE_NS


def _asked_ns(s: Scene) -> int:
    return s.hop_ns if s.hop_ns is not None else s.read_end_ns


def _too_short(s: Scene, until_ns: int) -> bool:
    """Whether a load that began unseen had shown its end."""
    return until_ns <= _asked_ns(s) + LOAD_NS and s.e.resident_before is not False


def _at_work(s: Scene, gap: Range) -> bool:
    """Whether the runner was at work on a prompt: it had its weights mapped."""
    head = early_head_ns(s.serving, program_of(s))
    if head is not None and head - _asked_ns(s) <= ROUTING_NS:
        return True
    return any(
        o.runner is not None
        and o.runner == s.runner
        and (o.first_token_ns or s.end_ns) <= gap[1]
        and (o.end_ns is None or o.end_ns >= gap[0])
        for o in s.others
    )


def _read_nothing(s: Scene, gap: Range) -> bool:
    """Whether its processes read next to nothing meanwhile, by the kernel's own count.

    What is mapped is faulted in, and faults are always seen; but llama-server maps without, so
    there it also takes that the probes were off because no such wait was to be expected.
    """
    why = next((a.why for a in s.e.armed if a.group == GROUP and a.ts_ns == gap[1]), None)
    if program_of(s) == "llama-server" and why not in UNEXPECTED:
        return False
    counts = [read_meanwhile(s, tgid, gap) for tgid in s.tree]
    return bool(counts) and all(found is not None and found[0] < BULK_BYTES for found in counts)


def read_meanwhile(s: Scene, tgid: int, gap: Range) -> tuple[int, int] | None:
    """Bytes by system calls, and from storage, between the counts around a gap."""
    mine = sorted((i for i in s.e.io if i.tgid == tgid), key=lambda i: i.ts_ns)
    before = [i for i in mine if i.ts_ns < gap[1]]
    after = [i for i in mine if i.ts_ns >= gap[1]]
    if not before or not after:
        return None
    first, last = _first_of_gap(before, gap), after[0]
    return last.read_chars - first.read_chars, last.read_bytes - first.read_bytes


def _first_of_gap(before: list[Io], gap: Range) -> Io:
    """The count taken as the probes went off: the last before the gap, or the first in it."""
    earlier = [i for i in before if i.ts_ns <= gap[0]]
    return earlier[-1] if earlier else before[0]
