"""Finds servers and their processes, and turns raw kernel events into records.

Knows which processes belong to which server (the tree under a front) and tells the kernel side
what to watch. Everything it learns leaves as records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec

from tracer.errors import KernelError
from tracer.host import proc, reach, sockets
from tracer.host.holders import Holders
from tracer.host.members import Member, Watchable, name_of, server_of
from tracer.host.naming import Names
from tracer.host.opened import Opened
from tracer.host.recognise import INIT, Recogniser, Rule, ancestor
from tracer.kernel.wire import (
    Raw,
    RawCached,
    RawCall,
    RawDevice,
    RawExec,
    RawFile,
    RawLinked,
    RawMagic,
    RawPacket,
    RawUnseen,
)
from tracer.records import (
    AnyRecord,
    Command,
    Conn,
    Connect,
    Exec,
    Exit,
    File,
    Fork,
    Listen,
    Unlisten,
)

_NO_RECORDS = (
    RawExec, RawFile, RawMagic, RawPacket, RawLinked, RawCall, RawCached, RawDevice, RawUnseen,
)  # fmt: skip


class Discovery:
    """`start()` once, then `translate()` for every raw event, in order."""

    def __init__(self, kernel: Watchable, rules: Iterable[Rule] = ()) -> None:
        self._kernel = kernel
        self._known = Recogniser(rules)
        self._tree: dict[int, Member] = {}
        self._opened = Opened(kernel.track_file)
        self._holders = Holders()
        self._ports: dict[tuple[int, int], int] = {}
        self._naming = Names()
        self._orphans: dict[tuple[int, int], Member] = {}
        self._handlers: dict[type, Callable[[Any], list[AnyRecord]]] = {
            RawExec: self._exec,
            RawFile: self._opened.file,
            RawMagic: self._opened.magic,
            Fork: self._fork,
            Exit: self._exit,
            Listen: self._listen,
            Unlisten: self._unlisten,
        }

    @property
    def tree(self) -> dict[int, Member]:
        """Watched processes by tgid."""
        return self._tree

    def files(self) -> Iterable[File]:
        return self._opened.all()

    def ports_of(self, tgid: int) -> list[tuple[int, int]]:
        """(netns, port) of the listening sockets a process owns."""
        return [key for key, owner in self._ports.items() if owner == tgid]

    def owned(self, netns: int, port: int) -> bool:
        """Whether a watched process listens there."""
        return (netns, port) in self._ports

    # --- what is there already ---------------------------------------------------

    def start(self, now_ns: int) -> list[AnyRecord]:
        """The servers that are running, with their mapped files and their sockets."""
        return self._find(now_ns)

    def change(self, rules: Iterable[Rule], now_ns: int) -> list[AnyRecord]:
        """Go by these rules from now on; what was found by others stays until it ends.

        KernelError: the kernel takes them not; it goes on by those before.
        """
        before, self._known.rules = self._known.rules, tuple(rules)
        try:
            return self._find(now_ns)
        except KernelError:
            self._known.rules = before
            raise

    def _find(self, now_ns: int) -> list[AnyRecord]:
        for comm in self._known.comms():
            self._kernel.add_server_comm(comm)
        self._kernel.set_server_ports(list(self._known.by_port))
        known = set(self._tree)
        records: list[AnyRecord] = []
        for tgid, command, rule in self._known.fronts(proc.pids(), known):
            records += self._adopt(tgid, command, rule, now_ns)
        return records + self._sockets(proc.pids(), known, now_ns)

    @property
    def again_ns(self) -> int | None:
        """When to `ask_again()`; None: all have said what they are."""
        return self._known.silent.due_ns

    def ask_again(self, now_ns: int) -> list[AnyRecord]:
        """Servers, and processes of servers, that did not answer before and do now."""
        known = set(self._tree)
        asked = [tgid for tgid in self._known.silent.take(now_ns) if tgid not in known]
        records: list[AnyRecord] = []
        for tgid in asked:
            above = ancestor(tgid, self._tree)
            if above is not None and tgid not in self._tree:
                records += self._take_in(tgid, self._tree[above], now_ns)
        others = [tgid for tgid in asked if tgid not in self._tree]
        for tgid, command, rule in self._known.fronts(others, self._tree):
            records += self._adopt(tgid, command, rule, now_ns)
        told = [tgid for tgid in asked if tgid not in self._known.silent.tgids]
        if records or (told and self._known.by_port):
            records += self._sockets(told, known, now_ns)
        return records

    def _adopt(
        self, tgid: int, command: Command, rule: Rule | None, now_ns: int
    ) -> list[AnyRecord]:
        """Watch a front and all below it; children born meanwhile are watched by the kernel."""
        name, port = (rule.name, rule.port) if rule else (None, None)
        member = Member(tgid, name, command.program, port)
        return self._take_in(tgid, member, now_ns, command)

    def _take_in(
        self, tgid: int, member: Member, now_ns: int, command: Command | None = None
    ) -> list[AnyRecord]:
        """Watch a process and all below it. `command`: what it is, where it does not say so."""
        records: list[AnyRecord] = []
        for other in [tgid, *proc.descendants(tgid)]:
            # To watch one that hangs is to wait for it.
            if other != member.front and proc.start_ns(other) is None:
                self._known.silent.add(other)
                continue
            self._kernel.watch(other)
            self._tree[other] = member
            record = proc.process_record(other, now_ns, child=other != member.front)
            if record is None:
                self._tree.pop(other, None)
                self._kernel.unwatch(other)
                if reach.speaker(other) is not None:  # one that ended never answers
                    self._known.silent.add(other)
                continue
            self._holders.joined(member.front, other)
            if other == tgid and record.command is None:
                record = msgspec.structs.replace(record, command=command)
            records.append(record)
            records += self._opened.held(other, now_ns)
        return records

    def look_again(self, now_ns: int) -> list[AnyRecord]:
        """Files that watched processes took up while nobody looked."""
        return [record for tgid in list(self._tree) for record in self._opened.held(tgid, now_ns)]

    def _sockets(
        self, asked: Sequence[int], known: Collection[int], now_ns: int
    ) -> list[AnyRecord]:
        """Sockets of processes that were not `known` before; fronts that one of `asked` is."""
        # A port may be one of any namespace; without such rules the servers' own are enough.
        by_port = bool(self._known.by_port)
        spaces = sockets.namespaces([*asked, *self._tree] if by_port else list(self._tree))
        records = self._adopt_listeners(spaces, asked, now_ns) if by_port else []
        owners = proc.socket_owners([tgid for tgid in self._tree if tgid not in known])
        for space in spaces:
            records += self._listeners(space, owners, now_ns)
            records += self._connections(space, owners, now_ns)
        return records

    def _adopt_listeners(
        self, spaces: Sequence[sockets.Namespace], among: Iterable[int], now_ns: int
    ) -> list[AnyRecord]:
        """Fronts that a rule names by nothing but their port."""
        rules = self._known.by_port
        wanted = {
            sock.inode: rules[sock.local_port]
            for space in spaces
            for sock in space.tcp
            if sock.state == sockets.LISTENING
            and sock.local_port in rules
            and not self.owned(space.netns, sock.local_port)
        }
        if not wanted:
            return []
        owners = proc.socket_owners([tgid for tgid in among if tgid != INIT])
        records: list[AnyRecord] = []
        for inode, rule in wanted.items():
            owner = owners.get(inode)
            if owner is not None and owner not in self._tree:
                command = Command(program=rule.program, role="single")
                records += self._adopt(owner, command, rule, now_ns)
        return records

    def _listeners(
        self, space: sockets.Namespace, owners: dict[int, int], now_ns: int
    ) -> list[AnyRecord]:
        records: list[AnyRecord] = []
        for sock in space.tcp:
            owner = owners.get(sock.inode)
            if sock.state == sockets.LISTENING and owner is not None:
                parent = proc.ppid(owner)
                self._kernel.holds(space.netns, sock.local_port, owner, parent)
                self._kernel.watch_port(space.netns, sock.local_port)
                records += self._listen(
                    Listen(ts_ns=now_ns, tgid=owner, netns=space.netns, port=sock.local_port)
                )
        for owner in {owners[i] for i in space.unix if i in owners}:
            member = self._tree.get(owner)
            if member and member.front == owner and not self.ports_of(owner):
                name = name_of(member, 0)
                records.append(server_of(member, now_ns, space.netns, 0, name, unix=True))
        return records

    def _connections(
        self, space: sockets.Namespace, owners: dict[int, int], now_ns: int
    ) -> list[AnyRecord]:
        """Connections from watched processes to watched ports: the hops already open."""
        found: list[AnyRecord] = []
        for s in space.tcp:
            owner = owners.get(s.inode)
            if owner is not None and (space.netns, s.remote_port) in self._ports:
                conn = Conn(space.netns, s.remote_ip, s.remote_port, s.local_ip, s.local_port)
                found.append(Connect(ts_ns=now_ns, tgid=owner, tid=owner, conn=conn))
        return found

    # --- what happens then ---------------------------------------------------------

    def translate(self, raw: Raw) -> list[AnyRecord]:
        """The records of one kernel event, none where it turns out to be a stranger's."""
        handler = self._handlers.get(type(raw))
        if handler is not None:
            return handler(raw)
        if isinstance(raw, _NO_RECORDS):
            return []
        return [raw]

    def _unlisten(self, raw: Unlisten) -> list[AnyRecord]:
        if self._still_open(raw):
            self._kernel.watch_port(raw.netns, raw.port)
            return []
        self._ports.pop((raw.netns, raw.port), None)
        self._orphans.pop((raw.netns, raw.port), None)
        # It may have been put in again for a listen() that was told late.
        self._kernel.drop_port(raw.netns, raw.port)
        return [raw]

    def _still_open(self, raw: Unlisten) -> bool:
        """Whether the server has more sockets there: the kernel side knew only some of them, or
        took a stranger's, at another address, for the server's."""
        key = (raw.netns, raw.port)
        tgid = self._ports.get(key, 0)
        owner = self._tree.get(tgid)
        if owner is None or self._holders.none_listens(key, owner.front, tgid, raw.ts_ns):
            return False
        return key in self._held(owner, raw.ts_ns)

    def _held(self, member: Member, ts_ns: int) -> dict[tuple[int, int], int]:
        """Who of a server's processes holds which port."""
        kin = (tgid for tgid, other in self._tree.items() if other.front == member.front)
        return self._holders.of(member.front, kin, ts_ns)

    def _exec(self, raw: RawExec) -> list[AnyRecord]:
        member = self._tree.get(raw.tgid)
        if member is None:
            return self._newcomer(raw)
        child = member.front != raw.tgid
        exe = proc.exe(raw.tgid) or raw.filename
        command = proc.command(raw.tgid, child=child)
        return [Exec(ts_ns=raw.ts_ns, tgid=raw.tgid, comm=raw.comm, exe=exe, command=command)]

    def _newcomer(self, raw: RawExec) -> list[AnyRecord]:
        """A program with a server's name started outside any tree."""
        known = self._known.program(raw.tgid)
        if known is None:
            self._kernel.unwatch(raw.tgid)
            return []
        command, rule = known
        records = self._adopt(raw.tgid, command, rule, raw.ts_ns)
        if raw.tgid in self._tree:
            exe = proc.exe(raw.tgid) or raw.filename
            records.append(
                Exec(ts_ns=raw.ts_ns, tgid=raw.tgid, comm=raw.comm, exe=exe, command=command)
            )
        return records

    def _fork(self, fork: Fork) -> list[AnyRecord]:
        member = self._tree.get(fork.parent)
        if member is None:
            return []
        self._tree[fork.child] = member
        self._holders.joined(member.front, fork.child)
        return [fork, *self._inherit(member, fork.ts_ns)]

    def _exit(self, exit_: Exit) -> list[AnyRecord]:
        member = self._tree.pop(exit_.tgid, None)
        if member is None:
            return []
        gone = self.ports_of(exit_.tgid)
        self._orphans |= dict.fromkeys(gone, member)
        for key in gone:
            del self._ports[key]
        records = self._inherit(member, exit_.ts_ns)
        if not any(other.front == member.front for other in self._tree.values()):
            for key in [k for k, late in self._orphans.items() if late.front == member.front]:
                del self._orphans[key]
                self._kernel.drop_port(*key)
        return [exit_, *records]

    def _inherit(self, member: Member, ts_ns: int) -> list[AnyRecord]:
        """Give ports whose listener ended to a process of its tree that has the socket too."""
        orphans = [key for key, late in self._orphans.items() if late.front == member.front]
        held = self._held(member, ts_ns) if orphans else {}
        records: list[AnyRecord] = []
        for netns, port in orphans:
            heir = held.get((netns, port))
            if heir is not None and heir in self._tree:
                records += self._listen(Listen(ts_ns=ts_ns, tgid=heir, netns=netns, port=port))
        return records

    def _succeed(self, member: Member, tgid: int, ts_ns: int) -> list[AnyRecord]:
        """A server that went to the background: its front ended, a child of it listens."""
        heir = msgspec.structs.replace(member, front=tgid)
        for other, kin in self._tree.items():
            if kin.front == member.front:
                self._tree[other] = heir
        record = proc.process_record(tgid, ts_ns, child=False)
        if record is None:
            return []
        command = record.command or Command(program=heir.program, role="single")
        return [msgspec.structs.replace(record, command=command)]

    def _listen(self, listen: Listen) -> list[AnyRecord]:
        records: list[AnyRecord] = []
        member = self._tree.get(listen.tgid)
        if member is None:
            records = self._listening_stranger(listen)
            member = self._tree.get(listen.tgid)
        if member is None:
            return []
        if member.front not in self._tree:
            records = self._succeed(member, listen.tgid, listen.ts_ns)
            member = self._tree[listen.tgid]
        self._ports[listen.netns, listen.port] = listen.tgid
        self._orphans.pop((listen.netns, listen.port), None)
        records.append(listen)
        if member.front == listen.tgid and member.port in (None, listen.port):
            place = (listen.netns, listen.port)
            base = name_of(member, listen.port)
            name = self._naming.give(base, listen.tgid, place, self._ports)
            records.append(server_of(member, listen.ts_ns, *place, name))
        return records

    def _listening_stranger(self, listen: Listen) -> list[AnyRecord]:
        """A server whose program name says nothing (an interpreter), or one known by its port."""
        known = self._known.listening(listen)
        if known is None:
            return []
        command, found = known
        known_before = set(self._tree)
        records = self._adopt(listen.tgid, command, found, listen.ts_ns)
        self._kernel.watch_port(listen.netns, listen.port)
        children = [tgid for tgid in self._tree if tgid not in known_before][1:]
        return records + self._children_listening(children, listen)

    def _children_listening(self, children: list[int], front: Listen) -> list[AnyRecord]:
        """Ports that children opened while nobody knew whose they are."""
        owners = proc.socket_owners(children) if children else {}
        records: list[AnyRecord] = []
        for space in sockets.namespaces(children):
            elsewhere = space.netns != front.netns
            tcp = tuple(s for s in space.tcp if elsewhere or s.local_port != front.port)
            records += self._listeners(msgspec.structs.replace(space, tcp=tcp), owners, front.ts_ns)
        return records

    def serves(self, listen: Listen) -> bool:
        """Whether who listens there is a server, known or not; from any thread."""
        return listen.tgid in self._tree or self._known.listening(listen) is not None
