"""Which processes are servers: by what they run, or as the configuration says."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath

import msgspec

from tracer.host import proc
from tracer.records import Command, Listen
from tracer.servers import SERVER_COMMS, parse_command

#: It opens ports for services that it starts when asked; no server, and everyone's ancestor.
INIT = 1


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A server the configuration names, by every condition that is given.

    `exe` is the whole path of its executable, `command` a part of its command line, `port`
    one it listens on. `program` says which known server it behaves like.
    """

    name: str
    exe: str | None = None
    command: str | None = None
    port: int | None = None
    program: str = "custom"

    @property
    def by_port(self) -> bool:
        """Known by nothing but the port it listens on."""
        return self.exe is None and self.command is None and self.port is not None

    def claims(self, exe: str | None, argv: Sequence[str]) -> bool:
        """Whether executable and command line fit; never by the port alone."""
        if self.exe is None and self.command is None:
            return False
        # One that was upgraded while it runs.
        exes = (exe, (exe or "").removesuffix(" (deleted)"))
        return (self.exe is None or self.exe in exes) and (
            self.command is None or self.command in " ".join(argv)
        )


Known = tuple[Command, Rule | None]

#: One that does not answer is asked again after so long, then more and more seldom.
_AGAIN_NS = 1_000_000_000
_AGAIN_MAX_NS = 60_000_000_000
_SILENT_MAX = 4096
_TOLD_MAX = 1024


class Silent:
    """Processes that did not say what they are, each to be asked again at its time.

    Any thread may add some; one takes them.
    """

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._pauses: dict[int, int] = {}
        self._asked_ns = 0

    def add(self, tgid: int) -> None:
        if len(self._due) < _SILENT_MAX:
            self._due.setdefault(tgid, self._asked_ns + self._pauses.get(tgid, 0))

    @property
    def tgids(self) -> frozenset[int]:
        return frozenset(list(self._due))

    @property
    def due_ns(self) -> int | None:
        """When the next is to be asked; None: there is none."""
        return min(list(self._due.values()), default=None)

    def take(self, now_ns: int) -> list[int]:
        """Those that are due and still there; who is silent again is to be added again."""
        self._pauses = {tgid: pause for tgid, pause in self._pauses.items() if tgid in self._due}
        self._asked_ns = now_ns
        due = sorted(tgid for tgid, at_ns in list(self._due.items()) if at_ns <= now_ns)
        for tgid in due:
            self._due.pop(tgid)
            self._pauses[tgid] = min(max(2 * self._pauses.get(tgid, 0), _AGAIN_NS), _AGAIN_MAX_NS)
        return [tgid for tgid in due if os.path.exists(f"/proc/{tgid}")]


class Recogniser:
    """`rules` may be replaced. Those that did not say what they are, are kept as `silent`."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.silent = Silent()
        #: What processes said that listen, as of when: they may do so all the time.
        self._told: dict[int, tuple[int, Known | None]] = {}

    @property
    def by_port(self) -> dict[int, Rule]:
        """Rules that go by nothing but a port, by that."""
        return {rule.port: rule for rule in self.rules if rule.by_port and rule.port}

    def comms(self) -> list[str]:
        """Programs to watch from their first instruction."""
        configured = [PurePosixPath(rule.exe).name for rule in self.rules if rule.exe]
        return [*SERVER_COMMS, *configured]

    def program(self, tgid: int) -> Known | None:
        """What server a process is by its program; from any thread."""
        told = proc.program(tgid)
        if told is None:
            self.silent.add(tgid)
            return None
        command = parse_command(*told, child=False)
        for rule in self.rules:
            if rule.claims(*told):
                return command or Command(program=rule.program, role="single"), rule
        if command is None or command.role not in ("front", "single", "runner"):
            return None
        return command, None

    def listening(self, listen: Listen) -> Known | None:
        """What server a process is by its program, or its port; from any thread."""
        known = self._who_listens(listen)
        if known is not None:
            return known
        rule = None if listen.tgid == INIT else self.by_port.get(listen.port)
        return None if rule is None else (Command(program=rule.program, role="single"), rule)

    def _who_listens(self, listen: Listen) -> Known | None:
        """By its program; an answer is good for all that happened before it."""
        asked_ns, known = self._told.get(listen.tgid, (-1, None))
        if asked_ns < listen.ts_ns:
            asked_ns, known = time.monotonic_ns(), self.program(listen.tgid)
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            self._told[listen.tgid] = asked_ns, known
        return known

    def fronts(
        self, among: Iterable[int], others: Collection[int]
    ) -> list[tuple[int, Command, Rule | None]]:
        """Servers that are none of `others`, and no part of these or of each other."""
        found = {
            tgid: known
            for tgid in among
            if tgid not in others and (known := self.program(tgid)) is not None
        }
        tops = {*found, *others}
        return [(tgid, *known) for tgid, known in found.items() if ancestor(tgid, tops) is None]


def ancestor(tgid: int, among: Collection[int]) -> int | None:
    """The nearest that is among these."""
    seen = {tgid}
    while (above := proc.ppid(tgid)) and above not in seen:
        if above in among:
            return above
        seen.add(above)
        tgid = above
    return None
