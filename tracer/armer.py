"""Turns the dear probes on and off as tracer/arming.py says, from two threads.

What cannot wait for the engine (a process start, the first bytes of a request after a pause) is
seen by whoever takes records out of the rings, and turns them on at once; all else is decided by
the engine's thread, which owns the policy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tracer.arming import GROUP, Arming, Change, Why, is_untimed
from tracer.doubt import Port
from tracer.errors import KernelError, RecordError
from tracer.http.first import only_looks
from tracer.kernel import layouts, wire
from tracer.kernel.wire import RawPacket
from tracer.log import log
from tracer.records import AnyRecord, Armed, Conn, Span

#: The next step may be so far off: doubt that comes up before is doubt now.
_AHEAD_NS = 250_000_000
_STARTS = frozenset(n for n, kind in layouts.KINDS.items() if kind in ("fork", "exec"))
_SPAN = next(n for n, kind in layouts.KINDS.items() if kind == "span")
_PACKET = next(n for n, kind in layouts.KINDS.items() if kind == "packet")


class Rings(Protocol):
    """What is asked of tracer/kernel/ring.py."""

    look: Callable[[list[bytes]], bool] | None
    doze: Callable[[], None]


class Groups(Protocol):
    """What is asked of tracer/kernel/loader.py: attach and detach give ns.

    `attach` raises KernelError where that cannot be now.

    `time_faults`: minor faults of a process are to be timed as well.
    """

    def attach(self, group: str) -> int: ...
    def detach(self, group: str) -> int: ...
    def time_faults(self, tgid: int) -> None: ...


@dataclass(frozen=True)
class _Order:
    """What the thread at the rings goes by: see tracer/arming.py."""

    sure: Mapping[Port, int] = field(default_factory=dict)
    others: bool = True

    @property
    def doubted_ns(self) -> int:
        """From when on some request's bytes turn the group on."""
        return min(self.sure.values(), default=0)

    def until_ns(self, conn: Conn) -> int:
        """Until when bytes on this connection do not; 0: they do."""
        if conn.netns:
            return self.sure.get((conn.netns, conn.server_port), 0)
        alike = (t for (_, port), t in self.sure.items() if port == conn.server_port)
        return min(alike, default=0)


class Armer:
    """`follow()` all records and `step()` now and then, in one thread; `state` from any."""

    def __init__(
        self, groups: Groups, rings: Rings, arming: Arming, beside: Iterable[str] = ()
    ) -> None:
        """`beside`: further groups that come and go with it."""
        self._groups = groups
        self._rings = rings
        self._arming = arming
        self._lock = threading.Lock()
        self._on = True
        self._trouble: str | None = None
        self._turned: list[tuple[Change | None, Armed]] = []
        self._beside = list(beside)
        self._order = _Order()
        self.state = Armed(ts_ns=arming.since_ns, group=GROUP, on=True, why=arming.why)

    @property
    def groups(self) -> tuple[str, ...]:
        """Those that come and go."""
        return (GROUP, *self._beside)

    def begin(self) -> list[AnyRecord]:
        """What is in effect from the start."""
        with self._lock:
            return [self.state, *self._turn_beside(self._beside, self.state)]

    @property
    def next_ns(self) -> int | None:
        """When `step()` is due though nothing happens."""
        return self._arming.next_ns

    def follow(self, records: Iterable[AnyRecord], now_ns: int) -> list[Armed]:
        """Take in what happened, do what is due; what was turned on or off."""
        for record in records:
            self._arming.feed(record)
        return self.step(now_ns)

    def step(self, now_ns: int) -> list[Armed]:
        """Do what is due; what was turned on or off since the last step, here or at the rings."""
        with self._lock:
            for change, armed in self._turned:
                if change is not None:
                    self._arming.changed(change, armed.ts_ns)
            due = self._arming.due(now_ns)
            if due is not None and self._turn(due):
                self._arming.changed(due, self.state.ts_ns)
            turned, self._turned = self._turned, []
        arming = self._arming
        for tgid in arming.starved():
            self._groups.time_faults(tgid)
        self._order = _Order(arming.sure(), arming.some_never_asked)
        if not self._on and self._in_doubt(now_ns + _AHEAD_NS):
            self._rings.doze()
        return [armed for _, armed in turned]

    def bring(self, group: str) -> list[Armed]:
        """From now on a further group comes and goes with the probes; what was turned on.

        One that cannot be attached is left out, and is tried again the next time.
        """
        with self._lock:
            if group in self._beside:
                return []
            self._beside.append(group)
            return self._turn_beside([group], self.state) if self._on else []

    def _turn_beside(self, groups: Iterable[str], state: Armed) -> list[Armed]:
        """Under the lock: attach or detach what comes and goes with the probes."""
        turned = []
        for group in groups:
            try:
                took_ns = self._groups.attach(group) if state.on else self._groups.detach(group)
            except KernelError as error:
                log(f"{group}: {error.message}; unseen until then")
                continue
            ts_ns = time.monotonic_ns() if state.on else state.ts_ns
            turned.append(
                Armed(ts_ns=ts_ns, group=group, on=state.on, why=state.why, took_ns=took_ns)
            )
        return turned

    def _turn(self, change: Change) -> bool:
        """Under the lock: attach or detach. It counts as off from before, as on from after.

        False where it cannot be attached now: it stays off, and the next step tries again.
        """
        began_ns = time.monotonic_ns()
        if change.on:
            try:
                took_ns = self._groups.attach(GROUP)
            except KernelError as error:
                if error.message != self._trouble:
                    log(f"{GROUP}: {error.message}; tried again, unseen until then")
                self._trouble = error.message
                return False
            self._trouble = None
            ts_ns = time.monotonic_ns()
        else:
            ts_ns = began_ns
            took_ns = self._groups.detach(GROUP)
        self._on = change.on
        self._rings.look = None if change.on else self._look
        self.state = Armed(ts_ns=ts_ns, group=GROUP, on=change.on, why=change.why, took_ns=took_ns)
        self._turned.append((change, self.state))
        self._turned += ((None, armed) for armed in self._turn_beside(self._beside, self.state))
        return True

    # --- at the rings ----------------------------------------------------------------

    def _look(self, fresh: list[bytes]) -> bool:
        """Turn on where one of these records asks for it; else whether the next bytes may."""
        why = next((w for data in fresh if (w := self._asks(data)) is not None), None)
        if why is None:
            return self._in_doubt(time.monotonic_ns())
        with self._lock:
            if not self._on:
                self._turn(Change(True, why))
        return False

    def _in_doubt(self, now_ns: int) -> bool:
        return self._order.others or now_ns > self._order.doubted_ns

    def _asks(self, data: bytes) -> Why | None:
        if len(data) < layouts.HEADER.size:
            return None
        ts_ns, _, _, kind, _, flags = layouts.HEADER.packer.unpack_from(data)
        if kind in _STARTS:
            return "process"
        if kind == _SPAN:
            return "weights" if _untimed(data) else None
        if kind != _PACKET or flags & wire.PACKET_EGRESS:
            return None
        try:
            raw = wire.decode(data)
        except RecordError:
            return None
        assert isinstance(raw, RawPacket)
        sure = ts_ns <= self._order.until_ns(raw.conn)
        return None if sure or not raw.payload or only_looks(raw.payload) else "arrival"


def _untimed(data: bytes) -> bool:
    try:
        span = wire.decode(data)
    except RecordError:
        return False
    return isinstance(span, Span) and is_untimed(span)
