"""Packets of all watched ports to HTTP facts, in bounded memory."""

from __future__ import annotations

import itertools
from heapq import nsmallest

from tracer.http.connection import Connection
from tracer.http.reassembly import SYN, Held, Packet
from tracer.records import AnyRecord, Conn, Unreadable

MAX_CONNECTIONS = 4096
MAX_HELD_BYTES = 16 << 20
MAX_EXCHANGES = 2 * MAX_CONNECTIONS
IDLE_NS = 120 * 10**9
_GONE_NS = 60 * 10**9
_LOSS_NS = 60 * 10**9


class HttpReader:
    """The only reader of payload. Each call returns the facts it brought, in order of discovery.

    Facts of the client's bytes are told when the server acknowledges them, so one's time may
    lie some milliseconds before that of records already seen.
    """

    def __init__(self, next_xid: int = 1, max_connections: int = MAX_CONNECTIONS) -> None:
        self._conns: dict[Conn, Connection] = {}
        self._gone: dict[Conn, int] = {}
        self._out: list[AnyRecord] = []
        self._xids = itertools.count(next_xid)
        self._held = Held()
        self._max = max_connections
        self._lost_ns: int | None = None

    @property
    def connections(self) -> int:
        """How many connections are kept."""
        return len(self._conns)

    def packet(self, packet: Packet) -> list[AnyRecord]:
        """Facts that this packet completes."""
        connection = self._conns.get(packet.conn)
        if packet.flags & SYN and not packet.egress:
            connection = self._opening(packet, connection)
        if connection is None:
            if not packet.payload_len or packet.conn in self._gone:
                return []
            connection = self._add(packet)
        connection.packet(packet)
        if connection.closed:
            self._forget(connection)
        while self._held.bytes > MAX_HELD_BYTES:
            max(self._conns.values(), key=lambda c: c.held).shed()
        while self._held.exchanges > MAX_EXCHANGES:
            max(self._conns.values(), key=lambda c: c.open).give_up(packet.ts_ns)
        return self._take()

    def port_gone(self, ts_ns: int, netns: int, port: int) -> list[AnyRecord]:
        """The process that listened there is gone, and its connections with it."""
        for connection in list(self._conns.values()):
            conn = connection.conn
            if conn.server_port == port and conn.netns in (netns, 0):
                connection.end(ts_ns, "server_gone")
                self._forget(connection)
        return self._take()

    def lost(self, ts_ns: int) -> None:
        """Packets were lost; where, the sequence numbers show."""
        self._lost_ns = ts_ns

    def expire(self, ts_ns: int) -> list[AnyRecord]:
        """Forget connections without traffic; end what nobody can wait for any more."""
        for connection in list(self._conns.values()):
            if not connection.idle:
                connection.expire(ts_ns)
            elif ts_ns - connection.last_ns > IDLE_NS:
                connection.end(ts_ns, "gap")
            if connection.closed:
                self._forget(connection, tombstone=False)
        for conn, gone_ns in list(self._gone.items()):
            if ts_ns - gone_ns <= _GONE_NS:
                break
            del self._gone[conn]
        return self._take()

    def snapshot(self) -> list[AnyRecord]:
        """The facts of all open exchanges again, for the beginning of a recording."""
        return [fact for connection in self._conns.values() for fact in connection.facts()]

    def _take(self) -> list[AnyRecord]:
        out = self._out
        if not out:
            return []
        taken = out.copy()
        out.clear()
        return taken

    def _opening(self, packet: Packet, old: Connection | None) -> Connection:
        if old is not None:
            if old.isn == packet.seq:
                return old
            old.end(packet.ts_ns, "client_gone")
            self._forget(old)
        self._gone.pop(packet.conn, None)
        return self._add(packet)

    def _add(self, packet: Packet) -> Connection:
        if len(self._conns) >= self._max:
            self._make_room(packet.ts_ns)
        stray: Unreadable = "old_connection"
        if self._lost_ns is not None and packet.ts_ns - self._lost_ns < _LOSS_NS:
            stray = "gap"
        connection = Connection(packet, self._held, self._xids, self._out, stray)
        self._conns[packet.conn] = connection
        return connection

    def _make_room(self, ts_ns: int) -> None:
        """Drop the longest unused eighth, those without an open exchange first."""
        count = max(1, self._max // 8)
        for connection in nsmallest(
            count, self._conns.values(), key=lambda c: (not c.idle, c.last_ns)
        ):
            connection.end(ts_ns, "gap")
            self._forget(connection, tombstone=False)

    def _forget(self, connection: Connection, tombstone: bool = True) -> None:
        self._conns.pop(connection.conn, None)
        if tombstone:
            self._gone.pop(connection.conn, None)
            self._gone[connection.conn] = connection.last_ns
            if len(self._gone) > self._max:
                del self._gone[next(iter(self._gone))]
