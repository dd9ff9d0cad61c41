"""Which exchange is a client's request, which a hop on its behalf, which a health poll."""

from __future__ import annotations

from tracer.exchanges import Exchanges, Talk
from tracer.http.endpoints import is_inference
from tracer.processes import Ports, Processes
from tracer.records import HttpEnd, Known, Server, Start
from tracer.servers import same_model
from tracer.sites import Site

UNPLACED_NS = 5_000_000_000
BODY_WAIT_NS = 1_000_000_000
DEATH_GRACE_NS = 1_000_000_000

HEALTH = frozenset({"/health", "/v1/health", "/healthz", "/readyz", "/ping"})

SiteKey = tuple[int, int]


class Linker:
    """Places exchanges, numbers requests and links hops, once per tick, in order of arrival."""

    def __init__(self, procs: Processes, ports: Ports, exchanges: Exchanges) -> None:
        self._procs = procs
        self._ports = ports
        self._exchanges = exchanges
        self._new: list[Talk] = []
        self._unlinked: list[Talk] = []
        self.sites: dict[SiteKey, Site] = {}
        self.next_id = 1
        self.last_model: dict[str, str] = {}
        self._known: dict[int, Known] = {}
        self._known_hops: dict[int, int] = {}

    def start(self, record: Start) -> None:
        self.next_id = max(self.next_id, record.next_id)
        self.last_model.update(record.last_model)
        for known in record.known:
            self._known[known.xid] = known
            self._known_hops.update(dict.fromkeys(known.hops, known.xid))

    def arrived(self, talk: Talk) -> None:
        self._new.append(talk)

    def settle(self, now_ns: int) -> None:
        """Place, number and link all that arrived until `now_ns`."""
        self._place_new(now_ns)
        waiting = []
        for hop in sorted(self._unlinked, key=_by_arrival):
            if _has_body(hop) or hop.arrival_ns + BODY_WAIT_NS <= now_ns:
                self._link(hop)
            else:
                waiting.append(hop)
        self._unlinked = waiting
        self._end_orphans(now_ns)

    def _place_new(self, now_ns: int) -> None:
        if not self._new:
            return
        waiting = []
        for talk in sorted(self._new, key=_by_arrival):
            if talk.arrival_ns > now_ns or not self._place(talk):
                if talk.arrival_ns + UNPLACED_NS < now_ns:
                    self._exchanges.forget(talk)
                else:
                    waiting.append(talk)
        self._new = waiting

    def _place(self, talk: Talk) -> bool:
        """Decide the role of an exchange; False while its server is not known."""
        conn, arrival_ns = talk.request.conn, talk.arrival_ns
        listener = self._ports.listener(conn.netns, conn.server_port, arrival_ns)
        if listener is None and talk.read is not None:
            listener = talk.read.tgid
        server = self._ports.server_at(conn.netns, conn.server_port, arrival_ns)
        if server is not None and self._ports.top(server, arrival_ns) is not server:
            server = None  # its front is a runner of another server
        front = server is not None
        proc = self._procs.at(listener, arrival_ns)
        if server is None and proc is not None:
            server = self._ports.server_of(proc, arrival_ns)
            server = None if server is None else self._ports.top(server, arrival_ns)
            front = server is not None and server.tgid == proc.tgid
        if server is None:
            return False
        talk.server = server
        talk.server_tgid = listener if listener is not None else server.tgid
        talk.client = self._exchanges.client(talk)
        site = self.site(server)
        if talk.request.endpoint in HEALTH:
            talk.role = "poll"
            site.polls.append(talk)
            self.proved_ready(talk)
        elif not is_inference(talk.request.endpoint):
            self._exchanges.forget(talk)
        elif front or not self._from_tree(talk, server, site):
            self._number(talk, site)
        else:
            talk.role = "hop"
            self._unlinked.append(talk)
            self.proved_ready(talk)
        return True

    def site(self, server: Server) -> Site:
        return self.sites.setdefault((server.netns, server.port), Site(server.name))

    def _from_tree(self, talk: Talk, server: Server, site: Site) -> bool:
        """Whether an exchange on a runner's port was made by the server itself."""
        if talk.xid in self._known_hops:
            return True
        if talk.client is not None:
            client = self._procs.at(talk.client.tgid, talk.client.ts_ns)
            return client is not None and self._procs.under(client, server.tgid)
        ip = talk.request.conn.client_ip.removeprefix("::ffff:")
        local = ip == "::1" or ip.startswith("127.")
        return local and talk.xid not in self._known and bool(self._candidates(talk, site))

    def _number(self, talk: Talk, site: Site) -> None:
        talk.role = "request"
        known = self._known.pop(talk.xid, None)
        if known is not None:
            talk.id, talk.told, talk.done = known.id, known.told, known.done
            talk.runner = known.runner
        else:
            talk.id = self.next_id
            self.next_id += 1
        site.add(talk)

    def _candidates(self, hop: Talk, site: Site) -> list[Talk]:
        return [r for r in site.open.values() if _may_serve(hop, r)]

    def _link(self, hop: Talk) -> None:
        if hop.server is None:
            return
        site = self.site(hop.server)
        known = self._known_hops.pop(hop.xid, None)
        if known is not None:
            found = site.get(known)
            fits = [found] if found is not None else []
        else:
            fits = self._candidates(hop, site)
        held = _held(hop, site)
        best = max(fits, key=lambda r: _likeness(hop, r, held), default=None)
        if best is None:
            site.loose.append(hop)
            return
        hop.request_of = best
        best.hops.append(hop)
        self.proved_ready(hop)

    def proved_ready(self, talk: Talk) -> None:
        """Note that the process behind a 2xx answer can serve."""
        if talk.answered_ns is None or talk.role not in ("hop", "poll", "request"):
            return
        tgid = talk.runner if talk.role == "request" else talk.server_tgid
        proc = self._procs.at(tgid, talk.arrival_ns)
        if proc is not None and (proc.ready_ns is None or talk.answered_ns < proc.ready_ns):
            proc.ready_ns = talk.answered_ns

    def _end_orphans(self, now_ns: int) -> None:
        """End what a dead process can no longer answer, where its sockets did not tell."""
        for site in self.sites.values():
            for talk in site.open.values():
                for one in (talk, *talk.hops):
                    self._end_orphan(one, now_ns)

    def _end_orphan(self, talk: Talk, now_ns: int) -> None:
        if talk.end is not None:
            return
        tgid = talk.server_tgid
        proc = self._procs.at(tgid, talk.arrival_ns)
        if proc is None or proc.exit is None or proc.exit.ts_ns + DEATH_GRACE_NS > now_ns:
            return
        ts_ns = max(proc.exit.ts_ns, talk.arrival_ns)
        talk.over(HttpEnd(ts_ns=ts_ns, xid=talk.xid, why="server_gone"))

    def known(self) -> tuple[Known, ...]:
        """What a recording's start must say of the requests in the context."""
        talks = [t for site in self.sites.values() for t in site]
        return tuple(
            Known(
                xid=t.xid,
                id=t.id or 0,
                told=t.told,
                done=t.done,
                runner=t.runner,
                hops=tuple(h.xid for h in t.hops),
            )
            for t in sorted(talks, key=lambda t: t.id or 0)
        )


def serving(talk: Talk) -> Talk | None:
    """Of a request's hops the one that served it: the last that got furthest."""
    best: Talk | None = None
    for hop in talk.hops:
        if best is None or _reached(hop) >= _reached(best):
            best = hop
    return best


def _reached(hop: Talk) -> int:
    return 2 if hop.served_ns is not None else 1 if hop.answered_ns is not None else 0


def _by_arrival(talk: Talk) -> tuple[int, int]:
    return talk.arrival_ns, talk.xid


def _has_body(talk: Talk) -> bool:
    return talk.body is not None or talk.head is not None or talk.end is not None


def _may_serve(hop: Talk, request: Talk) -> bool:
    if request.arrival_ns > hop.arrival_ns or request.work != hop.work:
        return False
    if request.end_ns is not None and request.end_ns < hop.arrival_ns:
        return False
    if not request.hops:
        return True
    last = request.hops[-1]
    if hop.client is not None and hop.client.tgid == last.server_tgid:
        return True  # a runner that hands on to a runner of its own
    retried = last.end_ns is not None and last.end_ns <= hop.arrival_ns
    return retried and (last.served_ns is None or last.failed)


def _held(hop: Talk, site: Site) -> str | None:
    """The model that the runner was asked for last, as its hops may not name it."""
    if hop.server_tgid is None:
        return None
    before = site.ended(hop.server_tgid, hop.arrival_ns)
    return next((r.model for r in before if r.model is not None), None)


def _likeness(
    hop: Talk, request: Talk, held: str | None
) -> tuple[bool, bool, bool, bool, bool, bool, bool, int, int]:
    """How well a hop fits a request; a thread that read the one and connected for the other
    is the best sign, what the bodies say the next, then the oldest."""
    read, client = request.read, hop.client
    last = request.hops[-1] if request.hops else None
    chained = last is not None and client is not None and client.tgid == last.server_tgid
    thread = (
        read is not None
        and client is not None
        and client.ts_ns >= request.arrival_ns
        and (client.tgid, client.tid) == (read.tgid, read.tid)
    )
    models = (hop.model, request.model)
    return (
        chained,
        thread,
        None in (held, request.model) or same_model(held, request.model),
        last is None,
        None in models or models[0] == models[1],
        hop.size is not None and hop.size == request.size,
        models[0] is not None and models[0] == models[1],
        -request.arrival_ns,
        -request.xid,
    )
