"""What of a configuration read again takes effect at once, and what needs a restart."""

from __future__ import annotations

from msgspec.structs import replace

from tracer.config import Config

AT_ONCE = ("server", "spike", "history")
"""Sections that a running daemon takes over; servers already found stay as they are."""


NETWORK = frozenset({"metrics", "otlp"})
"""Sections that need more of the unit: it reaches no network by itself."""


def changed(before: Config, after: Config) -> tuple[list[str], list[str]]:
    """Keys that differ: those taken over at once, and those that wait for a restart."""
    names = [
        name for name in Config.__struct_fields__ if getattr(before, name) != getattr(after, name)
    ]
    now = [name for name in names if name in AT_ONCE]
    return now, [name for name in names if name not in AT_ONCE]


def taken(before: Config, after: Config) -> Config:
    """What the daemon goes on with: `after`, but for what waits for a restart."""
    return replace(before, **{name: getattr(after, name) for name in AT_ONCE})


def said(now: list[str], later: list[str]) -> str:
    """One line for the log."""
    if not now and not later:
        return "configuration read again: nothing changed"
    text = f"configuration read again: {', '.join(now)} changed" if now else ""
    if later:
        how = "sudo systemctl restart ttftd"
        if not NETWORK.isdisjoint(later):
            how = f"sudo ttft service install, for their network, then {how}"
        waits = f"{', '.join(later)} will change at the next start ({how})"
        text = f"{text}; {waits}" if text else f"configuration read again: {waits}"
    return text
