"""Kernel events, HTTP payload and host facts become one ordered stream of records.

Owned by one thread. `drain()` is called in a loop and ends with a `Tick`, which says that
everything older has been seen: at once where a request came further, else some times a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from tracer.armer import Armer
from tracer.arming import LATE
from tracer.devices.watch import GROUP as DEVICES
from tracer.devices.watch import DeviceWatch
from tracer.host.clock import Clock
from tracer.host.discovery import Discovery
from tracer.host.members import Watchable
from tracer.host.sampler import Sampler
from tracer.http.reader import HttpReader
from tracer.http.reassembly import Packet
from tracer.kernel.wire import Raw, RawCached, RawCall, RawDevice, RawLinked, RawPacket
from tracer.libs.watch import LibraryWatch
from tracer.records import (
    AnyRecord,
    Exit,
    HttpEnd,
    HttpHead,
    HttpRequest,
    HttpToken,
    Insert,
    Lost,
    Span,
    Tick,
)
from tracer.stacks.watch import StackWatch
from tracer.telemetry.watch import TelemetryWatch

#: How long records may gather while a request is open, and while none is: a request's first
#: bytes wake us then, and each time that nothing does costs an idle host some milliseconds.
_BUSY_MS = 200
_IDLE_MS = 60_000
_LIVELY_NS = 1_000_000_000
#: While a request is open something happens all the time; what grows is looked at so often at most,
#: but whenever a request came further.
_WHOLE_NS = 100_000_000
_FURTHER = (HttpRequest, HttpHead, HttpToken, HttpEnd)
_EXPIRE_EVERY_NS = 5_000_000_000
_IDLE_TICK_NS = 60_000_000_000


class Source(Watchable, Protocol):
    """The kernel side, as this module needs it (tracer/kernel/loader.py)."""

    def wait(self, timeout_ms: int, pace_ms: int | None = None) -> None: ...
    def kick(self) -> None: ...
    def batches(self) -> Iterator[list[Raw]]: ...
    def sweep(self, now_ns: int) -> list[Span | Insert]: ...
    def lost(self) -> dict[str, int]: ...


class Live:
    """`begin()` once, then `drain()` for ever."""

    def __init__(
        self,
        source: Source,
        discovery: Discovery,
        http: HttpReader,
        armer: Armer | None = None,
        libraries: LibraryWatch | None = None,
        *,
        devices: DeviceWatch | None = None,
        stacks: StackWatch | None = None,
        telemetry: TelemetryWatch | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`armer` None: all probes stay as they are."""
        self._clock = clock
        self._source = source
        self._armer = armer
        self._discovery = discovery
        self._http = http
        self._libraries = libraries
        self._devices = devices
        self._stacks = stacks
        self._telemetry = telemetry
        self._sampler = Sampler(discovery)
        self._lost: dict[str, int] = {}
        self._expire_due_ns = 0
        self._was_busy = False
        self._lively_until_ns = 0
        self._tick_due_ns = 0
        self._whole_due_ns = 0

    @property
    def lost(self) -> dict[str, int]:
        """Records lost since the start, by kind."""
        return dict(self._lost)

    def begin(self) -> list[AnyRecord]:
        """What is running already, and what is in effect."""
        now_ns = time.monotonic_ns()
        armed = self._armer.begin() if self._armer else []
        found = self._discovery.start(now_ns)
        return [*armed, *found, *self._arm(found, now_ns), *self._follow(found)]

    def context(self) -> list[AnyRecord]:
        """Open exchanges, again, for the beginning of a recording."""
        return self._http.snapshot()

    def wait(self, *, busy: bool) -> None:
        """Until there is something to do. `busy`: a request is open."""
        now_ns = time.monotonic_ns()
        if busy or now_ns < self._lively_until_ns:
            self._source.wait(_BUSY_MS)
            return
        times_ns = (self._armer.next_ns if self._armer else None, self._discovery.again_ns)
        due_ns = min((at_ns for at_ns in times_ns if at_ns is not None), default=None)
        nap_ms = _IDLE_MS if due_ns is None else max(0, due_ns - now_ns) // 1_000_000 + 1
        self._source.wait(min(nap_ms, _IDLE_MS), _IDLE_MS)

    def kick(self) -> None:
        """End a wait; from any thread."""
        self._source.kick()

    def drain(
        self, *, busy: bool, waiting: Callable[[], frozenset[int]] = frozenset
    ) -> Iterator[list[AnyRecord]]:
        """All there is, oldest first, in batches. `busy`: running spans and samples as well.

        `waiting`: servers where a request has no first token yet, with what was given until then.
        """
        now_ns = time.monotonic_ns()
        some = further = ended = False
        for raws in self._source.batches():
            some = some or bool(raws)
            batch = [record for raw in raws for record in self._one(raw)]
            self._sampler.note(batch)
            moved = [record for record in batch if isinstance(record, _FURTHER)]
            further = further or bool(moved)
            ended = ended or any(isinstance(record, HttpEnd) for record in moved)
            yield batch + self._arm(batch, now_ns) + self._follow(batch)
        if some:
            # A request may be half seen: its acknowledgement wakes nobody.
            self._lively_until_ns = now_ns + _LIVELY_NS
        if busy and not further and now_ns < self._whole_due_ns:
            return
        self._whole_due_ns = now_ns + _WHOLE_NS
        yield self._whole(now_ns, waiting, some=some, busy=busy, ended=ended)

    def _whole(
        self, now_ns: int, waiting: Callable[[], frozenset[int]], *,
        some: bool, busy: bool, ended: bool,
    ) -> list[AnyRecord]:  # fmt: skip
        """What is not told by itself. `some` happened; `ended`: a request did."""
        records: list[AnyRecord] = []
        if busy or some:  # a short request may have begun and ended in what just came
            records += self._source.sweep(now_ns)
        records += self._samples(now_ns, busy=busy) + self._readings(now_ns, waiting)
        if some or busy:
            records += self._sampler.processors(
                time.monotonic_ns(), waiting=bool(waiting()), ended=ended
            )
        stirred = some or busy or self._was_busy
        if self._libraries is not None and (stirred or self._libraries.has_found):
            records += self._libraries.collect(now_ns, busy=busy or ended or self._was_busy)
        if self._devices is not None and stirred:
            records += self._devices.sweep(now_ns)
        records += self._ran(records, now_ns)
        self._was_busy = busy
        if some or busy:
            records += self._losses(now_ns)
        if now_ns >= self._expire_due_ns:
            self._expire_due_ns = now_ns + _EXPIRE_EVERY_NS
            records += self._http.expire(now_ns)
        records += self._silent(now_ns)
        records += self._arm(records, now_ns)
        if some or records or busy or now_ns >= self._tick_due_ns:
            self._tick_due_ns = now_ns + _IDLE_TICK_NS
            records += self._clock.look() if self._clock else []
            records.append(Tick(ts_ns=now_ns))
        return records

    def _samples(self, now_ns: int, *, busy: bool) -> list[AnyRecord]:
        if busy:
            return self._sampler.during(now_ns)
        return self._sampler.after(now_ns) if self._was_busy else []

    def _silent(self, now_ns: int) -> list[AnyRecord]:
        """Servers that did not say what they are when they were found, asked again and again."""
        due_ns = self._discovery.again_ns
        if due_ns is None or now_ns < due_ns:
            return []
        found = self._discovery.ask_again(now_ns)
        return [*found, *self._follow(found)]

    def _readings(self, now_ns: int, waiting: Callable[[], frozenset[int]]) -> list[AnyRecord]:
        """Of devices that servers hold at which a request waits."""
        if self._telemetry is None:
            return []
        fronts = waiting()
        tree = self._discovery.tree.items() if fronts else ()
        return self._telemetry.collect(now_ns, tuple(t for t, m in tree if m.front in fronts))

    def _arm(self, records: list[AnyRecord], now_ns: int) -> list[AnyRecord]:
        """Probes that came or went, and what was read while some were off."""
        turned = self._armer.follow(records, now_ns) if self._armer else []
        if not turned:
            return []
        found: list[AnyRecord] = [*turned, *self._sampler.read(time.monotonic_ns())]
        if any(armed.on and armed.why in LATE for armed in turned):
            found += self._discovery.look_again(now_ns)
        return found

    def _follow(self, records: list[AnyRecord]) -> list[AnyRecord]:
        """What libraries and drivers have to tell of processes that began, changed or ended."""
        found = [] if self._libraries is None else self._libraries.note(records)
        if self._devices is not None:
            found += self._devices.note(records)
            if self._devices.wanted and self._armer is not None:
                found += self._armer.bring(DEVICES)
        if self._stacks is not None:
            self._stacks.note(records)
        if self._telemetry is not None:
            self._telemetry.note(records)
        return found

    def _ran(self, records: list[AnyRecord], now_ns: int) -> list[AnyRecord]:
        """What code was found running; sampled or not from now on."""
        if self._stacks is None:
            return []
        self._stacks.note(records)
        return self._stacks.collect(now_ns)

    def _one(self, raw: Raw) -> list[AnyRecord]:
        if isinstance(raw, RawPacket):
            return self._http.packet(_packet(raw))
        if isinstance(raw, RawLinked | RawCall | RawCached):
            return [] if self._libraries is None else self._libraries.raw(raw)
        if isinstance(raw, RawDevice):
            return [] if self._devices is None else self._devices.raw(raw)
        # A port that only closes may still have replies under way; a dead owner has not.
        gone = self._discovery.ports_of(raw.tgid) if isinstance(raw, Exit) else []
        records = self._discovery.translate(raw)
        for netns, port in gone:
            if not self._discovery.owned(netns, port):
                records += self._http.port_gone(raw.ts_ns, netns, port)
        return records

    def _losses(self, now_ns: int) -> list[AnyRecord]:
        records: list[AnyRecord] = []
        for kind, total in self._source.lost().items():
            fresh = total - self._lost.get(kind, 0)
            if fresh > 0:
                self._lost[kind] = total
                records.append(Lost(ts_ns=now_ns, kind=kind, count=fresh))
        if any(isinstance(r, Lost) and r.kind == "packet" for r in records):
            self._http.lost(now_ns)
        return records


def _packet(raw: RawPacket) -> Packet:
    return Packet(
        ts_ns=raw.ts_ns,
        conn=raw.conn,
        egress=raw.egress,
        seq=raw.seq,
        ack=raw.ack,
        payload_len=raw.payload_len,
        payload=raw.payload,
        flags=raw.tcp_flags,
    )
