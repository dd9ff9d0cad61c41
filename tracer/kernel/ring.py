"""Drains the rings, in a thread of its own: what is explained slowly must not fill them.

The callback only copies: nothing may be raised into C.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from tracer.kernel import layouts, libbpf, wire

#: Bytes taken from the rings that may wait to be decoded; what comes then is lost, and counted.
WAITING_MAX = 24 << 20
Look = Callable[[list[bytes]], bool]
Hear = Callable[[list[bytes]], None]
#: A request's first bytes wake us, but the server needs the processor then: so long they may lie.
DEFER_MS = 200
#: Whoever sleeps longer than this asks to be woken by a request's first bytes.
DOZE_MS = 1000
_NICE = -10
_AT = {name: at for name, at, _ in layouts.PACKET.members()}
_CAPTURED_AT, _PAYLOAD_AT, _FLAGS_AT = _AT["captured"], _AT["payload_len"], _AT["h.flags"]


class Fill:
    """How full a ring is, from the two positions the kernel shows (bpf/ringbuf.c)."""

    def __init__(self, fd: int, size: int) -> None:
        self._quarter = size // 4
        self._consumer = mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ)
        self._producer = mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ, offset=mmap.PAGESIZE)

    def hurries(self) -> bool:
        """Whether a quarter of it is taken."""
        taken = _u64(self._producer) - _u64(self._consumer)
        return taken >= self._quarter

    def close(self) -> None:
        self._consumer.close()
        self._producer.close()


def _u64(page: mmap.mmap) -> int:
    return int.from_bytes(page[:8], "little")


def _u32(address: int) -> int:
    return ctypes.c_uint32.from_address(address).value


class Rings:
    """Records come out in the order of each ring. `patient`: the one that may wait a little.

    Both are (descriptor, size in bytes). `doze` tells the kernel that nobody looks for a while,
    so that a request's first bytes wake us. `look` sees new records as soon as they are there,
    in whichever thread took them; it says whether a request's bytes must not lie at all now.
    `hear` sees them too, at any time. `stir` is told of bytes of requests: at once when they woke
    us, though they are left where they are, and else when they are taken.
    """

    def __init__(
        self, urgent: tuple[int, int], patient: tuple[int, int], doze: Callable[[], None]
    ) -> None:
        self.doze = doze
        self.look: Look | None = None
        self.hear: Hear | None = None
        self.stir: Callable[[], None] | None = None
        self.overrun = 0
        self._asked = False
        self._taken: list[bytes] = []
        self._waiting = 0
        # Kept: C holds their addresses.
        self._callbacks = libbpf.SAMPLE(self._take), libbpf.SAMPLE(self._take_packet)
        self._handle: int | None = libbpf.new_ring(urgent[0], self._callbacks[0])
        libbpf.add_ring(self._handle, patient[0], self._callbacks[1])
        self._patient = patient[0]
        self._fill = Fill(*patient)
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._pace_ms = 100
        self._nudge = os.eventfd(0, os.EFD_CLOEXEC)
        self._woken = select.epoll()
        for fd in (urgent[0], patient[0]):
            # Edge-triggered: what is left in the ring on purpose does not wake us again.
            self._woken.register(fd, select.EPOLLIN | select.EPOLLET)
        self._woken.register(self._nudge, select.EPOLLIN)
        self._thread = threading.Thread(target=self._pump, name="ttft-rings", daemon=True)
        self._thread.start()

    def wait(self, timeout_ms: int, pace_ms: int) -> None:
        """Until there are records, at most `timeout_ms`; what need not hurry waits `pace_ms`."""
        if pace_ms != self._pace_ms:
            self._pace_ms = pace_ms
            os.eventfd_write(self._nudge, 1)
        if pace_ms >= DOZE_MS:
            self.doze()
            # What came before the kernel knew will wake nobody.
            if self._consume() and self._taken:
                return
        self._some.wait(timeout_ms / 1000)

    def kick(self) -> None:
        """End a wait; from any thread."""
        self._some.set()

    def drain(self) -> list[bytes]:
        """All records there are, those still in the rings too."""
        self._some.clear()
        with self._lock:
            before = len(self._taken)
            if self._handle is not None:
                libbpf.consume_ring(self._handle)
            taken, self._taken = self._taken, []
            self._waiting = 0
            asked, self._asked = self._asked, False
        self._tell(asked)
        if self.hear is not None:
            self.hear(taken[before:])
        return taken

    def held(self) -> AbstractContextManager[object]:
        """While held, records stay in the rings: to see what happens when they fill up."""
        return self._lock

    def close(self) -> None:
        """Stop draining and free the rings."""
        with self._lock:
            if self._handle is not None:
                libbpf.free_ring(self._handle)
            self._handle = None
        os.eventfd_write(self._nudge, 1)
        self._thread.join()
        self._woken.close()
        self._fill.close()
        os.close(self._nudge)

    def _tell(self, asked: bool) -> None:
        """Bytes of a request were taken: they may have woken nobody."""
        if asked and self.stir is not None:
            self.stir()

    def _take(self, _context: int | None, data: int, size: int) -> int:
        if self._waiting > WAITING_MAX:
            self.overrun += 1
            return 0
        self._waiting += size
        self._taken.append(ctypes.string_at(data, size))
        return 0

    def _take_packet(self, context: int | None, data: int, size: int) -> int:
        """Without the room that its payload left free: half of a burst of short segments."""
        captured = _u32(data + _CAPTURED_AT)
        if _u32(data + _PAYLOAD_AT) and not _u32(data + _FLAGS_AT) & wire.PACKET_EGRESS:
            self._asked = True
        return self._take(context, data, min(size, layouts.PACKET.size + captured))

    def _consume(self) -> bool:
        """False when the rings are closed."""
        with self._lock:
            if self._handle is None:
                return False
            look, hear, before = self.look, self.hear, len(self._taken)
            libbpf.consume_ring(self._handle)
            fresh = self._taken[before:] if look or hear else []
            asked, self._asked = self._asked, False
        self._tell(asked)
        if hear is not None:
            hear(fresh)
        if look and fresh and look(fresh):
            self.doze()
        return True

    def _pump(self) -> None:
        # A burst fills a ring in a millisecond; copying it out takes little and must not wait.
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            self._sleep()
            if not self._consume():
                return
            if self._taken:
                self._some.set()

    def _sleep(self) -> None:
        """Until it is time to drain."""
        if self._only_patient(self._pace_ms):
            look = self.look
            if look is not None and look([]):
                self._consume()
            until = time.monotonic() + DEFER_MS / 1000
            while not self._fill.hurries() and (left := until - time.monotonic()) > 0:
                if not self._only_patient(left * 1000):
                    return

    def _only_patient(self, timeout_ms: float) -> bool:
        """Whether the patient ring, and nothing else, ended the wait."""
        woken = [fd for fd, _ in self._woken.poll(timeout_ms / 1000)]
        if self._nudge in woken:
            os.eventfd_read(self._nudge)
        if self._patient in woken and self.stir is not None:
            self.stir()
        return woken == [self._patient]
