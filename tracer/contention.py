"""Whether the processor was the reason why a prompt was slow: others used it, or a quota held it.

From looks some times a second. Between two of them a count is taken to grow evenly, unless most of
that time is not the prompt's, or the server was at work on something else in it. What looks tell of
less than four fifths of the prompt is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec

from tracer.derived import Timeline
from tracer.evidence import Life
from tracer.records import Ran
from tracer.scene import Range, Scene
from tracer.weights import share

#: What is to explain an excess has to be at least this part of it.
_PART = 2
#: The kernel counts a group as held back later than its threads wait: two thirds of it, seen.
_HELD_PART = 4
#: So much of the prompt may lie between no two looks that tell of it.
_UNTOLD_PART = 5
#: So much of the time between two looks must be of the prompt.
_WITHIN_PART = 2
#: A process that was there for less of that time may be in none of both.
_MOMENT_PART = 10
#: What is no work on a prompt.
_COLD = ("evict.", "spawn.", "load.", "transfer.", "init.")

Count = Callable[[Ran], int | None]
Look = dict[int, Ran]
"""What was told of each process at a moment."""


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """In the prompt, which took `took_ns`; None is unknown.

    These are sums over threads and processors, so they may be longer than it took: ns that the
    runner's processes ran, and that their threads waited for a processor; that programs outside of
    the server ran; that a CPU quota held processors back from it, None also where it has none.
    """

    took_ns: int
    ran_ns: int | None = None
    waited_ns: int | None = None
    others_ns: int | None = None
    throttled_ns: int | None = None

    def passed_ns(self, amount_ns: int | None) -> int | None:
        """How much longer the prompt took for not having had so much processor time.

        With it, the runner had used so many processors at once as it ran and wanted to run.
        """
        if amount_ns is None or self.ran_ns is None:
            return None
        wanted_ns = self.ran_ns + amount_ns
        return amount_ns * self.took_ns // wanted_ns if wanted_ns > self.took_ns else amount_ns

    @property
    def taken_ns(self) -> int | None:
        """What its threads waited for and others had."""
        if self.waited_ns is None or self.others_ns is None:
            return None
        return min(self.waited_ns, self.others_ns)

    @property
    def others(self) -> float | None:
        """How many processors others used."""
        return None if self.others_ns is None else self.others_ns / self.took_ns


class _Between(msgspec.Struct, frozen=True):
    """Two looks, one after the other."""

    start_ns: int
    end_ns: int
    first: Look
    last: Look

    def host(self) -> int | None:
        """Processor time that all programs had."""
        before, after = (next(iter(x.values())).host_ns for x in (self.first, self.last))
        return None if after < before else after - before

    def grown(self, lives: Iterable[Life], what: Count, *, born: bool) -> int | None:
        """How much a count of these processes grew, None where it is not known of each.

        `born`: it begins at nothing with the process.
        """
        counts = [self._grown(life, what, born) for life in lives if self._counts(life)]
        known = [n for n in counts if n is not None]
        return sum(known) if known and len(known) == len(counts) else None

    def _counts(self, life: Life) -> bool:
        """Whether it was there for more than a moment."""
        since = self.start_ns if life.fork_ns is None else max(self.start_ns, life.fork_ns)
        until = self.end_ns if life.exit_ns is None else min(self.end_ns, life.exit_ns)
        return (until - since) * _MOMENT_PART > self.end_ns - self.start_ns

    def _grown(self, life: Life, what: Count, born: bool) -> int | None:
        a, b = self.first.get(life.tgid), self.last.get(life.tgid)
        new = born and a is None and life.fork_ns is not None and life.fork_ns >= self.start_ns
        before = 0 if new else None if a is None else what(a)
        after = None if b is None else what(b)
        return None if before is None or after is None or after < before else after - before


class _Prompt(msgspec.Struct, frozen=True):
    """When it was worked on, when the request came and ended, and when the server may have been at
    work on something else."""

    start_ns: int
    end_ns: int
    arrival_ns: int
    over_ns: int | None
    other: tuple[tuple[int, int | None], ...]

    def own(self, x: _Between) -> Range | None:
        """When the server worked between two looks, idle before and after; None: also on more."""
        since, until = x.start_ns, x.end_ns
        if since < self.start_ns:
            if any(at < self.start_ns and (end is None or end > since) for at, end in self.other):
                return None
            since = max(since, min(self.arrival_ns, until))
        if until > self.end_ns:
            if any(self.end_ns <= at < until for at, _ in self.other):
                return None
            until = min(until, max(self.end_ns, *(self._ends(until))))
        return since, until

    def _ends(self, until: int) -> list[int]:
        ends = [self.over_ns, *(end for at, end in self.other if at < self.end_ns)]
        return [until if end is None else end for end in ends]

    def part(self, span: Range) -> Range | None:
        """What of it is the prompt's, None where most of it is not."""
        start, end = max(span[0], self.start_ns), min(span[1], self.end_ns)
        much = end > start and (end - start) * _WITHIN_PART >= span[1] - span[0]
        return (start, end) if much else None

    def sum(self, told: Iterable[tuple[Range | None, int | None]]) -> int | None:
        """Of amounts between looks what is the prompt's; None where they tell too little of it."""
        total = had = 0
        for span, amount in told:
            part = None if span is None else self.part(span)
            if span is not None and part is not None and amount is not None:
                total += share(amount, *span, *part)
                had += part[1] - part[0]
        need = self.end_ns - self.start_ns
        return None if (need - had) * _UNTOLD_PART > need else total * need // had


def of(s: Scene, t: Timeline) -> Processor | None:
    """What was seen of it from the prompt's start to the first token; None: nothing was."""
    start = t.start_ns if t.prompt_start_ns is None else t.prompt_start_ns
    decoded = (c.start_ns for c in t.claims if c.stage == "prefill.decode")
    end = min(decoded, default=t.end_ns)
    if start >= end:
        return None
    other = [
        *((o.arrival_ns, o.end_ns) for o in s.e.others),
        *((c.start_ns, c.end_ns) for c in t.claims if c.stage.startswith(_COLD)),
    ]
    p = _Prompt(start, end, s.e.request.arrival_ns, s.e.request.end_ns, tuple(other))
    between = list(_between(s.e.ran))
    server = s.e.lives
    runner = [life for life in server if life.tgid in s.tree]

    def own(lives: list[Life], what: Count, *, born: bool = False) -> int | None:
        return p.sum((p.own(x), x.grown(lives, what, born=born)) for x in between)

    found = Processor(
        took_ns=end - start,
        ran_ns=own(runner, lambda r: r.ran_ns, born=True),
        waited_ns=own(runner, lambda r: r.waited_ns),
        others_ns=p.sum(((x.start_ns, x.end_ns), _others(x, server)) for x in between),
        throttled_ns=own(
            [life for life in runner if life.tgid == s.runner], lambda r: r.throttled_ns
        ),
    )
    told = (found.ran_ns, found.waited_ns, found.others_ns, found.throttled_ns)
    return None if told == (None, None, None, None) else found


def cause(found: Processor | None, excess_ns: int) -> str | None:
    """The code for a prompt that took so much longer than its size lets expect."""
    if found is None or excess_ns <= 0:
        return None
    if (found.passed_ns(found.waited_ns) or 0) * _PART < excess_ns:
        return None
    if (found.passed_ns(found.throttled_ns) or 0) * _HELD_PART >= excess_ns:
        return "prefill.throttled"
    # The server's own threads may be more than there are processors: then nobody else ran.
    taken_ns = found.passed_ns(found.taken_ns) or 0
    return "prefill.contention" if taken_ns * _PART >= excess_ns else None


def _between(samples: Iterable[Ran]) -> Iterable[_Between]:
    looks: dict[int, Look] = {}
    for r in samples:
        looks.setdefault(r.ts_ns, {})[r.tgid] = r
    for (start, first), (end, last) in pairwise(sorted(looks.items())):
        yield _Between(start, end, first, last)


def _others(x: _Between, server: Iterable[Life]) -> int | None:
    """What programs outside of the server had."""
    host, own = x.host(), x.grown(server, lambda r: r.ran_ns, born=True)
    return None if host is None or own is None else max(0, host - own)
