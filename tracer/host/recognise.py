"""Which processes are servers: by what they run, or as the configuration says."""

from __future__ import annotations

import os
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
        return (self.exe is None or self.exe == exe) and (
            self.command is None or self.command in " ".join(argv)
        )


Known = tuple[Command, Rule | None]


class Recogniser:
    """`rules` may be replaced. Those that did not say what they are, are kept as `silent`."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.silent: set[int] = set()

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
        known = self.program(listen.tgid)
        if known is not None:
            return known
        rule = None if listen.tgid == INIT else self.by_port.get(listen.port)
        return None if rule is None else (Command(program=rule.program, role="single"), rule)

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

    def take_silent(self) -> list[int]:
        """Those that did not say, and are still there; to be asked again now."""
        silent = sorted(self.silent)
        self.silent.difference_update(silent)  # other threads may add to it
        return [tgid for tgid in silent if os.path.exists(f"/proc/{tgid}")]


def ancestor(tgid: int, among: Collection[int]) -> int | None:
    """The nearest that is among these."""
    seen = {tgid}
    while (above := proc.ppid(tgid)) and above not in seen:
        if above in among:
            return above
        seen.add(above)
        tgid = above
    return None
