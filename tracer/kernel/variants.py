"""Chooses among the ways to get the same facts, by what this kernel has; never by version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from tracer.errors import KernelError
from tracer.kernel.probes import CHEAPEST, FOLLOWS, VARIANTS, Choice, Probe, Selection

AUTO = "auto"
#: By tracepoints that came after all that the full object needs, or to help those that do.
_NEWER = ("ttft_fault_near", "ttft_fault_miss", "ttft_call_end")
#: Groups that have to tell what is mapped at an address.
MAPPED = ("faults", "minor")
NAMES = (AUTO, "tracepoint", "fentry")


def select(
    table: Iterable[Probe],
    lacks: Callable[[Probe], str | None],
    forced: str = AUTO,
    stays: Collection[str] = (),
) -> Selection:
    """One variant of each group, and what of it is lacking.

    `lacks`: why a program cannot be had here, or None. `forced`: `tracepoint` leaves fentry
    out, `fentry` takes nothing else where a group has it. `stays`: groups that do not come
    and go, so that not their attaching has to be quick, but their being attached cheap.
    """
    rows = list(table)
    ways = {group: _ordered(group, names, group in stays) for group, names in VARIANTS.items()}
    choices = {group: _choose(group, names, rows, lacks, forced) for group, names in ways.items()}
    chosen = tuple(row for row in rows if _belongs(row, choices))
    lacking = {row.program: why for row in chosen if (why := lacks(row))}
    return Selection(chosen, lacking, choices)


def _ordered(group: str, names: tuple[str, ...], stays: bool) -> tuple[str, ...]:
    first = CHEAPEST.get(group) if stays else None
    return tuple(sorted(names, key=lambda name: name != first)) if first else names


def in_plain(probe: Probe) -> bool:
    """Whether the object for older kernels has a program: not where it can only run on newer."""
    kind = probe.section.partition("/")[0]
    return kind not in ("fentry", "fexit", "uprobe") and probe.program not in _NEWER


def family(probe: Probe) -> str:
    """The group that decides the variant of a program."""
    return FOLLOWS.get(probe.group, probe.group)


def _belongs(row: Probe, choices: Mapping[str, Choice]) -> bool:
    return not row.variant or choices[family(row)].variant == row.variant


def _choose(
    group: str,
    names: tuple[str, ...],
    rows: list[Probe],
    lacks: Callable[[Probe], str | None],
    forced: str,
) -> Choice:
    passed_over: list[tuple[str, str]] = []
    for name in names:
        own = [row for row in rows if row.variant == name and family(row) == group]
        reasons = (why for row in own if (why := lacks(row)))
        why = _forbidden(name, names, forced) or next(reasons, None)
        if why is None:
            rest = names[len(passed_over) + 1 :]
            return Choice(group, name, tuple(passed_over), rest)
        passed_over.append((name, why))
    if forced == "fentry" and "fentry" in names:
        why = dict(passed_over)["fentry"]
        raise KernelError(
            f"the probe group {group} cannot use fentry: {why}",
            'set [probes] variant = "auto" in the configuration',
        )
    return Choice(group, names[-1], tuple(passed_over[:-1]))


def _forbidden(name: str, names: tuple[str, ...], forced: str) -> str | None:
    if forced == "tracepoint" and name == "fentry":
        return "off in the configuration"
    if forced == "fentry" and name != "fentry" and "fentry" in names:
        return "off in the configuration"
    return None
