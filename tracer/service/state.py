"""How the installed service is: facts of systemd as an answer, and as lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Json = dict[str, object]

PROPERTIES = (
    "LoadState", "ActiveState", "UnitFileState", "Result", "MainPID", "NRestarts", "StatusText",
    "FragmentPath", "ActiveEnterTimestamp", "MemoryCurrent",
)  # fmt: skip


@dataclass(frozen=True)
class Access:
    """Who may ask: the group, its members, and whether whoever runs this may."""

    socket: str
    group: str
    members: tuple[str, ...] | None
    may_ask: bool
    why_not: str | None = None


def answer(
    shown: Mapping[str, str], access: Access, version: str, running: str | None, log: Sequence[str]
) -> Json:
    """The answer of `ttft service status --json`."""
    installed = shown.get("LoadState") == "loaded"
    state = shown.get("ActiveState", "unknown") if installed else "not installed"
    return {
        "schema": 1,
        "installed": installed,
        "unit": shown.get("FragmentPath") or None,
        "state": state,
        "result": shown.get("Result") or None,
        "at_boot": shown.get("UnitFileState") in ("enabled", "enabled-runtime"),
        "since": shown.get("ActiveEnterTimestamp") or None,
        "pid": _number(shown.get("MainPID")) or None,
        "restarts": _number(shown.get("NRestarts")),
        "memory_bytes": _number(shown.get("MemoryCurrent")),
        "says": shown.get("StatusText") or None,
        "version": running,
        "installed_version": version,
        "socket": access.socket,
        "group": access.group,
        "members": None if access.members is None else list(access.members),
        "may_ask": access.may_ask,
        "why_not": access.why_not,
        "log": list(log) if installed and state != "active" else [],
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def lines(known: Json) -> list[str]:
    """For people: a line a fact, then what to do."""
    if not known["installed"]:
        return ["ttftd is not installed as a service", "  sudo ttft service install"]
    since = f" since {known['since']}" if known["since"] and known["state"] == "active" else ""
    found = [
        f"state     {known['state']}{since}",
        f"at boot   {'starts' if known['at_boot'] else 'does not start'}",
        f"unit      {known['unit']}",
        f"version   {_version(known)}",
    ]
    if known["restarts"]:
        last = known["result"]
        why = f", the last: {last}" if last not in (None, "success") else ""
        found.append(f"restarts  {known['restarts']} after failures{why}")
    if known["says"]:
        found.append(f"says      {known['says']}")
    members = known["members"]
    who = "unknown" if members is None else ", ".join(map(str, _list(members))) or "nobody yet"
    found += [
        f"socket    {known['socket']}",
        f"may ask   root, and members of the group {known['group']}: {who}",
    ]
    if not known["may_ask"]:
        found.append(f"you       {known['why_not']}")
    if known["log"]:
        found += ["its last words:", *map(str, _list(known["log"]))]
    return found


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def _version(known: Json) -> str:
    running, installed = known["version"], known["installed_version"]
    if running is None:
        return f"{installed} installed"
    if running == installed:
        return str(installed)
    return f"{running} runs, {installed} is installed: sudo ttft service install restarts it"
